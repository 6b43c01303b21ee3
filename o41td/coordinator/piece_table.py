"""Where rows are, as one look-up each: the pieces of the blocks in use, as columns.

Whoever knows a source's rows (a lane's window, a resident source) finds of each row its block, its row in the block's
slot and its word in the order digest. So the rows of all sources of a burst go through the same few vectorised steps
together; and where they all follow each other in one slot, as most do where blocks are larger than bursts, nothing is
worked out row by row but the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.index import SourceIndex
from o41td.order.digest import moved_words, shard_words

__all__ = ["FoundRows", "FoundRun", "PieceTable", "words_of"]

IntArray = NDArray[np.int64]


class FoundRows(NamedTuple):
    """Of each row: its word in the digest, its block as a place in a `PieceTable`, and its slot row."""

    word: NDArray[np.uint64]
    block: IntArray
    slot_row: IntArray


class FoundRun(NamedTuple):
    """Rows that follow each other in the slot of one block: the word of each, the block, the slot row of the first."""

    word: NDArray[np.uint64]
    block: int
    slot_row: int

    def spread(self) -> FoundRows:
        """Returns the same row by row."""
        num_rows = len(self.word)
        slot_row = np.arange(self.slot_row, self.slot_row + num_rows)
        return FoundRows(self.word, np.full(num_rows, self.block), slot_row)


@dataclass(frozen=True, slots=True)
class PieceTable:
    """Pieces of blocks, as columns `[pieces]`, and the `handles` of their blocks, `[blocks] int64`.

    `block` is the piece's block, as a place in `handles`. `word` is the digest's word of a row at position 0 of the
    piece: that of any other is as many rows further on.
    """

    handles: IntArray
    block: IntArray
    word: NDArray[np.uint64]

    @staticmethod
    def empty() -> PieceTable:
        """Returns the table of no pieces."""
        nothing = np.empty(0, np.int64)
        return PieceTable(handles=nothing, block=nothing, word=nothing.view(np.uint64))

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
            word=np.concatenate([table.word for table in tables]),
        )

    def without_first(self, num_blocks: int) -> PieceTable:
        """Returns the table without its first blocks and their pieces, whose blocks ascend."""
        first = int(np.searchsorted(self.block, num_blocks))
        return PieceTable(
            handles=self.handles[num_blocks:], block=self.block[first:] - num_blocks, word=self.word[first:]
        )


def words_of(index: SourceIndex, units: IntArray, to_unit_row: IntArray) -> NDArray[np.uint64]:
    """Returns the digest's words of position 0 of pieces of a source's units.

    A row at position `at` of a piece is row `at + to_unit_row` of its unit.
    """
    words = shard_words(np.uint64(index.source), index.unit_shard[units].astype(np.uint64))
    return moved_words(words, (index.unit_first_row[units] + to_unit_row).view(np.uint64))
