"""A lane's window on one source: which block, and which row of it, each coming row is, and when a block is used up.

Blocks are entered in line order as rows of them come up, and closed when the last of their rows has. Rows that had come
before the place at which the window was opened are worked out once: by the shuffle's bound they lie within 2 R of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import LaneBlocks
from o41td.coordinator.events import BlockKey
from o41td.index import SourceIndex
from o41td.order.stage import StageOrder

__all__ = ["LaneWindow", "WindowRows"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Where rows are: `block` indexes `handles`, `row` is within the block; `shard` and `shard_row` name the record."""

    block: IntArray
    row: IntArray
    shard: IntArray
    shard_row: IntArray
    handles: IntArray


class LaneWindow:
    """The open blocks of one (source, lane), oldest first."""

    def __init__(
        self, order: StageOrder, index: SourceIndex, *, lane: int, count: int, block_rows: int, table: BlockTable
    ) -> None:
        """Opens behind the first `count` rows of the lane's rows of this source."""
        self._index = index
        self._lane = lane
        self._table = table
        line = order.lane_line(index.source, lane)
        reach = order.buffer_rows if order.buffer_rows > 1 else 0
        epoch_x = count // line.rows_per_epoch * line.rows_per_epoch
        self._all_came_below = max(epoch_x, count - reach + 1 if reach else count)
        self._came = (
            self._rows_that_came(order, count, max(epoch_x, count - 2 * reach)) if reach else np.empty(0, np.int64)
        )
        self._blocks = LaneBlocks(line, index.unit_rows, block_rows=block_rows, x_start=self._all_came_below)
        self._x_stop = self._all_came_below
        # Open blocks, and the pieces of all of them end to end; a piece names its block by the place in `_handles`.
        self._handles = np.empty(0, np.int64)
        self._left = np.empty(0, np.int64)
        self._block_x = np.empty(0, np.int64)
        self._piece_x = np.empty(0, np.int64)
        self._piece_block = np.empty(0, np.int64)
        self._piece_shard = np.empty(0, np.int64)
        self._piece_shard_row = np.empty(0, np.int64)

    def _rows_that_came(self, order: StageOrder, count: int, earlier: int) -> IntArray:
        walk = order.open_walk(self._index.source, self._lane, earlier)
        came = walk.take(count - earlier)
        return np.sort(came[came >= self._all_came_below])

    @property
    def handles(self) -> IntArray:
        """Handles of the blocks that are claimed and not closed."""
        return self._handles

    def locate(self, x: IntArray) -> WindowRows:
        """Returns where the rows at `x` are, entering blocks up to the last of them."""
        self._enter(int(x.max()) + 1)
        piece = np.searchsorted(self._piece_x, x, side="right") - 1
        block = self._piece_block[piece]
        return WindowRows(
            block=block,
            row=x - self._block_x[block],
            shard=self._piece_shard[piece],
            shard_row=self._piece_shard_row[piece] + x - self._piece_x[piece],
            handles=self._handles,
        )

    def close_used_up(self, rows_per_block: IntArray) -> IntArray:
        """Notes that so many rows of each open block were taken; returns the places of the blocks with none left.

        They leave the window: places and handles given out before are those of before this call.
        """
        self._left = self._left - rows_per_block
        assert not len(self._left) or self._left.min() >= 0, "more rows than a block has"
        closed = np.flatnonzero(self._left == 0)
        if len(closed):
            keep = self._left > 0
            kept_pieces = keep[self._piece_block]
            new_place = np.cumsum(keep) - 1
            self._piece_block = new_place[self._piece_block[kept_pieces]]
            self._piece_x, self._piece_shard, self._piece_shard_row = (
                column[kept_pieces] for column in (self._piece_x, self._piece_shard, self._piece_shard_row)
            )
            self._handles, self._left, self._block_x = (
                column[keep] for column in (self._handles, self._left, self._block_x)
            )
        return closed

    def _enter(self, x_stop: int) -> None:
        entered = []
        while self._x_stop < x_stop:
            block = self._blocks.next_block()
            self._x_stop = block.x_stop
            entered.append(block)
        if not entered:
            return
        index, key = self._index, self._index.source
        handles = [self._table.claim(BlockKey(index.stage, key, self._lane, block.x_start), block) for block in entered]
        starts = np.array([block.x_start for block in entered], np.int64)
        stops = np.array([block.x_stop for block in entered], np.int64)
        came = np.searchsorted(self._came, stops) - np.searchsorted(self._came, starts)
        came += np.clip(self._all_came_below - starts, 0, stops - starts)
        counts = [len(block.pieces) for block in entered]
        unit = np.array([piece.unit for block in entered for piece in block.pieces], np.int64)
        row = np.array([piece.row_start for block in entered for piece in block.pieces], np.int64)
        block_row = np.array([piece.block_row for block in entered for piece in block.pieces], np.int64)
        place = np.repeat(np.arange(len(self._handles), len(self._handles) + len(entered)), counts)
        self._piece_x = np.concatenate([self._piece_x, np.repeat(starts, counts) + block_row])
        self._piece_block = np.concatenate([self._piece_block, place])
        self._piece_shard = np.concatenate([self._piece_shard, index.unit_shard[unit].astype(np.int64)])
        self._piece_shard_row = np.concatenate([self._piece_shard_row, index.unit_first_row[unit] + row])
        self._handles = np.concatenate([self._handles, np.array(handles, np.int64)])
        self._left = np.concatenate([self._left, stops - starts - came])
        self._block_x = np.concatenate([self._block_x, starts])
