"""A source that is a chain of nodes: rows of its shards, or of its own source, through its nodes, in a worker.

    piece ──► rows of the shard ─┐
    piece ──► source node ───────┴─► node ──► node ──► rows ──► projected into the slot as any others

Nodes get the rows of a piece as it comes. Where results are kept by place they get rows of a fixed grid instead, so
that the same results are asked for whatever the blocks are: under the version of the shard, so shards that are added
later leave those of the others as they are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from o41td.encodings import NODE, PARQUET
from o41td.errors import ConfigError, CorruptDataError, NodeError, O41Error
from o41td.fields import FieldPlan
from o41td.index import unit_rows_of_source
from o41td.listing import is_local
from o41td.nodes import Chain, Node, Span
from o41td.nodes.parcel import opened
from o41td.projection import ProjectionPlan, plan_projection
from o41td.workers.footer import ShardFooter, read_footer
from o41td.workers.messages import FooterRead, ReadFooter
from o41td.workers.object_store import ObjectInfo
from o41td.workers.parquet import ShardReader
from o41td.workers.parts_projector import PartsProjector
from o41td.workers.piece import Piece
from o41td.workers.record_count import count_records
from o41td.workers.record_tables import RecordTables
from o41td.workers.whole_columns import WholeColumns

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ChainReader", "ChainRows", "read_chain_footer"]

_GRID_ROWS = 1024
_SAMPLE_ROWS = 16


class ChainRows:
    """Rows in one part, as `PartsProjector` takes them."""

    def __init__(self, batch: Any) -> None:
        self.parts = [(batch.num_rows, [batch])]
        self.num_rows = batch.num_rows
        self.nbytes = batch.nbytes


class ChainReader:
    """The chain of one source.

    Args:
        parcel: The chain, packed.
        fields: The source's fields.
        source: The source's name, for errors.
        encoding: Its shards' encoding.
        objects: Where remote shards are read.

    Raises:
        ConfigError: The chain cannot be built here.
    """

    def __init__(
        self,
        parcel: bytes,
        fields: Sequence[FieldPlan],
        *,
        source: str,
        encoding: str,
        objects: RemoteObjects | None = None,
    ) -> None:
        self._chain = opened(parcel)
        self._objects = objects
        self._source = source
        self._encoding = encoding
        head: Any = self._chain.nodes[0]
        names = None if encoding == NODE else head.columns
        self.columns = WholeColumns(names)
        self.projector = PartsProjector([fields])
        self._keeps_by_place = any(
            node.settings.store is not None and not node.settings.is_mapped for node in self._chain.nodes
        )
        self._names = names
        self._tables: tuple[str, RecordTables] | None = None
        self._told: tuple[int, int, str | None] = (0, 0, None)
        self._cell: tuple[Any, Any] = (None, None)

    @property
    def chain(self) -> Chain:
        """The chain."""
        return self._chain

    def rows(self, piece: Piece, start: int, stop: int, read: Callable[[int, int], Any]) -> ChainRows:
        """Returns what comes of rows [start, stop) of a piece's unit: of these, or of the first of them.

        `read` gives rows of the unit as they are in the shard; a source without shards is asked itself.

        Raises:
            NodeError: A node raised.
            O41Error: What `read` raises.
        """
        if not self._keeps_by_place:
            return ChainRows(self._answer(piece, start, stop, read))
        cell_start = start - start % _GRID_ROWS
        cell_stop = min(cell_start + _GRID_ROWS, piece.group_rows)
        name = (piece.uri, piece.shard_row, cell_start)
        if self._cell[0] != name:
            self._cell = (None, None)
            self._cell = (name, self._answer(piece, cell_start, cell_stop, read))
        return ChainRows(self._cell[1].slice(start - cell_start, min(stop, cell_stop) - start))

    def _answer(self, piece: Piece, start: int, stop: int, read: Callable[[int, int], Any]) -> Any:
        span = Span(piece.shard_row + start, stop - start)
        version = f"{piece.uri} {piece.version or (piece.size_bytes, piece.mtime_ns)}"

        def failure(node: Node, error: Exception) -> Exception:
            if isinstance(error, O41Error) and not isinstance(error, ConfigError):
                return error
            failed = NodeError(
                str(error) or type(error).__name__,
                node=node.label,
                exception=f"{type(error).__module__}:{type(error).__qualname__}",
                source=self._source,
                shard=piece.uri,
                row=span.at,
                row_stop=span.stop,
            )
            failed.add_note(f"Traceback in the worker:\n{''.join(traceback.format_exception(error)).rstrip()}")
            return failed

        try:
            if self._encoding == NODE:
                self._chain.refuse_changes()
                return self._chain.answer(
                    lambda: self._chain.nodes[0].forward(span),
                    num_rows=span.take,
                    key_of=lambda number: self._chain.key_at(number, version, span),
                    failure=failure,
                )
            return self._chain.answer(
                lambda: self._shard_rows(piece, start, stop, read),
                num_rows=span.take,
                key_of=lambda number: self._chain.key_at(number, version, span),
                failure=failure,
            )
        except CorruptDataError as error:
            if error.shard is not None:
                raise
            raise CorruptDataError(
                error.detail, source=self._source, shard=piece.uri, row=span.at, advice=error.advice
            ) from error

    def _shard_rows(self, piece: Piece, start: int, stop: int, read: Callable[[int, int], Any]) -> Any:
        if self._encoding == PARQUET:
            return read(start, stop)
        if self._tables is None or self._tables[0] != piece.uri:
            self.close()
            is_here = is_local(piece.uri)
            tables = RecordTables(
                piece.uri,
                self._encoding,
                columns=self._names,
                source=self._source,
                objects=None if is_here else self._objects,
                info=None if is_here else ObjectInfo(piece.size_bytes or 0, piece.etag),
            )
            self._tables = (piece.uri, tables)
        return self._tables[1].read_rows(start, stop)

    def take_counts(self) -> tuple[int, int, str | None]:
        """Returns results found in the nodes' stores, and not, since the last call; once, why one was not kept."""
        stores = {id(store): store for node in self._chain.nodes if (store := node.settings.store) is not None}
        hits = sum(store.hits for store in stores.values())
        misses = sum(store.misses for store in stores.values())
        failure = next((store.failure for store in stores.values() if store.failure), None)
        told, self._told = self._told, (hits, misses, self._told[2] or failure)
        return hits - told[0], misses - told[1], None if told[2] else failure

    def close(self) -> None:
        """Closes what is open."""
        if self._tables is not None:
            self._tables[1].close()
            self._tables = None


def read_chain_footer(
    order: ReadFooter,
    fields: Sequence[FieldPlan],
    objects: RemoteObjects | None,
    on_progress: Callable[[], None],
) -> FooterRead:
    """Returns the units of a chain's shard; where the order has the chain, a few rows are run through it.

    What comes of a row is taken to be as large as the row itself where no rows were run.

    Raises:
        O41Error: The shard cannot be read, a node raised, or what comes of it does not give the fields.

    Called by: a worker.
    """
    reader = None
    if order.chain:
        reader = ChainReader(order.chain, fields, source=order.source, encoding=order.encoding, objects=objects)
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
        footer = _footer_of_records(order, objects, on_progress)
    row_bytes = 0
    groups = np.flatnonzero(footer.rows)
    if reader is not None and len(groups):
        row_bytes = _sampled_row_bytes(reader, order, fields, footer=footer, group=int(groups[0]), objects=objects)
        reader.close()
    results = np.maximum(footer.rows * row_bytes, 0 if row_bytes else footer.decoded_bytes)
    return FooterRead(
        task_id=order.task_id,
        rows=footer.rows.astype("<i8").tobytes(),
        decoded_bytes=(footer.decoded_bytes + results).astype("<i8").tobytes(),
        decoding_bytes=(footer.decoding_bytes + 2 * results).astype("<i8").tobytes(),
        compressed_bytes=footer.compressed_bytes.astype("<i8").tobytes(),
        footer_bytes=footer.footer_bytes,
        size_bytes=footer.size_bytes,
        mtime_ns=footer.mtime_ns,
        version=footer.version,
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


def _footer_of_records(
    order: ReadFooter, objects: RemoteObjects | None, on_progress: Callable[[], None]
) -> ShardFooter:
    count = count_records(
        order.uri,
        order.encoding,
        (),
        known_rows=order.known_rows,
        source=order.source,
        size_bytes=order.size_bytes,
        etag=order.etag,
        objects=objects,
        max_row_group_bytes=order.max_row_group_bytes,
        on_progress=on_progress,
    )
    rows, text_bytes, size_bytes = (
        np.array([number] if count.num_rows else [], np.int64)
        for number in (count.num_rows, count.text_bytes, count.size_bytes)
    )
    return ShardFooter(
        rows=rows,
        decoded_bytes=text_bytes,
        decoding_bytes=text_bytes,
        compressed_bytes=size_bytes,
        footer_bytes=0,
        size_bytes=count.size_bytes,
        mtime_ns=count.mtime_ns,
        version=count.version,
        plan=ProjectionPlan(fields=(), column_indices=(), num_leaves=0),
    )
