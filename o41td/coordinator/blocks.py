"""How a lane's line is cut into blocks: a pure function of the line and `block_rows`, the same from wherever one looks.

Kinds of index used here:

* x, the lane-line coordinate: rows of one (source, lane) counted over all epochs, x = epoch * epoch_rows + p;
* a run: consecutive rows of one unit that lie side by side in the line;
* a piece: a run, or a slice of one whose unit has more than `block_rows` rows. Slices of a unit are equal (to a row)
and
  begin at the unit's first row, so they are the same in every epoch and lane, but for the lane's edges;
* a block: consecutive pieces, packed greedily while they fit into `block_rows` rows.

Greedy packing depends on where it starts. It starts anew at every group, a stretch of `_GROUP_BLOCKS * block_rows` rows
of an epoch, so any block can be computed from its own group alone: opening in the middle of 10^12 rows costs one group.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from o41td.order.line import LaneLine

__all__ = ["BlockPiece", "LaneBlocks", "PlannedBlock", "slice_rows_of"]

_GROUP_BLOCKS = 64

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """Rows [row_start, row_stop) of a unit, which go to rows [block_row, …) of the block."""

    unit: int
    row_start: int
    row_stop: int
    block_row: int


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """Rows [x_start, x_stop) of a lane's line: what one slot holds."""

    x_start: int
    x_stop: int
    pieces: tuple[BlockPiece, ...]

    @property
    def num_rows(self) -> int:
        """Rows in the block."""
        return self.x_stop - self.x_start


class LaneBlocks:
    """The blocks of one (source, lane) from a coordinate on, produced in line order as they are asked for."""

    def __init__(self, line: LaneLine, unit_rows: IntArray, *, block_rows: int, x_start: int) -> None:
        """Starts with the block that holds `x_start`; `unit_rows` are the rows of every unit of the source."""
        self._line = line
        self._unit_rows = unit_rows
        self._block_rows = block_rows
        epoch, p = divmod(x_start, line.rows_per_epoch)
        self._epoch = epoch
        self._group = p // self._group_rows
        self._ready: deque[PlannedBlock] = deque()
        while True:
            block = self.next_block()
            if block.x_stop > x_start:
                self._ready.appendleft(block)
                return

    @property
    def _group_rows(self) -> int:
        return _GROUP_BLOCKS * self._block_rows

    def next_block(self) -> PlannedBlock:
        """Returns the next block of the line; the line has no end, epochs follow each other."""
        while not self._ready:
            self._ready.extend(self._blocks_of_group(self._epoch, self._group))
            self._group += 1
            if self._group * self._group_rows >= self._line.rows_per_epoch:
                self._epoch, self._group = self._epoch + 1, 0
        return self._ready.popleft()

    def _blocks_of_group(self, epoch: int, group: int) -> list[PlannedBlock]:
        """Returns the blocks made of the pieces that begin in this group's stretch of the epoch."""
        base = epoch * self._line.rows_per_epoch
        start = base + group * self._group_rows
        stop = base + min((group + 1) * self._group_rows, self._line.rows_per_epoch)
        end = base + self._line.rows_per_epoch
        # One row before tells whether the first run begins here; a unit's rows behind the stretch belong to its run.
        x, unit, row, rows = self._runs(max(start - 1, base), stop)
        reach = min(end, int(x[-1] + self._unit_rows[unit[-1]] - row[-1]))
        if reach > stop:
            x, unit, row, rows = self._runs(max(start - 1, base), reach)
        x, unit, row, rows = self._pieces_of(x, unit, row, rows)
        # A piece that holds row start - 1 begins before this stretch, wherever the clipping made it seem to begin.
        here = (x >= start) & (x < stop)
        return self._packed(x[here], unit[here], row[here], rows[here])

    def _runs(self, x_start: int, x_stop: int) -> tuple[IntArray, ...]:
        runs = self._line.runs(x_start, x_stop)
        return runs.x_start, runs.unit, runs.row_start, runs.num_rows

    def _pieces_of(self, x: IntArray, unit: IntArray, row: IntArray, rows: IntArray) -> tuple[IntArray, ...]:
        """Cuts the runs of units larger than a block into that unit's slices."""
        unit_rows = self._unit_rows[unit]
        if not (unit_rows > self._block_rows).any():
            return x, unit, row, rows
        slice_rows = slice_rows_of(unit_rows, self._block_rows)
        first, last = row // slice_rows, (row + rows - 1) // slice_rows
        counts = last - first + 1
        run = np.repeat(np.arange(len(x)), counts)
        ordinal = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        cut = (first[run] + ordinal) * slice_rows[run]
        piece_start = np.maximum(cut, row[run])
        piece_stop = np.minimum(cut + slice_rows[run], row[run] + rows[run])
        return x[run] + piece_start - row[run], unit[run], piece_start, piece_stop - piece_start

    def _packed(self, x: IntArray, unit: IntArray, row: IntArray, rows: IntArray) -> list[PlannedBlock]:
        """Packs pieces greedily; one search a block, so a million one-row units cost what their blocks cost."""
        ends = np.cumsum(rows)
        blocks = []
        first = 0
        while first < len(x):
            before = int(ends[first] - rows[first])
            last = max(first + 1, int(np.searchsorted(ends, before + self._block_rows, side="right")))
            x_start = int(x[first])
            pieces = tuple(
                BlockPiece(unit=u, row_start=r, row_stop=r + n, block_row=at - x_start)
                for at, u, r, n in zip(
                    x[first:last].tolist(),
                    unit[first:last].tolist(),
                    row[first:last].tolist(),
                    rows[first:last].tolist(),
                    strict=True,
                )
            )
            blocks.append(PlannedBlock(x_start=x_start, x_stop=x_start + int(ends[last - 1]) - before, pieces=pieces))
            first = last
        return blocks


def slice_rows_of(unit_rows: IntArray, block_rows: int) -> IntArray:
    """Returns the rows of the slices in which each unit comes: the unit's own, or equal parts of at most `block_rows`."""
    return -(-unit_rows // np.maximum(1, -(-unit_rows // block_rows)))
