"""Resident sources: a small source of an infinite stage stays decoded, so its later epochs cost no decoding.

Its blocks belong to no lane: units packed in the listed order, each unit whole or in its slices, the same whatever
order an epoch walks them in. A plan claims all of them once and never closes them; each is decoded when a row of it is
first needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import BlockPiece, PlannedBlock, slice_rows_of
from o41td.coordinator.events import BlockKey

__all__ = ["ResidentBlocks", "resident_blocks_of"]

IntArray = NDArray[np.int64]


def resident_blocks_of(unit_rows: IntArray, block_rows: int) -> list[PlannedBlock]:
    """Returns the blocks of a whole source; block coordinates count its rows in the listed order."""
    blocks: list[PlannedBlock] = []
    pieces: list[BlockPiece] = []
    start = filled = 0

    def finish() -> None:
        nonlocal pieces, start, filled
        if pieces:
            blocks.append(PlannedBlock(start, start + filled, tuple(pieces)))
            pieces, start, filled = [], start + filled, 0

    slice_rows = slice_rows_of(unit_rows, block_rows).tolist()
    for unit, rows in enumerate(unit_rows.tolist()):
        for row in range(0, rows, slice_rows[unit] or 1):
            row_stop = min(rows, row + slice_rows[unit])
            if filled + row_stop - row > block_rows:
                finish()
            pieces.append(BlockPiece(unit=unit, row_start=row, row_stop=row_stop, block_row=filled))
            filled += row_stop - row
    finish()
    return blocks


class ResidentBlocks:
    """One plan's claims on all blocks of a resident source, and the way from a unit's rows to them."""

    def __init__(self, *, stage: int, source: int, unit_rows: IntArray, block_rows: int, table: BlockTable) -> None:
        """Claims every block."""
        self.handles: list[int] = []
        self._slice_rows = slice_rows_of(unit_rows, block_rows)
        slices = np.where(self._slice_rows > 0, -(-unit_rows // np.maximum(1, self._slice_rows)), 0)
        self._first_slice = np.cumsum(slices) - slices
        self._slice_handle = np.empty(int(slices.sum()), np.int64)
        self._slice_block_row = np.empty(int(slices.sum()), np.int64)
        number = 0
        for block in resident_blocks_of(unit_rows, block_rows):
            handle = table.claim(BlockKey(stage, source, -1, block.x_start), block)
            self.handles.append(handle)
            for piece in block.pieces:
                self._slice_handle[number] = handle
                self._slice_block_row[number] = piece.block_row
                number += 1

    def rows_at(self, unit: IntArray, row: IntArray) -> tuple[IntArray, IntArray]:
        """Returns (handle, row within the block) of rows given by unit and row within it."""
        slice_rows = self._slice_rows[unit]
        number = self._first_slice[unit] + row // slice_rows
        return self._slice_handle[number], self._slice_block_row[number] + row % slice_rows
