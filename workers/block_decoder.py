"""Decoding a block into its slot: piece by piece, or many small pieces at once.

A piece costs about half a millisecond, however few rows it has: a call of Arrow's reader, some calls for each field.
Row groups of a few rows are therefore taken together: those of one shard in one read (of 25 rows each, sixteen take a
third of the time), and all in one projection. If anything about them is wrong, each is decoded again by
itself, which finds out which one it is and what can be had of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.encodings import PARQUET
from o41td.errors import DataError, O41Error, error_to_record
from o41td.fields import FieldPlan
from o41td.order.leaving import LeavingOrder
from o41td.workers.messages import BlockDecoded, BlockFailed, DecodeBlock
from o41td.workers.parquet import ReaderPool, ShardReader
from o41td.workers.project import RefusedRows

if TYPE_CHECKING:
    from o41td.workers.record_reader import RecordReader
    from o41td.workers.remote_objects import RemoteObjects
    from o41td.workers.shard_facts import FactsShelf

__all__ = ["BlockDecoder", "Piece", "SourceFormat"]

_SMALL_PIECE_ROWS = 512
_TOGETHER_BYTES = 1 << 20
"""What row groups that are taken together take to decode, at most; as much again while they are made one table."""

BadRowsOfPiece = tuple[NDArray[np.int64], O41Error]


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
    etag: str | None = None

    @property
    def num_rows(self) -> int:
        """Its rows."""
        return self.row_stop - self.row_start

    @property
    def is_small(self) -> bool:
        """Whether it is a whole row group of few rows."""
        is_whole = self.row_start == 0 and self.row_stop == self.group_rows
        return is_whole and self.num_rows <= _SMALL_PIECE_ROWS and self.decoding_bytes <= _TOGETHER_BYTES // 8


class SourceFormat(NamedTuple):
    """A source: its name, its fields, its shards' encoding."""

    name: str
    fields: tuple[FieldPlan, ...]
    encoding: str


@dataclass(slots=True)
class _Work:
    """What one block has cost so far."""

    rows: int = 0
    read_bytes: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0


class BlockDecoder:
    """Decodes blocks of some sources into the slots of an arena.

    Called by: a worker's main thread.
    """

    def __init__(
        self,
        regions: Mapping[str, NDArray[Any]],
        block_rows: int,
        sources: Sequence[SourceFormat],
        *,
        max_row_group_bytes: int,
        max_held_units: int,
        objects: RemoteObjects | None = None,
        facts: FactsShelf | None = None,
    ) -> None:
        """`regions` are the arena's arrays by field, in which each slot has `block_rows` rows."""
        self._regions = regions
        self._block_rows = block_rows
        self._sources = sources
        self._readers = ReaderPool(
            objects=objects, facts=facts, max_row_group_bytes=max_row_group_bytes, max_held_units=max_held_units
        )

    def is_held(self, source: int, uri: str, row_group: int) -> bool:
        """Whether a row group is decoded here, as `ReaderPool.is_held`."""
        return self._readers.is_held(source, uri, row_group)

    def reader(self, source: int, piece: Piece) -> ShardReader | RecordReader:
        """Returns the open reader of a piece's shard.

        Raises:
            O41Error: It cannot be opened, or is not what was indexed.
        """
        of = self._sources[source]
        return self._readers.reader(
            source,
            piece.uri,
            of.fields,
            encoding=of.encoding,
            source=of.name,
            size_bytes=piece.size_bytes,
            mtime_ns=piece.mtime_ns,
            num_rows=piece.shard_rows,
            etag=piece.etag,
        )

    def decode(self, order: DecodeBlock, on_piece: Callable[[int], None]) -> BlockDecoded | BlockFailed:
        """Decodes a block: what is wrong with one row group is no harm to those packed beside it.

        `on_piece` hears the number of each piece before a careful worker begins it.

        Raises:
            MemoryError: The system refused memory, which is no fault of the data: another worker may have more luck.
        """
        start = time.perf_counter()
        work = _Work()
        bad: list[BadRowsOfPiece] = []
        places = None if order.leaving is None else LeavingOrder(*order.leaving).places(order.num_rows)
        pieces = [Piece(*piece) for piece in order.pieces]
        is_together = not order.careful and self._sources[order.source].encoding == PARQUET
        for group in _groups_of(pieces) if is_together else ([piece] for piece in pieces):
            if len(group) > 1 and self._decode_together(order, group, places, work):
                continue
            for piece in group:
                if order.careful:
                    on_piece(piece.number)
                bad.extend(self._decode_piece(order, piece, places, work))
        bad_rows = [rows.astype("<i8").tobytes() for rows, _error in bad]
        bad_errors = [error_to_record(error) for _rows, error in bad]
        if bad and work.rows == 0:
            return BlockFailed(order.block_id, bad_rows, bad_errors)
        project_s = time.perf_counter() - start - work.fetch_s - work.decode_s
        return BlockDecoded(
            block_id=order.block_id,
            rows=work.rows,
            read_bytes=work.read_bytes,
            fetch_s=work.fetch_s,
            decode_s=work.decode_s,
            project_s=project_s,
            bad_rows=bad_rows,
            bad_errors=bad_errors,
        )

    # ---- many small pieces -----------------------------------------------------------------------------------------

    def _decode_together(
        self, order: DecodeBlock, pieces: Sequence[Piece], places: NDArray[np.int64] | None, work: _Work
    ) -> bool:
        """Decodes small pieces; returns whether all is well with them, else they are to be decoded one by one."""
        tables = []
        reader: ShardReader | None = None
        begun, fetch_s = time.perf_counter(), 0.0
        try:
            for _uri, of_shard in groupby(pieces, attrgetter("uri")):
                run = list(of_shard)
                opening = time.perf_counter()
                found = self.reader(order.source, run[0])
                fetch_s += time.perf_counter() - opening
                assert isinstance(found, ShardReader)
                if reader is not None and found.plan is not reader.plan:
                    return False
                reader = found
                tables.append(reader.read_groups([(piece.row_group, piece.group_rows) for piece in run]))
            assert reader is not None
            table = pa.concat_tables(tables).combine_chunks()
        except (O41Error, pa.ArrowException):
            return False
        decode_s = time.perf_counter() - begun - fetch_s
        rows = np.concatenate([np.arange(piece.block_row, piece.block_row + piece.num_rows) for piece in pieces])
        first = order.slot * self._block_rows
        refused = reader.projector.write_fitting(
            table,
            {name: region[first : first + self._block_rows] for name, region in self._regions.items()},
            places=rows if places is None else places[rows],
        )
        if refused is not None:
            return False
        work.fetch_s += fetch_s
        work.decode_s += decode_s
        work.rows += table.num_rows
        work.read_bytes += table.nbytes
        return True

    # ---- one piece -------------------------------------------------------------------------------------------------

    def _decode_piece(
        self, order: DecodeBlock, piece: Piece, places: NDArray[np.int64] | None, work: _Work
    ) -> list[BadRowsOfPiece]:
        """Decodes a piece; returns which rows of the block cannot be had, and why.

        A record that cannot be had is no harm to those behind it, so it goes on there, unless a record before tells
        that nothing behind it can be had.
        """
        offset = piece.block_row - piece.row_start
        bad: list[BadRowsOfPiece] = []
        row = piece.row_start
        while row < piece.row_stop:
            try:
                done, refused, error = self._decode_rows(order, piece, row, places, work)
            except O41Error as failure:
                bad.append((np.arange(row, piece.row_stop) + offset, failure))
                break
            if refused is not None:
                bad.append((refused.rows + row + offset, refused.error))
            row += done
            if error is not None:
                first = min(row, piece.row_stop - 1)  # what is wrong behind a shard's last record is told of that one
                row = piece.row_stop if _is_of_earlier_row(error, row) else first + 1
                bad.append((np.arange(first, row) + offset, error))
        return bad

    def _decode_rows(
        self, order: DecodeBlock, piece: Piece, row_start: int, places: NDArray[np.int64] | None, work: _Work
    ) -> tuple[int, RefusedRows | None, O41Error | None]:
        """Decodes a piece from a row on into the slot.

        Returns:
            How many rows were decoded, which of them do not fit, and why the next one, if there is one, cannot be had.
        """
        begun = time.perf_counter()
        reader = self.reader(order.source, piece)
        opened = time.perf_counter()
        work.fetch_s += opened - begun
        row_stop = min(piece.row_stop, row_start + reader.rows_at_once(piece.row_group, piece.decoding_bytes))
        table = reader.read_rows(
            piece.row_group,
            row_start,
            row_stop,
            group_rows=piece.group_rows,
            decoding_bytes=piece.decoding_bytes,
        )
        work.decode_s += time.perf_counter() - opened
        first, block_row = order.slot * self._block_rows, piece.block_row + row_start - piece.row_start
        if places is None:
            first += block_row
        else:
            places = places[block_row : block_row + table.num_rows]
        refused = reader.projector.write_fitting(
            table,
            {name: region[first:] for name, region in self._regions.items()},
            places=places,
            row_offset_in_shard=piece.shard_row + row_start,
            row_group=piece.row_group,
            shard=piece.uri,
            source=self._sources[order.source].name,
        )
        work.rows += table.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += table.nbytes
        error: O41Error | None = getattr(table, "error", None)  # decoded records have one, or None; tables do not
        return table.num_rows, refused, error


def _is_of_earlier_row(error: O41Error, row: int) -> bool:
    """Whether a record could not even be come to, because of one before it."""
    return isinstance(error, DataError) and error.row is not None and error.row < row


def _groups_of(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Cuts a block's pieces into those to take together; small ones are taken shard by shard."""
    group: list[Piece] = []
    num_bytes = 0
    for piece in sorted((piece for piece in pieces if piece.is_small), key=attrgetter("uri", "row_group")):
        if group and num_bytes + piece.decoding_bytes > _TOGETHER_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(piece)
        num_bytes += piece.decoding_bytes
    if group:
        yield group
    for piece in pieces:
        if not piece.is_small:
            yield [piece]
