"""Resident sources: a small source of an infinite stage stays decoded, so its later epochs cost no decoding.

Its blocks belong to no lane: units packed in the listed order, each unit whole or in its slices, and their slots have
the rows in that order, the same whatever order an epoch walks them in. A plan claims all of them once and never closes
them; each is decoded when a row of it is first needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import PieceRuns, PlannedBlock, slice_rows_of
from o41td.coordinator.events import BlockKey
from o41td.coordinator.piece_table import FoundRows, PieceTable, words_of
from o41td.index import SourceIndex
from o41td.order.digest import moved_words
from o41td.order.stage import StageOrder

__all__ = ["ResidentBlocks", "num_resident_blocks", "resident_blocks_of"]

IntArray = NDArray[np.int64]


def resident_blocks_of(unit_rows: IntArray, block_rows: int) -> list[PlannedBlock]:
    """Returns the blocks of a whole source; block coordinates count its rows in the listed order."""
    pieces = _pieces_of(unit_rows, block_rows)
    return [pieces.part(first, last).block() for first, last in pieces.pack(block_rows)]


def num_resident_blocks(unit_rows: IntArray, block_rows: int) -> int:
    """Returns how many blocks `resident_blocks_of` returns, without making them."""
    return len(_pieces_of(unit_rows, block_rows).pack(block_rows))


def _pieces_of(unit_rows: IntArray, block_rows: int) -> PieceRuns:
    unit = np.flatnonzero(unit_rows)
    rows = unit_rows[unit]
    return PieceRuns(np.cumsum(rows) - rows, unit, np.zeros_like(rows), rows).cut(unit_rows, block_rows)


class ResidentBlocks:
    """One plan's claims on all blocks of a resident source, and the way from a row of a lane's line to them."""

    def __init__(self, order: StageOrder, index: SourceIndex, *, block_rows: int, table: BlockTable) -> None:
        """Claims every block."""
        self._order = order
        self._source = index.source
        runs = _pieces_of(index.unit_rows, block_rows)
        ranges = runs.pack(block_rows)
        self.handles: list[int] = []
        for first, last in ranges:
            block = runs.part(first, last).block()
            self.handles.append(table.claim(BlockKey(index.stage, index.source, -1, block.x_start), block))
        self._slice_rows = slice_rows_of(index.unit_rows, block_rows)
        self._is_sliced = len(runs.unit) > np.count_nonzero(index.unit_rows)
        self._first_piece = np.searchsorted(runs.unit, np.arange(len(index.unit_rows)))
        block_of_piece = np.repeat(np.arange(len(ranges)), [last - first for first, last in ranges])
        block_x = runs.x[[first for first, _ in ranges]]
        self._to_slot_row = runs.x - block_x[block_of_piece] - runs.row
        self.pieces = PieceTable(
            handles=np.array(self.handles, np.int64),
            block=block_of_piece,
            word=words_of(index, runs.unit, np.zeros_like(runs.unit)),
        )

    def find(self, lane: int, x: IntArray) -> FoundRows:
        """Finds the rows at `x` of a lane's line in `pieces`."""
        unit, row = self._order.locate(self._source, lane, x)
        piece = self._first_piece[unit]
        if self._is_sliced:
            piece += row // self._slice_rows[unit]
        words = moved_words(self.pieces.word[piece], row.view(np.uint64))
        return FoundRows(words, self.pieces.block[piece], row + self._to_slot_row[piece])
