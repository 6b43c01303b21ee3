"""Reads JSON that somebody else may have written: plain data within bounds, or a ValueError that says why not.

`json.loads` by itself takes any size, keeps the last of two equal keys, reads NaN and Infinity, which are no JSON, and
fails with a RecursionError where lists are nested deeply.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["MAX_DEPTH", "parse_plain_json", "refuse_deep_nesting"]

MAX_DEPTH = 64
"""Lists and tables within one another; the documents of this package have fewer than ten."""

_LEAVES = frozenset((str, int, float, bool, type(None)))


def parse_plain_json(text: str | bytes, *, max_bytes: int) -> Any:
    """Returns what a JSON text holds.

    Args:
        text: The text; bytes are UTF-8.
        max_bytes: How long it may be (in characters, where it is text).

    Raises:
        ValueError: It is no JSON; too long or too deep; or has a key twice in one object, a number that is not finite,
            or an integer of thousands of digits.
    """
    if len(text) > max_bytes:
        raise ValueError(f"it is {len(text)} bytes long, and at most {max_bytes} are read")
    try:
        document = json.loads(text, object_pairs_hook=_unrepeated, parse_constant=_not_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    refuse_deep_nesting(document)
    return document


def refuse_deep_nesting(document: object) -> None:
    """Refuses a document that is nested too deeply to be copied, compared or shown.

    Raises:
        ValueError: It is, or it contains itself.
    """
    level = [document]
    for _depth in range(MAX_DEPTH):
        below: list[object] = []
        for value in level:
            parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
            if not _LEAVES.issuperset(map(type, parts)):  # long lists of numbers or names are passed over at once
                below.extend(parts)
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of an object's pairs."""
    document = dict(pairs)
    if len(document) < len(pairs):
        [(twice, _times)] = Counter(key for key, _value in pairs).most_common(1)
        raise ValueError(f"key {twice[:80]!r} stands twice in one object")
    return document


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return number
