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

from o41td.index import SourceIndex
from o41td.order.digest import shard_words

__all__ = ["FoundRows", "PieceTable", "shard_words_of"]

IntArray = NDArray[np.int64]


class FoundRows(NamedTuple):
    """Of each row: its piece and its block, as places in a `PieceTable`, its position along the piece, its slot row."""

    piece: IntArray
    block: IntArray
    at: IntArray
    slot_row: IntArray


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Pieces of blocks, `[pieces] int64` but for `handles`, which is `[blocks] int64`.

    `block` is the piece's block, as a place in `handles`. A row at position `at` of its piece is row `at +
    to_shard_row` of the shard that `shard_word` names (see `shard_words`).
    """

    handles: IntArray
    block: IntArray
    shard_word: NDArray[np.uint64]
    to_shard_row: IntArray

    @staticmethod
    def empty() -> PieceTable:
        """Returns the table of no pieces."""
        nothing = np.empty(0, np.int64)
        return PieceTable(handles=nothing, block=nothing, shard_word=nothing.view(np.uint64), to_shard_row=nothing)

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
            shard_word=np.concatenate([table.shard_word for table in tables]),
            to_shard_row=np.concatenate([table.to_shard_row for table in tables]),
        )

    def without_first(self, num_blocks: int) -> PieceTable:
        """Returns the table without its first blocks and their pieces, whose blocks ascend."""
        first = int(np.searchsorted(self.block, num_blocks))
        return PieceTable(
            handles=self.handles[num_blocks:],
            block=self.block[first:] - num_blocks,
            shard_word=self.shard_word[first:],
            to_shard_row=self.to_shard_row[first:],
        )


def shard_words_of(index: SourceIndex, units: IntArray) -> NDArray[np.uint64]:
    """Returns the shard of each unit of a source, as digests name it."""
    return shard_words(np.uint64(index.source), index.unit_shard[units].astype(np.uint64))
