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
from functools import partial
from typing import TYPE_CHECKING, Any

from o41td.encodings import NODE, PARQUET
from o41td.errors import ConfigError, CorruptDataError, NodeError, O41Error
from o41td.fields import FieldPlan
from o41td.listing import is_local
from o41td.memory_costs import STREAM_BATCH_BYTES
from o41td.nodes import Chain, Node, Span
from o41td.nodes.parcel import opened
from o41td.workers.object_store import ObjectInfo
from o41td.workers.parts_projector import PartsProjector
from o41td.workers.piece import Piece
from o41td.workers.record_tables import RecordTables
from o41td.workers.whole_columns import WholeColumns

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ChainReader", "ChainRows"]

_GRID_ROWS = 1024


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
        max_row_group_bytes: Where units take more to decode, few rows of them are run at once.
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
        max_row_group_bytes: int,
        objects: RemoteObjects | None = None,
    ) -> None:
        self._chain = opened(parcel)
        self._max_row_group_bytes = max_row_group_bytes
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
        self.names = names
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
            MemoryError: The system refused memory.
        """
        at_once = self._rows_at_once(piece)
        if not self._keeps_by_place:
            return ChainRows(self._answer(piece, start, min(stop, start + at_once), read))
        grid = min(_GRID_ROWS, 1 << (at_once.bit_length() - 1))
        cell_start = start - start % grid
        cell_stop = min(cell_start + grid, piece.group_rows)
        name = (piece.uri, piece.shard_row, cell_start)
        if self._cell[0] != name:
            self._cell = (None, None)
            self._cell = (name, self._answer(piece, cell_start, cell_stop, read))
        return ChainRows(self._cell[1].slice(start - cell_start, min(stop, cell_stop) - start))

    def _rows_at_once(self, piece: Piece) -> int:
        """Rows that are run at once: few where they are large, whatever becomes of them."""
        if piece.decoding_bytes <= self._max_row_group_bytes:
            return max(_GRID_ROWS, piece.group_rows)
        return max(1, piece.group_rows * STREAM_BATCH_BYTES // piece.decoding_bytes)

    def _answer(self, piece: Piece, start: int, stop: int, read: Callable[[int, int], Any]) -> Any:
        span = Span(piece.shard_row + start, stop - start)
        version = f"{piece.uri} {piece.version or (piece.size_bytes, piece.mtime_ns)}"
        try:
            return self._chain.answer(
                lambda: self._source_rows(piece, span, read),
                num_rows=span.take,
                key_of=lambda number: self._chain.key_at(number, version, span),
                failure=partial(self._failure, piece, span),
            )
        except CorruptDataError as error:
            if error.shard is not None:
                raise
            raise CorruptDataError(
                error.detail, source=self._source, shard=piece.uri, row=span.at, advice=error.advice
            ) from error

    def _failure(self, piece: Piece, span: Span, node: Node, error: Exception) -> Exception:
        """What is told of an exception: ours as they are, those of nodes with where they were raised."""
        if isinstance(error, MemoryError) or (isinstance(error, O41Error) and not isinstance(error, ConfigError)):
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

    def _source_rows(self, piece: Piece, span: Span, read: Callable[[int, int], Any]) -> Any:
        if self._encoding == NODE:
            self._chain.refuse_changes()
            return self._chain.nodes[0].forward(span)
        start, stop = span.at - piece.shard_row, span.stop - piece.shard_row
        if self._encoding == PARQUET:
            return read(start, stop)
        if self._tables is None or self._tables[0] != piece.uri:
            self.close()
            is_here = is_local(piece.uri)
            tables = RecordTables(
                piece.uri,
                self._encoding,
                columns=self.names,
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
