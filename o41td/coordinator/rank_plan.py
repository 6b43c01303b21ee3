"""A rank's plan: its batches from a place on, each row as (block handle, row within the block). Pure arithmetic.

Batches are worked out in bursts: a few thousand rows of each lane that the rank serves, in a handful of vectorised
steps over the rows of all sources together, so the cost of Python is per batch and block, not per row. The first bursts
are small, so that the first batch need not wait for thousands of others.

Index kinds: n numbers the batches of the stage, the rank's k-th batch is n = position + rank + k * world_size, and lies
in lane n mod lanes as its batch n // lanes. A lane's reader goes through all of the lane's batches; where other ranks
share the lane, theirs are passed over, and count as taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.events import Burst, BurstRows, PlannedBatch, RowRun
from o41td.coordinator.lane_window import LaneWindow
from o41td.coordinator.piece_table import FoundRows, FoundRun, PieceTable
from o41td.coordinator.resident import ResidentBlocks
from o41td.index import SourceIndex
from o41td.named_tuples import of_columns
from o41td.order.digest import batch_words, place_words, word_digests
from o41td.order.lane import LaneReader
from o41td.order.stage import StageOrder

__all__ = ["RankPlan"]

_BURST_ROWS = 32_768
_FIRST_BURST_SHARE = 32
_LANE_SHARE = 64
_MAX_BURST_BATCHES = 256

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class _LaneState:
    number: int
    reader: LaneReader
    windows: dict[int, LaneWindow]
    opened_counts: IntArray


@dataclass(frozen=True, slots=True)
class _Batches:
    """Consecutive batches of one lane with equally many rows: `source` and `x` are `[batches, rows]`.

    `own` picks this rank's among them; they are numbered from `first_number` in steps of `number_step`.
    """

    source: NDArray[np.int32]
    x: IntArray
    own: slice
    first_number: int
    number_step: int


class RankPlan:
    """The batches of `rank` from a stage's batch `position` on."""

    def __init__(
        self,
        order: StageOrder,
        sources: Sequence[SourceIndex],
        *,
        stage: int,
        position: int,
        global_batch: int,
        rank: int,
        world_size: int,
        block_rows: int,
        resident: frozenset[int],
        table: BlockTable,
        burst_rows: int = _BURST_ROWS,
        num_batches: int | None = None,
    ) -> None:
        """Claims the blocks of the `resident` sources, which stay decoded, and no others until batches are asked for.

        `burst_rows` is about how many rows are worked out at a time. The plan ends after `num_batches` of this rank,
        where that is before the stage's end.
        """
        self.stage = stage
        self._order = order
        self._sources = sources
        self._position = position
        self._global_offset = global_batch - position
        self._rank = rank
        self._world_size = world_size
        self._block_rows = block_rows
        self._table = table
        self._lanes: dict[int, _LaneState] = {}
        self._next_round = 0
        self._rounds = order.rounds(position, world_size) if num_batches is None else num_batches
        step = math.gcd(world_size, order.lanes)
        self._lanes_served = order.lanes // step
        self._lane_stride = world_size // step
        self._burst_rows = burst_rows
        self._next_burst_rows = -(-burst_rows // _FIRST_BURST_SHARE)
        self._place_words = place_words(np.arange(order.batch_size, dtype=np.uint64))
        self._resident = {
            source: ResidentBlocks(order, sources[source], block_rows=block_rows, table=table)
            for source in sorted(resident)
        }
        self._closes_next: list[int] = []

    # ---- the plan --------------------------------------------------------------------------------------------------

    def next_batches(self) -> list[PlannedBatch]:
        """Returns some more batches in order; none where the stage is over for this rank."""
        num_rounds = self._burst_rounds()
        first = self._position + self._rank + self._next_round * self._world_size
        self._next_round += num_rounds
        lanes_served = self._lanes_served
        if lanes_served == 1:
            return self._batches_of_lane(first, num_rounds) if num_rounds else []
        batches: list[PlannedBatch | None] = [None] * num_rounds
        for start in range(min(lanes_served, num_rounds)):
            of_lane = self._batches_of_lane(first + start * self._world_size, -(-(num_rounds - start) // lanes_served))
            batches[start::lanes_served] = of_lane
        return [batch for batch in batches if batch is not None]

    def dropped_rows(self) -> int:
        """Returns this rank's share of the rows that the stage's end leaves out."""
        return self._order.dropped_rows(self._position, self._rank, self._world_size)

    def open_handles(self) -> list[int]:
        """Returns every claim that no batch handed out has closed."""
        handles = [handle for resident in self._resident.values() for handle in resident.handles]
        for lane in self._lanes.values():
            for window in lane.windows.values():
                handles.extend(window.handles.tolist())
        return handles + self._closes_next

    def _burst_rounds(self) -> int:
        """Rounds of the next burst: more each time, and from the second on enough of each lane to pay for its steps."""
        batch_size, lanes = self._order.batch_size, self._lanes_served
        num_rounds = max(1, min(_MAX_BURST_BATCHES, self._next_burst_rows // batch_size))
        if self._next_round:
            num_rounds = max(num_rounds, lanes * max(1, self._burst_rows // _LANE_SHARE // batch_size))
        self._next_burst_rows = min(2 * self._next_burst_rows, self._burst_rows)
        return num_rounds if self._rounds is None else min(num_rounds, self._rounds - self._next_round)

    def _batches_of_lane(self, first_number: int, num_own: int) -> list[PlannedBatch]:
        """Returns the rank's next `num_own` batches of the lane of batch `first_number`, which is the first of them."""
        number, first = first_number % self._order.lanes, first_number // self._order.lanes
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = self._opened(number, first)
        stride = self._lane_stride
        next_batch = lane.reader.next_batch
        rows = lane.reader.read_batches(first + (num_own - 1) * stride + 1 - next_batch)
        batch_size = self._order.batch_size
        num_full = rows.num_rows // batch_size
        number_step = self._order.lanes * stride
        at = num_full * batch_size
        planned: list[PlannedBatch] = []
        if num_full:
            shape = (num_full, batch_size)
            source, x = rows.source[:at].reshape(shape), rows.x[:at].reshape(shape)
            for start, stop in self._stretches(lane, x):
                num_before = len(planned)
                own_first = first - next_batch + num_before * stride - start
                of_stretch = _Batches(
                    source[start:stop],
                    x[start:stop],
                    slice(own_first, None, stride),
                    first_number + num_before * number_step,
                    number_step,
                )
                planned += self._planned(lane, of_stretch, max(0, -(-(stop - start - own_first) // stride)))
        if at < rows.num_rows:  # the lane's last batch, which is short
            source, x = rows.source[None, at:], rows.x[None, at:]
            number = first_number + len(planned) * number_step
            planned += self._planned(lane, _Batches(source, x, slice(0, None), number, number_step), 1)
        assert len(planned) == num_own, "the lane has fewer batches than its stage says"
        return planned

    def _stretches(self, lane: _LaneState, x: IntArray) -> list[tuple[int, int]]:
        """Returns where the batches `x` are best cut: those whose rows all come of one block are much less work."""
        whole = [(0, len(x))]
        if self._order.num_sources > 1 or self._resident or self._block_rows <= self._order.buffer_rows:
            return whole
        first, last = self._window(lane, 0).blocks_of(x.min(axis=1), x.max(axis=1))
        lone = np.where(first == last, first, -1)
        cuts = np.flatnonzero(np.diff(lone)) + 1
        return list(pairwise([0, *cuts.tolist(), len(x)])) if len(cuts) else whole

    def _opened(self, lane: int, batch_in_lane: int) -> _LaneState:
        counts = self._order.lane_mix(lane).counts_at(batch_in_lane * self._order.batch_size)
        fill_rows = max(self._order.batch_size, self._burst_rows // 2 // min(4, self._lanes_served))
        return _LaneState(lane, self._order.open_lane(lane, batch_in_lane, fill_rows=fill_rows), {}, counts)

    def _planned(self, lane: _LaneState, batches: _Batches, num_own: int) -> list[PlannedBatch]:
        present, table, found = self._located(lane, batches)
        shape, own = batches.x.shape, batches.own
        numbers = batches.first_number + np.arange(num_own) * batches.number_step
        digests = word_digests(
            batch_words((numbers + self._global_offset).astype(np.uint64))[:, None],
            self._place_words[: shape[1]],
            found.word.reshape(shape)[own],
        ).sum(axis=1, dtype=np.uint64)
        if isinstance(found, FoundRun):
            handle = int(table.handles[found.block])
            firsts = found.slot_row + np.arange(0, batches.x.size, shape[1])[own]
            rows: Sequence[RowRun | BurstRows] = of_columns(RowRun, repeat(handle), firsts.tolist())
            blocks = [(handle,)] * num_own
            closes = self._closed_by(lane, present, table, lambda _place: num_own - 1)
        else:
            block = found.block.reshape(shape)[own]
            burst = Burst(table.handles, block, found.slot_row.reshape(shape)[own])
            rows = of_columns(BurstRows, repeat(burst), range(num_own))
            used = np.zeros((num_own, len(table.handles)), np.bool_)
            used.reshape(-1)[block + np.arange(0, used.size, used.shape[1])[:, None]] = True
            names = table.handles[np.nonzero(used)[1]].tolist()
            ends = np.cumsum(used.sum(axis=1)).tolist()
            blocks = list(map(tuple, map(names.__getitem__, map(slice, [0, *ends], ends))))
            closes = self._closed_by(lane, present, table, lambda place: _last_of(used[:, place]))
        if not num_own:
            self._closes_next = closes.get(0, [])
        closing: list[tuple[int, ...]] = [()] * num_own
        for place, handles in closes.items() if num_own else ():
            closing[place] = tuple(handles)
        return of_columns(PlannedBatch, numbers.tolist(), digests.tolist(), repeat(shape[1]), rows, blocks, closing)

    def _located(self, lane: _LaneState, batches: _Batches) -> tuple[list[int], PieceTable, FoundRows | FoundRun]:
        """Returns the sources that rows come of, one table of their pieces, and where each row is found in it."""
        x, counts = batches.x.ravel(), np.array([batches.x.size])
        if self._order.num_sources > 1:
            counts = np.bincount(batches.source.ravel())
        present = np.flatnonzero(counts).tolist()
        if len(present) == 1:
            found = self._find(lane, present[0], x)
            return present, self._pieces(lane, present[0]), found
        # Rows are laid out source by source (small integers are sorted by radix), and put back together.
        by_source = np.argsort(batches.source.ravel().astype(np.min_scalar_type(len(counts))), kind="stable")
        x = x[by_source]
        parts: list[FoundRows] = []
        tables: list[PieceTable] = []
        start = first_block = 0
        for index in present:
            stop = start + int(counts[index])
            part = self._find(lane, index, x[start:stop])
            part = part.spread() if isinstance(part, FoundRun) else part
            parts.append(part._replace(block=part.block + first_block))
            tables.append(self._pieces(lane, index))
            first_block += len(tables[-1].handles)
            start = stop
        together = FoundRows(np.empty(len(x), np.uint64), np.empty_like(x), np.empty_like(x))
        for column, of_parts in zip(together, zip(*parts, strict=True), strict=True):
            column[by_source] = np.concatenate(of_parts)
        return present, PieceTable.joined(tables), together

    def _find(self, lane: _LaneState, source: int, x: IntArray) -> FoundRows | FoundRun:
        resident = self._resident.get(source)
        return self._window(lane, source).find(x) if resident is None else resident.find(lane.number, x)

    def _pieces(self, lane: _LaneState, source: int) -> PieceTable:
        resident = self._resident.get(source)
        return self._window(lane, source).pieces if resident is None else resident.pieces

    def _window(self, lane: _LaneState, source: int) -> LaneWindow:
        window = lane.windows.get(source)
        if window is None:
            window = lane.windows[source] = LaneWindow(
                self._order,
                self._sources[source],
                lane=lane.number,
                count=int(lane.opened_counts[source]),
                block_rows=self._block_rows,
                table=self._table,
            )
        return window

    def _closed_by(
        self, lane: _LaneState, present: Sequence[int], table: PieceTable, last_user: Callable[[int], int]
    ) -> dict[int, list[int]]:
        """Returns the handles of used-up blocks by the place of the batch that closes them.

        It is the last of this rank's to use the block (`last_user` of its place in the table), or the first where all
        its rows went to other ranks' batches. Where all these batches are other ranks', the block is left to the next
        batch, the lane's short last one.
        """
        closes: dict[int, list[int]] = {0: self._closes_next} if self._closes_next else {}
        self._closes_next = []
        start = 0
        for source in present:
            if source in self._resident:
                start += len(self._resident[source].pieces.handles)
                continue
            window = self._window(lane, source)
            stop = start + len(window.pieces.handles)
            for place in window.close_used_up().tolist():
                closes.setdefault(max(0, last_user(start + place)), []).append(int(table.handles[start + place]))
            start = stop
        return closes


def _last_of(used: NDArray[np.bool_]) -> int:
    """Returns the place of the last that is set, -1 where none is."""
    users = np.flatnonzero(used)
    return int(users[-1]) if len(users) else -1
