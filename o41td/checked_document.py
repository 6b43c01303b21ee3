"""Reads values out of a checkpoint's document, each checked: what is not as expected is a `CheckpointError`."""

from collections.abc import Mapping, Sequence
from reprlib import repr as short_repr
from typing import Any, TypeGuard

from o41td.errors import CheckpointError

__all__ = ["count_in", "expect_keys", "is_count", "list_in", "text_in"]

_MAX_TOLD = 10
_MAX_SHOWN = 80


def expect_keys(document: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Refuses a part of the document that lacks keys or has others."""
    if not isinstance(document, Mapping):
        raise CheckpointError(f"the checkpoint's `{where}` is not a table")
    missing = [key for key in keys if key not in document]
    unknown = [str(key)[:_MAX_SHOWN] for key in document if key not in keys and key != "checksum"]
    for problem, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            place = f" in `{where}`" if where else ""
            raise CheckpointError(
                f"the checkpoint {problem} {', '.join(f'`{name}`' for name in names[:_MAX_TOLD])}{place}"
            )


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an int of 0 or more that 64 bits hold with a sign."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def count_in(document: Mapping[str, Any], key: str) -> int:
    """An int of 0 or more."""
    value = document.get(key)
    if not is_count(value):
        raise CheckpointError(f"the checkpoint's `{key}` is {short_repr(value)}, not an integer of 0 or more")
    return value


def text_in(document: Mapping[str, Any], key: str) -> str:
    """A string."""
    value = document[key]
    if not isinstance(value, str):
        raise CheckpointError(f"the checkpoint's `{key}` is {short_repr(value)}, not text")
    return value


def list_in(document: Mapping[str, Any], key: str) -> list[Any]:
    """A list."""
    value = document[key]
    if not isinstance(value, list | tuple):
        raise CheckpointError(f"the checkpoint's `{key}` is {short_repr(value)}, not a list")
    return list(value)
