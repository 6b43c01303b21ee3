"""Where two plain documents differ, each place by its path: what a refusal tells the user."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["differences_of"]


def differences_of(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Compares two JSON-able documents in depth.

    Lists of tables are compared place by place. Lists of plain values that differ are one difference: a short list as
    a whole, a long one by what only the old and only the new have.

    Args:
        old: The one document.
        new: The other.
        path: The path to both.

    Returns:
        (path, old value, new value) in the old document's order, None for a key that one lacks.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        found = (differences_of(old.get(key), new.get(key), f"{path}.{key}" if path else str(key)) for key in keys)
        return [difference for differences in found for difference in differences]
    if _is_list(old) and _is_list(new):
        return _list_differences(old, new, path)
    same = type(old) is type(new) or not (isinstance(old, bool) or isinstance(new, bool))
    return [] if same and old == new else [(path, old, new)]


def _list_differences(old: Sequence[Any], new: Sequence[Any], path: str) -> list[tuple[str, Any, Any]]:
    """The differences of two lists."""
    if not any(isinstance(item, Mapping) or _is_list(item) for item in (*old, *new)):
        if list(old) == list(new):
            return []
        if max(len(old), len(new)) <= 8:
            return [(path, list(old), list(new))]
        kept_old, kept_new = set(old), set(new)
        gone = [item for item in old if item not in kept_new]
        added = [item for item in new if item not in kept_old]
        if gone or added:
            return [(path, gone, added)]
        place = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            return [(f"{path}.length", len(old), len(new))]
        return [(f"{path}[{place}]", old[place], new[place])]
    found = []
    for index in range(max(len(old), len(new))):
        left = old[index] if index < len(old) else None
        right = new[index] if index < len(new) else None
        found.extend(differences_of(left, right, f"{path}[{index}]"))
    return found


def _is_list(value: object) -> bool:
    """Whether a value is a list of the document."""
    return isinstance(value, list | tuple)
