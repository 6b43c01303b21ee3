"""Which source gives which row of a lane: exact quotas per chunk, order inside a chunk by hash.

A lane's rows fall into segments. In a segment the active sources, those with rows left, share every chunk of 256 rows
as ``ShareTable`` says. The first chunk that some active source can no longer fill is short: each gives what it still
has of its quota, those left with nothing leave, and the next segment starts with counts from zero among the others. In
an infinite stage no source runs out: one endless segment.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from o41td.order.hash import hash_range
from o41td.order.shares import CHUNK_ROWS, ShareTable

__all__ = ["LaneMix", "MixPlan", "Segment"]

_SLOT_MASK = np.uint64(CHUNK_ROWS - 1)
_HASH_MASK = np.uint64(~(CHUNK_ROWS - 1) & ((1 << 64) - 1))
_COUNT_ERROR = 2  # strictly above what ShareTable.counts is away from the exact shares
_FLOAT_ERROR = 1e-14  # relative, above that of a few operations on doubles
_SEARCH_WIDTH = 16
_MOST_TABLES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a lane with one set of active sources.

    Attributes:
        start: First lane position t of the segment.
        stop: Lane position after its last row; None if it never ends.
        taken: Rows each source gave before the segment, ``[sources] int64``.
        active: The active sources, ascending, ``[active] int32``.
        table: Their counts per chunk.
        num_chunks: Full chunks; None if it never ends.
        short: Rows of each active source in the short chunk that ends the segment, ``[active] int64``.
    """

    start: int
    stop: int | None
    taken: npt.NDArray[np.int64]
    active: npt.NDArray[np.int32]
    table: ShareTable
    num_chunks: int | None
    short: npt.NDArray[np.int64]


class MixPlan:
    """The segments of a lane, found as they are needed; lanes with equal row counts share one."""

    def __init__(
        self,
        shares: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        *,
        infinite: bool,
        tables: dict[bytes, ShareTable],
    ) -> None:
        """Plan the mix of sources with ``rows[s]`` rows in the lane (in an epoch, if infinite) and integer ``shares``.

        ``tables`` keeps the share table of each set of active sources met so far; plans of one stage share it.
        """
        self.rows = rows
        self.num_sources = len(shares)
        self._shares = shares
        self._infinite = infinite
        self._tables = tables
        self._segments: list[Segment] = []
        self._left = rows.copy()
        self._taken = np.zeros(len(shares), dtype=np.int64)
        self._planned_rows = 0
        if infinite and rows.any():
            self._segments.append(self._endless_segment())

    def segment(self, index: int) -> Segment | None:
        """Return the index-th segment, or None if there are fewer."""
        while index >= len(self._segments):
            if self._infinite or not self._left.any():
                return None
            self._plan_segment()
        return self._segments[index]

    def segment_at(self, position: int) -> tuple[int, Segment]:
        """Return the segment (and its index) that holds lane position ``position``; the last one at the lane's end."""
        index = 0
        while (segment := self.segment(index)) is not None:
            if segment.stop is None or position < segment.stop or self.segment(index + 1) is None:
                return index, segment
            index += 1
        raise ValueError(f"lane position {position} / the lane has no rows")

    def _table(self, active: npt.NDArray[np.int32]) -> ShareTable:
        name = active.tobytes()
        table = self._tables.get(name)
        if table is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            table = self._tables[name] = ShareTable(self._shares[active])
        return table

    def _endless_segment(self) -> Segment:
        active = np.flatnonzero(self.rows).astype(np.int32)
        return Segment(
            start=0,
            stop=None,
            taken=self._taken,
            active=active,
            table=self._table(active),
            num_chunks=None,
            short=np.zeros(len(active), dtype=np.int64),
        )

    def _plan_segment(self) -> None:
        active = np.flatnonzero(self._left).astype(np.int32)
        table = self._table(active)
        left = self._left[active]
        num_chunks, before, after = _until_short(table, left)
        short = np.minimum(after - before, left - before)
        stop = self._planned_rows + num_chunks * CHUNK_ROWS + int(short.sum())
        self._segments.append(
            Segment(
                start=self._planned_rows,
                stop=stop,
                taken=self._taken.copy(),
                active=active,
                table=table,
                num_chunks=num_chunks,
                short=short,
            )
        )
        self._planned_rows = stop
        self._left[active] -= before + short
        self._taken[active] += before + short


def _until_short(
    table: ShareTable, left: npt.NDArray[np.int64]
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return how many chunks every source with ``left`` rows can fill, and the counts after those and one more.

    That is the first k with counts(k + 1) > left anywhere. Counts are less than ``_COUNT_ERROR`` from the exact shares,
    which brackets k; the rest is a search over a monotone predicate, many candidates at once.
    """
    per_chunk = table.shares * (CHUNK_ROWS / table.total)
    low = max(0, math.floor(((left - _COUNT_ERROR) / per_chunk).min() * (1 - _FLOAT_ERROR)) - 1)
    high = max(0, math.ceil(((left + _COUNT_ERROR) / per_chunk).min() * (1 + _FLOAT_ERROR)))
    while high - low > _SEARCH_WIDTH:
        step = -(-(high - low) // _SEARCH_WIDTH)
        candidates = np.arange(low, high, step, dtype=np.int64)
        is_short = (table.counts(candidates + 1) > left).any(axis=1)
        first = int(np.argmax(is_short)) if is_short.any() else len(candidates)
        high = int(candidates[first]) if first < len(candidates) else high
        low = int(candidates[first - 1]) + 1 if first else low
    counts = table.counts(np.arange(low, high + 2, dtype=np.int64))
    is_full = (counts[1:-1] <= left).all(axis=1)
    first = int(np.argmin(np.append(is_full, False)))  # at the latest it is `high`
    return low + first, counts[first], counts[first + 1]


class LaneMix:
    """The sequence of sources of one lane: the source of any row, and the counts at any position."""

    def __init__(self, plan: MixPlan, key: int) -> None:
        """Order the rows of ``plan`` inside chunks by the stream ``key`` (of seed, stage, lane and purpose MIX)."""
        self.plan = plan
        self._key = key

    def counts_at(self, position: int) -> npt.NDArray[np.int64]:
        """Return how many of the lane's first ``position`` rows each source gave: ``[sources] int64``.

        Costs one evaluation of the share table and at most one chunk's order.
        """
        if position == 0:
            return np.zeros(self.plan.num_sources, dtype=np.int64)
        _, segment = self.plan.segment_at(position)
        counts = segment.taken.copy()
        offset = position - segment.start
        chunk = offset // CHUNK_ROWS
        if segment.num_chunks is not None:
            chunk = min(chunk, segment.num_chunks)
        counts[segment.active] += segment.table.counts(np.array([chunk], dtype=np.int64))[0]
        rest = offset - chunk * CHUNK_ROWS
        if rest:
            if segment.num_chunks is not None and chunk == segment.num_chunks:
                sources = self._short_chunk(segment)
            else:
                sources = self._chunks(segment, chunk, chunk + 1)
            assert rest <= len(sources), "position past the end of the lane"
            counts += np.bincount(sources[:rest], minlength=len(counts))
        return counts

    def rows(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the sources of the lane's rows [start, stop), fewer at the lane's end: ``[rows] int32``."""
        parts: list[npt.NDArray[np.int32]] = []
        if stop > start and self.plan.segment(0) is not None:
            index, segment = self.plan.segment_at(start)
            while True:
                end = stop if segment.stop is None else min(stop, segment.stop)
                if end > start:
                    parts.append(self._segment_rows(segment, start - segment.start, end - segment.start))
                    start = end
                index += 1
                following = self.plan.segment(index) if start < stop else None
                if following is None:
                    break
                segment = following
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)

    def position_of(self, source: int, count: int) -> int | None:
        """Return the lane position of the row that ``source`` gives after ``count`` others; None if there is none."""
        index = 0
        while (segment := self.plan.segment(index)) is not None:
            index += 1
            slot = int(np.searchsorted(segment.active, source))
            if slot == len(segment.active) or segment.active[slot] != source:
                continue
            local = count - int(segment.taken[source])
            chunk = self._chunk_of(segment, slot, local)
            before = int(segment.table.counts(np.array([chunk], dtype=np.int64))[0, slot])
            if chunk == segment.num_chunks:
                if local - before >= int(segment.short[slot]):
                    continue
                sources = self._short_chunk(segment)
            else:
                sources = self._chunks(segment, chunk, chunk + 1)
            place = int(np.flatnonzero(sources == source)[local - before])
            return segment.start + chunk * CHUNK_ROWS + place
        return None

    def _chunk_of(self, segment: Segment, slot: int, count: int) -> int:
        """Return the full chunk in which active source ``slot`` gives row ``count``, or ``num_chunks`` if in none."""
        share = int(segment.table.shares[slot])
        low = max(0, (count - _COUNT_ERROR) * segment.table.total // (CHUNK_ROWS * share) - 1)
        high = (count + 1 + _COUNT_ERROR) * segment.table.total // (CHUNK_ROWS * share) + 1
        if segment.num_chunks is not None:
            low, high = min(low, segment.num_chunks), min(high, segment.num_chunks)
        while low < high:
            middle = (low + high) // 2
            if int(segment.table.counts(np.array([middle + 1], dtype=np.int64))[0, slot]) > count:
                high = middle
            else:
                low = middle + 1
        return low

    def _segment_rows(self, segment: Segment, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the sources of rows [start, stop) counted from the segment's start."""
        if len(segment.active) == 1:
            return np.full(stop - start, segment.active[0], dtype=np.int32)
        first = start // CHUNK_ROWS
        last = -(-stop // CHUNK_ROWS)
        parts: list[npt.NDArray[np.int32]] = []
        if segment.num_chunks is not None and last > segment.num_chunks:
            first, last = min(first, segment.num_chunks), segment.num_chunks
            parts.append(self._short_chunk(segment))
        if last > first:
            parts.insert(0, self._chunks(segment, first, last))
        sources = parts[0] if len(parts) == 1 else np.concatenate(parts)
        skipped = start - first * CHUNK_ROWS
        return sources[skipped : skipped + stop - start]

    def _chunks(self, segment: Segment, first: int, last: int) -> npt.NDArray[np.int32]:
        """Return the sources of the full chunks [first, last) of a segment, ``[256 * chunks] int32``."""
        num_chunks = last - first
        if len(segment.active) == 1:
            return np.full(num_chunks * CHUNK_ROWS, segment.active[0], dtype=np.int32)
        counts = segment.table.counts(np.arange(first, last + 1, dtype=np.int64))
        slots = np.repeat(np.tile(segment.active, num_chunks), np.diff(counts, axis=0).ravel())
        start = segment.start + first * CHUNK_ROWS
        order = hash_range(self._key, start, start + num_chunks * CHUNK_ROWS).reshape(num_chunks, CHUNK_ROWS)
        order &= _HASH_MASK
        order |= np.arange(CHUNK_ROWS, dtype=np.uint64)
        order.sort(axis=1)  # all values differ: the slot is in the low bits
        order &= _SLOT_MASK
        order += np.arange(0, num_chunks * CHUNK_ROWS, CHUNK_ROWS, dtype=np.uint64)[:, None]
        return slots[order.ravel().view(np.int64)]

    def _short_chunk(self, segment: Segment) -> npt.NDArray[np.int32]:
        """Return the sources of the short chunk that ends a segment."""
        assert segment.num_chunks is not None
        slots = np.repeat(segment.active, segment.short)
        start = segment.start + segment.num_chunks * CHUNK_ROWS
        order = hash_range(self._key, start, start + len(slots)) & _HASH_MASK
        order |= np.arange(len(slots), dtype=np.uint64)
        order.sort()
        order &= _SLOT_MASK
        return slots[order.view(np.int64)]
