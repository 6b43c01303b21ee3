"""What a worker is told of a block: its pieces, and what their source gives."""

from __future__ import annotations

from typing import NamedTuple

from o41td.fields import FieldPlan
from o41td.index import etag_of_version

__all__ = ["SMALL_PIECE_ROWS", "TOGETHER_BYTES", "Piece", "SourceFormat", "Uncached"]

SMALL_PIECE_ROWS = 512
TOGETHER_BYTES = 1 << 20
"""What row groups that are taken together take to decode, at most; as much again while they are made one table."""


class Piece(NamedTuple):
    """A piece of a block, as `DecodeBlock` has it."""

    number: int
    uri: str
    size_bytes: int | None
    mtime_ns: int | None
    shard_rows: int | None
    row_group: int
    group_rows: int
    decoding_bytes: int
    shard_row: int
    row_start: int
    row_stop: int
    block_row: int
    version: str | None = None

    @property
    def etag(self) -> str | None:
        """A remote shard's, where its store has them."""
        return etag_of_version(self.version)

    @property
    def num_rows(self) -> int:
        """Its rows."""
        return self.row_stop - self.row_start

    @property
    def is_small(self) -> bool:
        """Whether it is a whole row group of few rows."""
        return self.num_rows == self.group_rows and self.is_of_small_unit

    @property
    def is_of_small_unit(self) -> bool:
        """Whether its row group is one of few rows, which are decoded many at a time."""
        return self.group_rows <= SMALL_PIECE_ROWS and self.decoding_bytes <= TOGETHER_BYTES // 8


class Uncached(Exception):
    """Rows of a piece are to be had without the block cache."""


class SourceFormat(NamedTuple):
    """A source: its name, its fields, its shards' encoding; where it is a chain, its nodes, packed.

    `columns` are those of its shards that the nodes want; None is all.
    """

    name: str
    fields: tuple[FieldPlan, ...]
    encoding: str
    chain: bytes | None = None
    columns: tuple[str, ...] | None = None
