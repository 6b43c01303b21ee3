"""Numbers and kinds of things in sentences: "1 shard", "2 batches", "an int". Pure."""

from __future__ import annotations

__all__ = ["count_text", "counted_text", "kind_text"]


def count_text(count: float) -> str:
    """A whole number with its thousands apart: "98,304"."""
    return f"{count:,.0f}"


def counted_text(count: int, one: str, many: str = "") -> str:
    """A number of things: "1 shard", "1,024 shards", "2 batches"."""
    return f"{count_text(count)} {one if count == 1 else many or f'{one}s'}"


def kind_text(value: object) -> str:
    """What kind of thing a value is: "a dict", "an int", "None"."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
