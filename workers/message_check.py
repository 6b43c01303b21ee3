"""What a record off a socket must look like to be believed: a check of each field's type, made from its annotation.

Ends of one version send nothing else, so a record that fails came from something that is no peer of ours, or from a
bug; either way nothing of it is used. What lies inside a nested record is checked by whoever builds something from it.

What is said of every block holds little but numbers, whose types together say whether they may be; so such a record is
believed at one look, and gone through field by field where that does not do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["refuse_wrong_types"]

Check = Callable[[Any], bool]


def refuse_wrong_types(record: tuple[Any, ...]) -> None:
    """Refuses a named tuple that holds a value which its annotation does not allow.

    Raises:
        ValueError: The field is named, its value is not: it may be a secret, or a gigabyte.
    """
    if _is_plainly_right(record):
        return
    for (name, allows), value in zip(_checks_of(type(record)), record, strict=True):
        if not allows(value):
            raise ValueError(f"{type(record).__name__}.{name} cannot be {_shape_of(value)}")


def _is_plainly_right(record: tuple[Any, ...]) -> bool:
    """Whether each field is of the one type that it may have, its floats are finite and its lists empty."""
    types, floats, lists = _plain_fields_of(type(record))
    return (
        tuple(map(type, record)) == types
        and isfinite(sum(map(record.__getitem__, floats)))  # one that is not makes the sum not finite
        and not any(map(record.__getitem__, lists))
    )


@cache
def _plain_fields_of(kind: type[tuple[Any, ...]]) -> tuple[tuple[type | None, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the type of each field, None where that alone does not say enough; which are floats; which are lists."""
    types = tuple(_plain_type_of(hint) for hint in get_type_hints(kind).values())
    floats = tuple(place for place, plain in enumerate(types) if plain is float)
    return types, floats, tuple(place for place, plain in enumerate(types) if plain is list)


def _plain_type_of(hint: Any) -> type | None:
    if get_origin(hint) is list:
        return list
    return hint if hint in (int, bool, str, bytes, float) else None


@cache
def _checks_of(kind: type[tuple[Any, ...]]) -> tuple[tuple[str, Check], ...]:
    return tuple((name, _check_of(hint)) for name, hint in get_type_hints(kind).items())


def _check_of(hint: Any) -> Check:
    """Returns the check of an annotation; a bool is no int here, and a float is a finite number."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda _value: True
    if hint is float:
        return lambda value: type(value) in (int, float) and isfinite(value)
    if hint in (int, bool, str, bytes, NoneType):
        return lambda value: type(value) is hint
    if origin is UnionType:
        ways = [_check_of(argument) for argument in arguments]
        return lambda value: any(allows(value) for allows in ways)
    if origin is list:
        return _check_of_list(arguments[0])
    if hint == dict[str, Any]:
        return lambda value: type(value) is dict and all(type(key) is str for key in value)
    raise AssertionError(f"messages hold nothing of type {hint}")


def _check_of_list(element: Any) -> Check:
    if element is Any:
        return lambda value: type(value) is list
    if element in (int, bool, str):  # long ones are common: no Python call for each element
        return lambda value: type(value) is list and set(map(type, value)) <= {element}
    allows = _check_of(element)
    return lambda value: type(value) is list and all(allows(each) for each in value)


def _shape_of(value: object) -> str:
    if isinstance(value, list | dict):
        return f"this {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
