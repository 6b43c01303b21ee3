"""What a user types as `exclude`: ranges of global batches, in their one form."""

from collections.abc import Sequence
from typing import TypeGuard

from o41td.config_model import whole_number
from o41td.exclusions import Exclusions

__all__ = ["batch_ranges"]

_number = whole_number(0, 2**63 - 1, high_name="2^63-1")


def batch_ranges(value: object) -> tuple[tuple[int, int], ...]:
    """A validator of half-open ranges ``[start, stop]``: sorted, those that touch or overlap as one.

    Raises:
        ValueError: It is no list of pairs of integers, or a range is empty.
    """
    if not _is_list(value):
        raise ValueError(f"{value!r} is not a list; give ranges of batches such as [[41200, 41300]]")
    return Exclusions(_range_of(item) for item in value).ranges


def _range_of(item: object) -> tuple[int, int]:
    if not _is_list(item) or len(item) != 2:
        raise ValueError(f"{item!r} is not a range; give [start, stop], from batch `start` to before batch `stop`")
    start, stop = _number(item[0]), _number(item[1])
    if start >= stop:
        raise ValueError(f"[{start}, {stop}] excludes nothing; give [start, stop] with start below stop")
    return start, stop


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
