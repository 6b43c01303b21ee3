"""The units of a chain's shard, and whether what comes of its first rows gives the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from o41td.encodings import NODE, PARQUET
from o41td.fields import FieldPlan
from o41td.index import unit_rows_of_source
from o41td.projection import ProjectionPlan, plan_projection
from o41td.workers.chain_reader import ChainReader
from o41td.workers.footer import ShardFooter, read_footer
from o41td.workers.messages import ReadFooter
from o41td.workers.parquet import ShardReader
from o41td.workers.piece import Piece
from o41td.workers.record_footer import read_record_footer
from o41td.workers.whole_columns import WholeColumns

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["read_chain_footer"]

_SAMPLE_ROWS = 16


def read_chain_footer(
    order: ReadFooter,
    fields: Sequence[FieldPlan],
    objects: RemoteObjects | None,
    on_progress: Callable[[], None],
) -> ShardFooter:
    """Returns the units of a chain's shard; where the order has the chain, a few rows are run through it.

    What comes of a row is taken to be as large as the row itself where no rows were run.

    Raises:
        O41Error: The shard cannot be read, a node raised, or what comes of it does not give the fields.

    Called by: a worker.
    """
    reader = None
    if order.chain:
        reader = ChainReader(
            order.chain,
            fields,
            source=order.source,
            encoding=order.encoding,
            max_row_group_bytes=order.max_row_group_bytes,
            objects=objects,
        )
    if order.encoding == NODE:
        assert reader is not None
        footer = _footer_of_source(reader)
    elif order.encoding == PARQUET:
        columns = WholeColumns(order.columns) if reader is None else reader.columns
        footer = read_footer(
            objects,
            order.uri,
            (),
            source=order.source,
            size_bytes=order.size_bytes,
            etag=order.etag,
            plans=columns,
        )
    else:
        names = order.columns if reader is None else reader.names
        footer = read_record_footer(order, (), objects, on_progress, names or ())
    row_bytes = 0
    groups = np.flatnonzero(footer.rows)
    if reader is not None and len(groups):
        row_bytes = _sampled_row_bytes(reader, order, fields, footer=footer, group=int(groups[0]), objects=objects)
        reader.close()
    results = np.maximum(footer.rows * row_bytes, 0 if row_bytes else footer.decoded_bytes)
    return replace(
        footer,
        decoded_bytes=footer.decoded_bytes + results,
        decoding_bytes=footer.decoding_bytes + 2 * results,
    )


def _sampled_row_bytes(
    reader: ChainReader,
    order: ReadFooter,
    fields: Sequence[FieldPlan],
    *,
    footer: ShardFooter,
    group: int,
    objects: RemoteObjects | None,
) -> int:
    """Bytes that come of a row, of the first few; they are checked to give the fields."""
    num_rows = min(_SAMPLE_ROWS, int(footer.rows[group]))
    piece = Piece(
        number=0,
        uri=order.uri,
        size_bytes=footer.size_bytes,
        mtime_ns=footer.mtime_ns,
        shard_rows=None,
        row_group=group,
        group_rows=num_rows,
        decoding_bytes=int(footer.decoding_bytes[group]),
        shard_row=0,
        row_start=0,
        row_stop=num_rows,
        block_row=0,
        version=footer.version,
    )

    def read(start: int, stop: int) -> Any:
        shard = ShardReader(
            order.uri,
            (),
            source=order.source,
            size_bytes=order.size_bytes,
            etag=order.etag,
            objects=objects,
            max_row_group_bytes=order.max_row_group_bytes,
            plans=reader.columns,
        )
        try:
            return shard.read_rows(group, start, stop, decoding_bytes=piece.decoding_bytes)
        finally:
            shard.close()

    rows = reader.rows(piece, 0, num_rows, read)
    plan_projection(rows.parts[0][1][0].schema, fields, source=order.source, shard=order.uri)
    return -(-int(rows.nbytes) // num_rows)


def _footer_of_source(reader: ChainReader) -> ShardFooter:
    """The units of a source of the user's own."""
    rows = unit_rows_of_source(reader.chain.num_rows)
    nothing = np.zeros(len(rows), np.int64)
    return ShardFooter(
        rows=rows,
        decoded_bytes=nothing,
        decoding_bytes=nothing,
        compressed_bytes=nothing,
        footer_bytes=0,
        size_bytes=0,
        mtime_ns=0,
        version=reader.chain.version or "",
        plan=ProjectionPlan(fields=(), column_indices=(), num_leaves=0),
    )
