"""A node's fingerprint: a digest of its class's qualified name, its source text and its parameters.

Two nodes have the same fingerprint only if they are of the same class, written the same way, and built the same way. So
results kept under it are never those of other code, as far as the class itself says what it does: a function elsewhere
in its module that it calls is not looked at, and `revision` is there to be raised when one of those changes.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import struct
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from o41td.errors import ConfigError
from o41td.nodes.parcel import plainly_pickled

__all__ = ["digest_parts", "fingerprint_of"]

_DIGEST_BYTES = 16


def fingerprint_of(node: object, parameters: Mapping[str, Any], *, base: type) -> str:
    """Returns a node's fingerprint in hexadecimal.

    Args:
        node: The node.
        parameters: What it was built with, by name.
        base: The class whose own text does not count, nor that of those above it.

    Raises:
        ConfigError: A parameter is one that nothing can be said of.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for cls in type(node).__mro__:
        if cls is base or cls is object:
            break
        digest_parts(digest, cls.__module__.encode(), cls.__qualname__.encode(), _class_text(cls))
    digest_parts(digest, str(getattr(node, "revision", "")).encode())
    for name in sorted(parameters):
        try:
            value = b"".join(_encoded(parameters[name]))
        except Exception as error:  # whatever an object's own pickling raises
            raise ConfigError(
                f"the fingerprint of node {type(node).__qualname__} cannot tell what its {name!r} is: {error}",
                advice="Build the node with plain values, or keep that object in a functools.cached_property",
            ) from error
        digest_parts(digest, name.encode(), value)
    return digest.hexdigest()


def digest_parts(digest: Any, *parts: bytes) -> None:
    """Adds parts to a digest so that other parts which are the same end to end give another one."""
    for part in parts:
        digest.update(struct.pack("<q", len(part)))
        digest.update(part)


@cache
def _class_text(cls: type) -> bytes:
    """What a class says: its source text, or, where there is none to read, its functions' code."""
    try:
        return inspect.getsource(cls).encode()
    except (OSError, TypeError):
        members = sorted(vars(cls).items())
        return b"".join(b"".join(_encoded(value)) for _name, value in members if isinstance(value, types.FunctionType))


def _encoded(value: Any) -> Iterator[bytes]:
    """A value as bytes that no other value has, in parts."""
    match value:
        case None | bool() | int() | float() | complex() | str() if type(value).__module__ == "builtins":
            yield _framed(f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass"))
        case bytes() | bytearray() | memoryview():
            yield _framed(b"bytes:" + bytes(value))
        case os.PathLike():
            yield _framed(b"path:" + os.fsencode(value))
        case Enum():
            yield _framed(f"enum:{type(value).__qualname__}.{value.name}".encode())
        case list() | tuple():
            yield _framed(f"{type(value).__name__}{len(value)}".encode())
            for item in value:
                yield from _encoded(item)
        case set() | frozenset():
            yield _framed(f"set{len(value)}".encode())
            yield from sorted(b"".join(_encoded(item)) for item in value)
        case dict():
            yield _framed(f"dict{len(value)}".encode())
            yield from sorted(
                b"".join((*_encoded(key), *_encoded(item))) for key, item in value.items()
            )  # the order in which a dict was filled is no part of what it says
        case _:
            yield from _encoded_object(value)


def _encoded_object(value: Any) -> Iterator[bytes]:
    """As `_encoded`, of what is neither plain nor a container."""
    match value:
        case types.FunctionType():
            yield from _function_parts(value)
        case partial():
            yield from _encoded(("partial", value.func, value.args, value.keywords))
        case type() | types.BuiltinFunctionType() | types.ModuleType():
            yield _framed(f"name:{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}".encode())
        case _ if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            if value.dtype.hasobject:
                yield from _encoded(value.tolist())
            else:
                yield _framed(f"numpy:{value.dtype.str}{value.shape}".encode() + value.tobytes())
        case _ if is_dataclass(value):
            yield _framed(f"dataclass:{type(value).__module__}.{type(value).__qualname__}".encode())
            for field in fields(value):
                yield from _encoded(getattr(value, field.name))
        case _:
            yield _framed(
                f"object:{type(value).__module__}.{type(value).__qualname__}:".encode() + plainly_pickled(value)
            )


def _function_parts(function: types.FunctionType) -> Iterator[bytes]:
    code = function.__code__
    yield _framed(f"function:{function.__module__}.{function.__qualname__}".encode())
    yield from _code_parts(code)
    yield from _encoded(function.__defaults__)
    yield from _encoded(function.__kwdefaults__)
    for cell in function.__closure__ or ():
        if cell.cell_contents is not function:
            yield from _encoded(cell.cell_contents)


def _code_parts(code: types.CodeType) -> Iterator[bytes]:
    yield _framed(code.co_code)
    yield _framed(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        else:
            yield _framed(repr(constant).encode("utf-8", "surrogatepass"))


def _framed(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data
