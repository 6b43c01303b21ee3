"""A lane's window on one source: which block, and row of its slot, each coming row is, and when a block is used up.

Blocks are entered in line order as rows of them come up, and closed when the last of their rows has. Rows that had come
before the place at which the window was opened are worked out once: by the shuffle's bound they lie within 2 R of it. A
block all of whose rows had come by then is never claimed.

A slot has its block's rows in the order in which they leave the shuffle, so a row's place in the slot is the number of
rows of that block that came before it: counting, not searching. And a batch is a few runs of neighbouring rows, mostly
one where a block is larger than the shuffle's buffer: gathering it is copying, where rows strewn over the window would
cost a cache miss or two for every value of a narrow column (measured: 5 to 30 ns, against 1 to 2).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import LaneBlocks, PieceRuns
from o41td.coordinator.events import BlockKey
from o41td.coordinator.piece_table import FoundRows, FoundRun, PieceTable, words_of
from o41td.index import SourceIndex
from o41td.order.digest import moved_words
from o41td.order.stage import StageOrder

__all__ = ["LaneWindow"]

IntArray = NDArray[np.int64]


class LaneWindow:
    """The open blocks of one (source, lane), oldest first.

    Blocks are trimmed from the front only. One that is used up between open ones stays in the table with no rows left;
    so does one that was never claimed, with handle -1. The shuffle's bound keeps these few.
    """

    def __init__(
        self, order: StageOrder, index: SourceIndex, *, lane: int, count: int, block_rows: int, table: BlockTable
    ) -> None:
        """Opens behind the first `count` rows of the lane's rows of this source."""
        self._index = index
        self._lane = lane
        self._table = table
        line = order.lane_line(index.source, lane)
        reach = order.buffer_rows if order.buffer_rows > 1 else 0
        self._is_shuffled = reach > 0
        epoch_x = count // line.rows_per_epoch * line.rows_per_epoch
        self._all_came_below = max(epoch_x, count - reach + 1 if reach else count)
        self._came = self._rows_that_came(order, count, epoch_x + line.rows_per_epoch)
        self._came_stop = int(self._came[-1]) + 1 if len(self._came) else self._all_came_below
        self._blocks = LaneBlocks(line, index.unit_rows, block_rows=block_rows, x_start=self._all_came_below)
        self._x_stop = self._all_came_below  # rows below it belong to blocks that were entered
        self._order = order
        self._start = _NOTHING  # of each block in the table: its first row
        self._rows = _NOTHING  # its rows
        self._left = _NOTHING  # its rows that have not come
        self._coming = _NOTHING  # its rows among those found last
        self.pieces = PieceTable.empty()
        # The piece of each row from `_x_low` on: numbers that count all pieces ever entered; eight bytes a live row.
        self._piece_of_row = np.empty(1024, np.int64)
        self._x_low = -1
        self._num_trimmed = 0

    def _rows_that_came(self, order: StageOrder, count: int, epoch_stop: int) -> IntArray:
        """Returns those of the first `count` rows to come that do not lie below `_all_came_below`, ascending."""
        low, high = self._all_came_below, min(epoch_stop, count + order.buffer_rows)
        leaving = order.leaving_order(self._index.source, self._lane, low)
        if leaving is None or count == low:
            return _NOTHING
        return np.sort(leaving.rows(high - low)[: count - low]) + low

    @property
    def handles(self) -> IntArray:
        """Handles of the blocks that are claimed and not closed."""
        return self.pieces.handles[self._left > 0]

    def blocks_of(self, x_first: IntArray, x_last: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the blocks of rows among the next ones of the lane, as places in `pieces`; enters blocks for them."""
        self._enter_up_to(int(x_last.max()))
        return self.pieces.block[self._pieces_at(x_first)], self.pieces.block[self._pieces_at(x_last)]

    def find(self, x: IntArray) -> FoundRows | FoundRun:
        """Finds the rows at `x`, the next ones of the lane, in `pieces`; enters blocks up to the last."""
        x_first, x_last = int(x.min()), int(x.max())
        self._enter_up_to(x_last)
        first_piece, last_piece = self._pieces_at(np.array([x_first, x_last])).tolist()
        first, last = self.pieces.block[[first_piece, last_piece]].tolist()
        piece = self._pieces_at(x) if first_piece < last_piece else first_piece
        words = moved_words(self.pieces.word[piece], x.view(np.uint64))
        if first == last:
            self._coming = np.zeros_like(self._left)
            self._coming[first] = len(x)
            came = self._rows[first] - self._left[first] if self._is_shuffled else x_first - self._start[first]
            return FoundRun(words, first, int(came))
        block = self.pieces.block[piece]
        self._coming = np.bincount(block, minlength=len(self._left))
        return FoundRows(words, block, self._counted(block) if self._is_shuffled else x - self._start[block])

    def _pieces_at(self, x: IntArray) -> IntArray:
        pieces: IntArray = self._piece_of_row[x - self._x_low]
        pieces -= self._num_trimmed
        return pieces

    def _counted(self, block: IntArray) -> IntArray:
        """Returns for each of the next rows, whose block is given, how many rows of its block came before it."""
        came = self._rows - self._left
        by_block = np.argsort(block.astype(np.min_scalar_type(len(came))), kind="stable")
        before = came - (np.cumsum(self._coming) - self._coming)
        counted = np.empty_like(block)
        counted[by_block] = np.arange(len(block)) + np.repeat(before, self._coming)
        return counted

    def close_used_up(self) -> IntArray:
        """Notes that the rows found last came; returns the places of the blocks in `pieces` with none left since.

        The window's `pieces` may be another table afterwards; places are those of before this call.
        """
        left = self._left - self._coming
        assert not len(left) or left.min() >= 0, "more rows than a block has"
        closed = np.flatnonzero((left == 0) & (self._left > 0))
        self._left = left
        if len(closed):
            num_done = int(np.argmax(left > 0)) if left.any() else len(left)
            if num_done:
                self._trim(num_done)
        return closed

    def _trim(self, num_blocks: int) -> None:
        num_pieces = len(self.pieces.block)
        self.pieces = self.pieces.without_first(num_blocks)
        self._start, self._rows, self._left = (of[num_blocks:] for of in (self._start, self._rows, self._left))
        self._num_trimmed += num_pieces - len(self.pieces.block)

    def _enter_up_to(self, x_last: int) -> None:
        if x_last < self._x_stop:
            return
        entered: list[PieceRuns] = []
        starts: list[int] = []
        while self._x_stop <= x_last:
            pieces = self._blocks.next_pieces()
            entered.append(pieces)
            starts.append(int(pieces.x[0]))
            self._x_stop = int(pieces.x[-1] + pieces.rows[-1])
        rows = [stop - start for start, stop in pairwise([*starts, self._x_stop])]
        left = [
            num_rows - (self._num_came(start, start + num_rows) if start < self._came_stop else 0)
            for start, num_rows in zip(starts, rows, strict=True)
        ]
        handles = [self._claim(pieces) if rows_left else -1 for pieces, rows_left in zip(entered, left, strict=True)]
        added = PieceRuns.joined(entered)
        block = np.repeat(np.arange(len(entered)), [len(pieces.x) for pieces in entered])
        self._note_rows(starts[0], added.rows)
        table = PieceTable(
            handles=np.array(handles, np.int64),
            block=block,
            word=words_of(self._index, added.unit, added.row - added.x),
        )
        self.pieces = PieceTable.joined([self.pieces, table]) if len(self.pieces.block) else table
        self._start = np.concatenate([self._start, starts])
        self._rows = np.concatenate([self._rows, rows])
        self._left = np.concatenate([self._left, left])

    def _num_came(self, x_start: int, x_stop: int) -> int:
        """Returns how many of these rows had come before the window was opened."""
        first, last = np.searchsorted(self._came, [x_start, x_stop]).tolist()
        return int(last - first) + max(0, min(self._all_came_below, x_stop) - x_start)

    def _claim(self, pieces: PieceRuns) -> int:
        source, x_start = self._index.source, int(pieces.x[0])
        block = pieces.block(self._order.leaving_order(source, self._lane, x_start))
        return self._table.claim(BlockKey(self._index.stage, source, self._lane, x_start), block)

    def _note_rows(self, x_start: int, rows: IntArray) -> None:
        """Extends `_piece_of_row` by the rows of pieces that begin at `x_start`; rows below the oldest block go."""
        numbers = np.arange(len(rows)) + (self._num_trimmed + len(self.pieces.block))
        new = np.repeat(numbers, rows)
        if self._x_low < 0:
            self._x_low = x_start
        oldest_x = int(self._start[0]) if len(self._start) else x_start
        kept, dropped = x_start - oldest_x, oldest_x - self._x_low
        needed = kept + len(new)
        if dropped + needed > len(self._piece_of_row):
            buffer = self._piece_of_row if 2 * needed <= len(self._piece_of_row) else np.empty(2 * needed, np.int64)
            buffer[:kept] = self._piece_of_row[dropped : dropped + kept]
            self._piece_of_row, self._x_low, dropped = buffer, oldest_x, 0
        self._piece_of_row[dropped + kept : dropped + kept + len(new)] = new


_NOTHING = np.empty(0, np.int64)
