"""Where rows are, as one look-up each: the pieces of the blocks in use, as columns.

Whoever knows a source's rows (a lane's window, a resident source) says of each row its piece, a position that counts
rows along that piece, and its row in the block's slot. Everything else about the row follows from the piece's columns
by one look-up and one addition, so the rows of all sources of a burst go through the same few vectorised steps
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["FoundRows", "PieceTable"]

IntArray = NDArray[np.int64]


class FoundRows(NamedTuple):
    """Of each row: its piece, as a place in a `PieceTable`, its position along it, and its row in the block's slot."""

    piece: IntArray
    at: IntArray
    slot_row: IntArray


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Pieces of blocks, `[pieces] int64` but for `handles`, which is `[blocks] int64`.

    `block` is the piece's block, as a place in `handles`. A row at position `at` of its piece is row `at +
    to_shard_row` of shard `shard`.
    """

    handles: IntArray
    block: IntArray
    shard: IntArray
    to_shard_row: IntArray

    @staticmethod
    def empty() -> PieceTable:
        """Returns the table of no pieces."""
        return PieceTable(*(np.empty(0, np.int64) for _ in range(4)))

    @staticmethod
    def joined(tables: Sequence[PieceTable]) -> PieceTable:
        """Returns one table of several: pieces and blocks are numbered on from one table to the next."""
        first_block = 0
        blocks = []
        for table in tables:
            blocks.append(table.block + first_block)
            first_block += len(table.handles)
        return PieceTable(
            handles=np.concatenate([table.handles for table in tables]),
            block=np.concatenate(blocks),
            shard=np.concatenate([table.shard for table in tables]),
            to_shard_row=np.concatenate([table.to_shard_row for table in tables]),
        )

    def without_first(self, num_blocks: int) -> PieceTable:
        """Returns the table without its first blocks and their pieces, whose blocks ascend."""
        first = int(np.searchsorted(self.block, num_blocks))
        return PieceTable(
            handles=self.handles[num_blocks:],
            block=self.block[first:] - num_blocks,
            shard=self.shard[first:],
            to_shard_row=self.to_shard_row[first:],
        )
