"""How a lane's line is cut into blocks: a pure function of the line and `block_rows`, the same from wherever one looks.

Kinds of index used here:

* x, the lane-line coordinate: rows of one (source, lane) counted over all epochs, x = epoch * epoch_rows + p;
* a run: consecutive rows of one unit that lie side by side in the line;
* a piece: a run, or a slice of one whose unit has more than `block_rows` rows. Slices of a unit are equal (to a row)
  and begin at the unit's first row, so they are the same in every epoch and lane, but for the lane's edges;
* a block: consecutive pieces, packed greedily while they fit into `block_rows` rows.

Greedy packing depends on where it starts. It starts anew at every group, the pieces that begin in a stretch of
`GROUP_BLOCKS * block_rows` rows of an epoch, so any block can be computed from its own group alone: opening in the
middle of 10^12 rows costs one group. Two neighbours in a group together have more than `block_rows` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.named_tuples import of_columns
from o41td.order.leaving import LeavingOrder
from o41td.order.line import LaneLine

__all__ = ["GROUP_BLOCKS", "BlockPiece", "LaneBlocks", "PieceRuns", "PlannedBlock", "slice_rows_of"]

GROUP_BLOCKS = 64

IntArray = NDArray[np.int64]


class BlockPiece(NamedTuple):
    """Rows [row_start, row_stop) of a unit, which are rows [block_row, …) of the block."""

    unit: int
    row_start: int
    row_stop: int
    block_row: int


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """Rows [x_start, x_stop) of a lane's line: what one slot holds.

    The slot has them in the order in which they leave the shuffle; in the line's where `leaving` is None.
    """

    x_start: int
    x_stop: int
    pieces: tuple[BlockPiece, ...]
    leaving: LeavingOrder | None = None

    @property
    def num_rows(self) -> int:
        """Rows in the block."""
        return self.x_stop - self.x_start

    def rows_in_slot(self) -> IntArray:
        """Returns which of the block's rows each row of its slot is: `[num_rows] int64`."""
        return np.arange(self.num_rows) if self.leaving is None else self.leaving.rows(self.num_rows)


@dataclass(frozen=True, slots=True)
class PieceRuns:
    """Pieces that lie end to end, one element each: first x, unit, first row in it, rows; all `[pieces] int64`."""

    x: IntArray
    unit: IntArray
    row: IntArray
    rows: IntArray

    def cut(self, unit_rows: IntArray, block_rows: int) -> PieceRuns:
        """Returns these with those of units larger than a block cut into that unit's slices."""
        rows_of_unit = unit_rows[self.unit]
        if not (rows_of_unit > block_rows).any():
            return self
        slice_rows = slice_rows_of(rows_of_unit, block_rows)
        first, last = self.row // slice_rows, (self.row + self.rows - 1) // slice_rows
        counts = last - first + 1
        run = np.repeat(np.arange(len(self.x)), counts)
        ordinal = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        cut = (first[run] + ordinal) * slice_rows[run]
        start = np.maximum(cut, self.row[run])
        stop = np.minimum(cut + slice_rows[run], (self.row + self.rows)[run])
        return PieceRuns(self.x[run] + start - self.row[run], self.unit[run], start, stop - start)

    @staticmethod
    def joined(runs: Sequence[PieceRuns]) -> PieceRuns:
        """Returns the pieces of all, one after the other."""
        if len(runs) == 1:
            return runs[0]
        columns = zip(*[(run.x, run.unit, run.row, run.rows) for run in runs], strict=True)
        return PieceRuns(*[np.concatenate(column) for column in columns])

    def part(self, first: int, last: int) -> PieceRuns:
        """Returns the pieces [first, last)."""
        return PieceRuns(self.x[first:last], self.unit[first:last], self.row[first:last], self.rows[first:last])

    def pack(self, block_rows: int) -> list[tuple[int, int]]:
        """Returns the half-open ranges of pieces that make a block each: greedily as many as fit into `block_rows`.

        One search a block, so a million one-row units cost what their blocks cost; and none where no two fit.
        """
        if not (self.rows[1:] + self.rows[:-1] <= block_rows).any():
            return list(pairwise(range(len(self.rows) + 1)))
        ends = np.cumsum(self.rows)
        ranges = []
        first = before = 0
        while first < len(ends):
            last = max(first + 1, int(ends.searchsorted(before + block_rows, "right")))
            ranges.append((first, last))
            first, before = last, int(ends[last - 1])
        return ranges

    def block(self, leaving: LeavingOrder | None = None) -> PlannedBlock:
        """Returns the block made of these pieces."""
        columns = self.unit, self.row, self.row + self.rows, self.x - self.x[0]
        pieces = tuple(of_columns(BlockPiece, *map(np.ndarray.tolist, columns)))
        return PlannedBlock(int(self.x[0]), int(self.x[-1] + self.rows[-1]), pieces, leaving)


class LaneBlocks:
    """The blocks of one (source, lane) from a coordinate on, produced in line order as they are asked for."""

    def __init__(self, line: LaneLine, unit_rows: IntArray, *, block_rows: int, x_start: int) -> None:
        """Starts with the block that holds `x_start`; `unit_rows` are the rows of every unit of the source."""
        self._line = line
        self._unit_rows = unit_rows
        self._block_rows = block_rows
        self._group_rows = GROUP_BLOCKS * block_rows
        self._blocks = self._blocks_from(x_start)

    def next_block(self) -> PlannedBlock:
        """Returns the next block of the line; the line has no end, epochs follow each other."""
        return next(self._blocks).block()

    def next_pieces(self) -> PieceRuns:
        """Returns the pieces of the next block."""
        return next(self._blocks)

    def _blocks_from(self, x_start: int) -> Iterator[PieceRuns]:
        """Yields the pieces of each block, from the one that holds `x_start` on."""
        epoch, p = divmod(x_start, self._line.rows_per_epoch)
        group = p // self._group_rows
        pieces = self._pieces_of_group(epoch, group)
        while not len(pieces.x) or pieces.x[0] > x_start:
            group -= 1  # the row lies in the last block of an earlier group, which reaches into this one's stretch
            pieces = self._pieces_of_group(epoch, group)
        while True:
            is_wanted = pieces.x + pieces.rows > x_start
            for first, last in pieces.pack(self._block_rows):
                if is_wanted[last - 1]:
                    yield pieces.part(first, last)
            group += 1
            if group * self._group_rows >= self._line.rows_per_epoch:
                epoch, group = epoch + 1, 0
            pieces = self._pieces_of_group(epoch, group)

    def _pieces_of_group(self, epoch: int, group: int) -> PieceRuns:
        """Returns the pieces that begin in this group's stretch of the epoch."""
        base = epoch * self._line.rows_per_epoch
        end = base + self._line.rows_per_epoch
        start = base + group * self._group_rows
        stop = min(start + self._group_rows, end)
        # One row before tells whether the first run begins here; a unit's rows behind the stretch belong to its run.
        pieces = self._runs(max(start - 1, base), stop)
        reach = min(end, int(pieces.x[-1] + self._unit_rows[pieces.unit[-1]] - pieces.row[-1]))
        if reach > stop:
            pieces = self._runs(max(start - 1, base), reach)
        # A piece that holds row start - 1 begins before this stretch, wherever the clipping made it seem to begin.
        pieces = pieces.cut(self._unit_rows, self._block_rows)
        first, last = np.searchsorted(pieces.x, [start, stop]).tolist()
        return pieces.part(first, last)

    def _runs(self, x_start: int, x_stop: int) -> PieceRuns:
        runs = self._line.runs(x_start, x_stop)
        return PieceRuns(runs.x_start, runs.unit, runs.row_start, runs.num_rows)


def slice_rows_of(unit_rows: IntArray, block_rows: int) -> IntArray:
    """Returns the rows of each unit's slices: all of the unit's, or equal parts of at most `block_rows`."""
    return -(-unit_rows // np.maximum(1, -(-unit_rows // block_rows)))
