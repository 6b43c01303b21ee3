"""Byte ranges of an object: which ones a read needs, and in which requests they are asked for. Pure.

A request costs a round trip, whatever it brings, so ranges that lie near one another are asked for together; what lies
between them is waste, of which little is allowed. A large range is cut into parts that travel side by side, since one
connection to an object store is slower than a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = ["ByteRange", "column_ranges", "covered", "plan_requests"]


class ByteRange(NamedTuple):
    """Bytes [start, stop) of an object."""

    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Its length."""
        return self.stop - self.start


def column_ranges(metadata: Any, row_groups: Iterable[int], column_indices: Sequence[int]) -> list[ByteRange]:
    """Returns where the chunks of some columns of some row groups lie.

    Args:
        metadata: A `pyarrow.parquet.FileMetaData`. Only these columns' is looked at.
        row_groups: The row groups.
        column_indices: The leaf columns.
    """
    ranges = []
    for row_group in row_groups:
        group = metadata.row_group(row_group)
        for index in column_indices:
            chunk = group.column(index)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                start = chunk.dictionary_page_offset
            ranges.append(ByteRange(start, start + chunk.total_compressed_size))
    return ranges


def plan_requests(
    ranges: Iterable[ByteRange], *, max_gap_bytes: int, max_waste: float, part_bytes: int
) -> list[ByteRange]:
    """Returns the requests that bring some ranges, in the order of the object.

    Args:
        ranges: What is needed; it may overlap.
        max_gap_bytes: A gap between two ranges that is larger is never asked for.
        max_waste: What gaps may come to, as a part of what is needed. The smallest are closed first.
        part_bytes: A request for more is cut into equal parts of at most this.
    """
    runs = _united(ranges)
    left = int(max_waste * sum(run.num_bytes for run in runs))
    closed = set()
    gaps = [after.start - before.stop for before, after in pairwise(runs)]
    for gap, place in sorted((gap, place) for place, gap in enumerate(gaps)):
        if gap > max_gap_bytes or gap > left:
            break
        left -= gap
        closed.add(place)
    joined: list[ByteRange] = []
    for place, run in enumerate(runs):
        if place and place - 1 in closed:
            joined[-1] = ByteRange(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return [part for run in joined for part in _parts_of(run, part_bytes)]


def covered(wanted: ByteRange, ranges: Iterable[ByteRange]) -> bool:
    """Whether every byte of a range lies in one of others."""
    at = wanted.start
    for run in _united(ranges):
        if run.start <= at < run.stop:
            at = run.stop
    return at >= wanted.stop


def _united(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes as ranges that neither overlap nor touch, in order."""
    united: list[ByteRange] = []
    for part in sorted(part for part in ranges if part.num_bytes > 0):
        if united and part.start <= united[-1].stop:
            united[-1] = ByteRange(united[-1].start, max(united[-1].stop, part.stop))
        else:
            united.append(part)
    return united


def _parts_of(run: ByteRange, part_bytes: int) -> list[ByteRange]:
    count = max(1, -(-run.num_bytes // part_bytes))
    edges = [run.start + run.num_bytes * part // count for part in range(count + 1)]
    return [ByteRange(start, stop) for start, stop in pairwise(edges)]
