"""Sources made of row counts alone, and the slow, plain way from a batch to its records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from o41td.coordinator.block_table import BlockTable
from o41td.index import ShardEntry, ShardUnits, SourceIndex, index_source
from o41td.order import StageOrder
from o41td.order.hash import mix64

__all__ = ["Record", "make_source", "records_of_batch", "records_of_slot", "word_of_row"]

Record = tuple[int, int, int]


def make_source(shards: Sequence[Sequence[int]], *, stage: int = 0, source: int = 0) -> SourceIndex:
    """A source of which `shards[k]` are the rows of shard k's units."""
    made = []
    for number, units in enumerate(shards):
        rows = np.array(units, np.int64)
        entry = ShardEntry(uri=f"{source}/{number}", rows=int(rows.sum()), size_bytes=1, mtime_ns=0, version="v")
        made.append(
            ShardUnits(
                entry=entry,
                rows=rows,
                decoded_bytes=8 * rows,
                decoding_bytes=8 * rows,
                compressed_bytes=4 * rows,
                footer_bytes=500,
            )
        )
    return index_source(stage=stage, source=source, name=f"source {source}", shards=made)


def records_of_batch(order: StageOrder, sources: Sequence[SourceIndex], batch: int) -> list[Record]:
    """The (source, shard, row in shard) of each row of a batch, straight from the order."""
    return [
        (source, int(sources[source].unit_shard[unit]), int(sources[source].unit_first_row[unit]) + row)
        for source, unit, row in zip(*(column.tolist() for column in order.coordinates(batch)), strict=True)
    ]


def records_of_slot(table: BlockTable, sources: Sequence[SourceIndex], handle: int) -> list[Record]:
    """The records that a worker puts into the slot of a block, in the order of the slot's rows."""
    block = table[handle]
    index = sources[block.key.source]
    records: list[Record] = []
    for piece in block.planned.pieces:
        assert len(records) == piece.block_row
        shard, first = int(index.unit_shard[piece.unit]), int(index.unit_first_row[piece.unit])
        records += [(index.source, shard, first + row) for row in range(piece.row_start, piece.row_stop)]
    return [records[row] for row in block.planned.rows_in_slot().tolist()]


def word_of_row(source: int, shard: int, row: int) -> int:
    """The word by which the order digest knows a row, in plain integers."""
    golden = 0x9E3779B97F4A7C15
    of_shard = mix64(0xEF84914341D3F1D5 + golden * ((source << 32 | shard) + 1))
    return (of_shard + row * golden) & ((1 << 64) - 1)
