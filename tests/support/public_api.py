"""The public API as text: each name of `o41td.__all__` with its arguments, and a class's methods and attributes.

Annotations are left out, since Python versions write them differently. Run as a program it writes the pinned file:

    PYTHONPATH=tests/support python -P tests/support/public_api.py > tests/packaging/public_api.txt
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import o41td
from o41td.config_model import ConfigModel

__all__ = ["api_lines"]

MADE_BY_US = {"Batch", "BatchStream"}  # by opening, so how is no part of the API


def api_lines() -> Iterator[str]:
    """The lines, sorted by name."""
    for name in sorted(o41td.__all__):
        value = getattr(o41td, name)
        if name == "__version__":
            yield name
        elif isinstance(value, type):
            yield from class_lines(name, value)
        else:
            yield f"{name}{arguments_of(value)}"


def class_lines(name: str, cls: type) -> Iterator[str]:
    """A class: what it derives from, how it is made, what it has."""
    private = [base for base in cls.__mro__[1:] if is_private(base)]
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object and base not in private)
    yield f"class {name}({bases})" if bases else f"class {name}"
    members: dict[str, Any] = {}
    for part in (*reversed(private), cls):
        members |= vars(part)
    if hasattr(cls, "model_fields"):
        for key, field in cls.model_fields.items():
            default = "" if field.default_factory else f" = {field.default!r}"
            yield f"  {name}.{key}{' required' if field.is_required() else default}"
    elif "__init__" in members and name not in MADE_BY_US:
        yield f"  {name}{arguments_of(members['__init__'], is_method=True)}"
    for key, member in sorted(members.items()):
        if key.startswith("_"):
            continue
        if isinstance(member, classmethod | staticmethod):
            yield f"  {name}.{key}{arguments_of(member.__func__, is_method=isinstance(member, classmethod))}"
        elif isinstance(member, types.FunctionType):
            yield f"  {name}.{key}{arguments_of(member, is_method=True)}"
        elif isinstance(member, property | types.MemberDescriptorType):
            yield f"  {name}.{key}"


def is_private(base: type) -> bool:
    """Whether a base is ours and has no public name, so that what it has is told of the class itself."""
    is_ours = base.__module__.split(".")[0] == "o41td"
    return is_ours and base is not ConfigModel and base.__name__ not in o41td.__all__


def arguments_of(function: Any, *, is_method: bool = False) -> str:
    """A signature without annotations."""
    parameters = list(inspect.signature(function).parameters.values())[1 if is_method else 0 :]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


if __name__ == "__main__":
    print("\n".join(api_lines()))
