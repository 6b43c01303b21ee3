"""Excluded batches: ranges of numbers that every rank passes over, and what that does to positions and ranks.

Numbers stay what they are: batch 7 is the same batch whether or not batch 6 is excluded. What changes is who takes it.
From a position on, rank r of W takes the r-th, (r+W)-th, … batch *that is not excluded*, so all ranks stay in step
whatever the ranges are, and a range need not be a multiple of the world size.

A stretch is a run of numbers between two ranges. Within one, a rank takes every W-th number as it does in an order
without exclusions, only that the stretch's first number may fall to any rank.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

__all__ = ["NOTHING_EXCLUDED", "Exclusions", "rank_stretches"]


class Exclusions:
    """Half-open ranges of batch numbers to pass over. Immutable; equal for equal sets of numbers.

    Attributes:
        ranges: ``(start, stop)`` of each, ascending, neither touching nor overlapping.
    """

    __slots__ = ("_excluded_before", "_starts", "_taken_before", "ranges")

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        """Bring ``ranges``, in any order and however they overlap, into their one form.

        Raises:
            ValueError: If a range is not ``0 <= start < stop``.
        """
        self.ranges = _normal_ranges(ranges)
        self._starts = [start for start, _ in self.ranges]
        self._excluded_before = [0, *accumulate(stop - start for start, stop in self.ranges)]
        self._taken_before = [
            start - excluded for start, excluded in zip(self._starts, self._excluded_before, strict=False)
        ]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exclusions) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __contains__(self, number: int) -> bool:
        return self.count(number, number + 1) == 1

    def __repr__(self) -> str:
        return f"Exclusions({list(self.ranges)})"

    def count(self, start: int, stop: int) -> int:
        """Return how many of the numbers [start, stop) are excluded."""
        return self._count_below(stop) - self._count_below(start)

    def after(self, start: int, num_taken: int) -> int:
        """Return the position behind the next ``num_taken`` numbers from ``start`` on that are not excluded.

        It is directly behind the last of them (``start`` itself for none): what is excluded there is still to come.
        """
        if not num_taken:
            return start
        last_taken = start - self._count_below(start) + num_taken - 1
        return last_taken + self._excluded_before[bisect_right(self._taken_before, last_taken)] + 1

    def stretches(self, start: int, stop: int | None) -> Iterator[tuple[int, int | None]]:
        """Yield the runs of [start, stop) between excluded ranges; the last one has no end where ``stop`` is None."""
        for excluded_start, excluded_stop in self.ranges:
            if stop is not None and excluded_start >= stop:
                break
            if start < excluded_start:
                yield start, excluded_start
            start = max(start, excluded_stop)
        if stop is None or start < stop:
            yield start, stop

    def overlap(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the excluded parts of [start, stop)."""
        for excluded_start, excluded_stop in self.ranges:
            if excluded_start < stop and excluded_stop > start:
                yield max(start, excluded_start), min(stop, excluded_stop)

    def shifted(self, by: int) -> "Exclusions":
        """Return these with ``by`` subtracted from every number; what becomes negative is left out."""
        if not by or not self.ranges:
            return self
        return Exclusions((max(0, start - by), stop - by) for start, stop in self.ranges if stop > by)

    def _count_below(self, number: int) -> int:
        index = bisect_right(self._starts, number)
        if not index:
            return 0
        start, stop = self.ranges[index - 1]
        return self._excluded_before[index - 1] + min(number, stop) - start


def rank_stretches(
    position: int, rank: int, world_size: int, rounds: int | None, excluded: Exclusions
) -> Iterator[tuple[int, int, int | None]]:
    """Yield what ``rank`` takes in ``rounds`` rounds from ``position`` on, a stretch at a time.

    ``(start, first, num_batches)`` stands for the numbers ``start + first + k * world_size`` for each k below
    ``num_batches``; without end, where ``rounds`` is None and no range follows, ``num_batches`` is None. Stretches too
    short for this rank are left out.
    """
    end = None if rounds is None else excluded.after(position, rounds * world_size)
    taken = 0  # by all ranks, in the stretches before
    for start, stop in excluded.stretches(position, end):
        first = (rank - taken) % world_size
        if stop is None:
            yield start, first, None
            return
        num_batches = -(-(stop - start - first) // world_size)
        if num_batches > 0:
            yield start, first, num_batches
        taken += stop - start


def _normal_ranges(ranges: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((start, stop) for start, stop in ranges):
        if not 0 <= start < stop:
            raise ValueError(f"excluded batches [{start}, {stop}) / must be 0 <= start < stop")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


NOTHING_EXCLUDED = Exclusions()
