"""A rank's plan: its batches from a place on, each row as (block handle, row within the block). Pure arithmetic.

Batches are worked out in bursts: a few thousand rows of each lane that the rank serves, in a handful of vectorised
steps, so the cost of Python is per batch and block, not per row.

Index kinds: n numbers the batches of the stage, the rank's k-th batch is n = position + rank + k * world_size, and lies
in lane n mod lanes as its batch n // lanes. A lane's reader goes through all of the lane's batches; where other ranks
share the lane, theirs are passed over, and count as taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.events import PlannedBatch
from o41td.coordinator.lane_window import LaneWindow
from o41td.coordinator.resident import ResidentBlocks
from o41td.index import SourceIndex
from o41td.order.digest import row_digests
from o41td.order.lane import LaneReader, LaneRows
from o41td.order.stage import StageOrder

__all__ = ["RankPlan"]

_BURST_ROWS = 8192
_MAX_BURST_BATCHES = 256

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class _LaneState:
    reader: LaneReader
    windows: dict[int, LaneWindow]
    opened_counts: IntArray


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
    ) -> None:
        """`resident` are the sources that stay decoded. Nothing is claimed but their blocks until batches are asked for."""
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
        self._rounds = order.rounds(position, world_size)
        step = math.gcd(world_size, order.lanes)
        self._lanes_served = order.lanes // step
        self._lane_stride = world_size // step
        self._resident = {
            source: ResidentBlocks(
                stage=stage, source=source, unit_rows=sources[source].unit_rows, block_rows=block_rows, table=table
            )
            for source in sorted(resident)
        }
        self._closes_next: list[int] = []

    # ---- the plan --------------------------------------------------------------------------------------------------

    def next_batches(self) -> list[PlannedBatch]:
        """Returns some more batches in order; none where the stage is over for this rank."""
        per_lane = max(1, min(_MAX_BURST_BATCHES, _BURST_ROWS // self._order.batch_size) // self._lanes_served)
        num_rounds = per_lane * self._lanes_served
        if self._rounds is not None:
            num_rounds = min(num_rounds, self._rounds - self._next_round)
        first = self._position + self._rank + self._next_round * self._world_size
        numbers = [first + k * self._world_size for k in range(num_rounds)]
        self._next_round += num_rounds
        batches: dict[int, PlannedBatch] = {}
        for start in range(min(self._lanes_served, num_rounds)):
            own = numbers[start :: self._lanes_served]
            batches.update(self._batches_of_lane(own))
        return [batches[number] for number in numbers]

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

    def _batches_of_lane(self, numbers: Sequence[int]) -> dict[int, PlannedBatch]:
        lane_number = numbers[0] % self._order.lanes
        first = numbers[0] // self._order.lanes
        last = numbers[-1] // self._order.lanes
        lane = self._lanes.get(lane_number)
        if lane is None:
            lane = self._lanes[lane_number] = self._opened(lane_number, first)
        skipped = first - lane.reader.next_batch
        rows = lane.reader.read_batches(last + 1 - lane.reader.next_batch)
        assert rows.num_batches == skipped + last + 1 - first, "the lane has fewer batches than its stage says"
        return self._planned(lane_number, lane, rows, numbers)

    def _opened(self, lane: int, batch_in_lane: int) -> _LaneState:
        position = batch_in_lane * self._order.batch_size
        counts = self._order.lane_mix(lane).counts_at(position)
        return _LaneState(self._order.open_lane(lane, batch_in_lane), {}, counts)

    def _planned(
        self, lane_number: int, lane: _LaneState, rows: LaneRows, numbers: Sequence[int]
    ) -> dict[int, PlannedBatch]:
        sizes = np.diff(rows.offsets)
        batch = np.repeat(np.arange(rows.num_batches), sizes)  # place of each row's batch in this burst
        place = np.arange(rows.num_rows) - rows.offsets[batch]
        number = (rows.first_batch + batch) * self._order.lanes + lane_number
        handles = np.empty(rows.num_rows, np.int64)
        block_rows = np.empty(rows.num_rows, np.int64)
        shards = np.empty(rows.num_rows, np.int64)
        shard_rows = np.empty(rows.num_rows, np.int64)
        own = [n // self._order.lanes - rows.first_batch for n in numbers]
        blocks: list[list[int]] = [[] for _ in own]
        closes: list[list[int]] = [[] for _ in own]
        present = np.flatnonzero(np.bincount(rows.source)).tolist()
        for source in present:
            chosen = slice(None) if len(present) == 1 else np.flatnonzero(rows.source == source)
            x = rows.x[chosen]
            if source in self._resident:
                unit, row = self._order.locate(source, lane_number, x)
                handle, block_row = self._resident[source].rows_at(unit, row)
                index = self._sources[source]
                shards[chosen] = index.unit_shard[unit]
                shard_rows[chosen] = index.unit_first_row[unit] + row
                distinct = np.flatnonzero(np.bincount(handle))
                dense = np.empty(int(distinct[-1]) + 1, np.int64)
                dense[distinct] = np.arange(len(distinct))
                self._note_use(batch[chosen], dense[handle], distinct, own, blocks)
            else:
                window = self._window(lane_number, lane, source)
                located = window.locate(x)
                handle, block_row = located.handles[located.block], located.row
                shards[chosen], shard_rows[chosen] = located.shard, located.shard_row
                uses = self._note_use(batch[chosen], located.block, located.handles, own, blocks)
                self._note_closed(window, uses, located.handles, own, closes)
            handles[chosen], block_rows[chosen] = handle, block_row
        digests = row_digests(number + self._global_offset, place, rows.source, shards, shard_rows)
        sums = np.add.reduceat(digests, rows.offsets[:-1], dtype=np.uint64).tolist()
        if self._closes_next:
            closes[0].extend(self._closes_next)
            self._closes_next = []
        offsets = rows.offsets.tolist()
        planned = {}
        for i, (n, at) in enumerate(zip(numbers, own, strict=True)):
            start, stop = offsets[at], offsets[at + 1]
            planned[n] = PlannedBatch(
                number=n,
                digest=sums[at],
                handles=handles[start:stop],
                rows=block_rows[start:stop],
                blocks=tuple(blocks[i]),
                closes=tuple(closes[i]),
            )
        return planned

    def _window(self, lane_number: int, lane: _LaneState, source: int) -> LaneWindow:
        window = lane.windows.get(source)
        if window is None:
            window = lane.windows[source] = LaneWindow(
                self._order,
                self._sources[source],
                lane=lane_number,
                count=int(lane.opened_counts[source]),
                block_rows=self._block_rows,
                table=self._table,
            )
        return window

    @staticmethod
    def _note_use(
        batch: IntArray, block: IntArray, handles: IntArray, own: list[int], blocks: list[list[int]]
    ) -> IntArray:
        """Counts rows by (batch, block) and adds the blocks of this rank's batches; returns the counts."""
        num_batches = int(batch[-1]) + 1
        counts = np.bincount(batch * len(handles) + block, minlength=num_batches * len(handles))
        counts = counts.reshape(num_batches, len(handles))
        names = handles.tolist()
        for i, at in enumerate(own):
            if at < num_batches:
                blocks[i].extend(names[j] for j in np.flatnonzero(counts[at]).tolist())
        return counts

    def _note_closed(
        self, window: LaneWindow, uses: IntArray, handles: IntArray, own: list[int], closes: list[list[int]]
    ) -> None:
        """Lets this rank's last batch that uses a used-up block close it, or its next one where the block's last rows,
        or all of them, were other ranks'."""
        for place in window.close_used_up(uses.sum(axis=0)).tolist():
            handle = int(handles[place])
            last = int(np.flatnonzero(uses[:, place])[-1])
            i = int(np.searchsorted(own, last))
            if i < len(own):
                closes[i].append(handle)
            else:
                self._closes_next.append(handle)
