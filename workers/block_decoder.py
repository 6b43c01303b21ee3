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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.encodings import PARQUET, holds_records
from o41td.errors import DataError, O41Error, error_to_record
from o41td.order.leaving import LeavingOrder
from o41td.workers.messages import BlockDecoded, BlockFailed, DecodeBlock
from o41td.workers.parquet import ReaderPool, ShardReader
from o41td.workers.piece import TOGETHER_BYTES, Piece, SourceFormat, Uncached
from o41td.workers.project import RefusedRows

if TYPE_CHECKING:
    from o41td.workers.block_cache import BlockCache
    from o41td.workers.block_cache_rows import CachingReader
    from o41td.workers.record_reader import RecordReader

__all__ = ["BlockDecoder"]

BadRowsOfPiece = tuple[NDArray[np.int64], O41Error]


@dataclass(slots=True)
class _Work:
    """A block in the making: the order, where its rows go in the slot (None: as they come), what it has cost so far."""

    order: DecodeBlock
    places: NDArray[np.int64] | None
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
        cache: BlockCache | None = None,
    ) -> None:
        """`regions` are the arena's arrays by field, in which each slot has `block_rows` rows."""
        self._regions = regions
        self._block_rows = block_rows
        self._sources = sources
        self._readers = ReaderPool(max_row_group_bytes=max_row_group_bytes, max_held_units=max_held_units)
        self._caching: CachingReader | None = None
        if cache is not None:
            from o41td.workers.block_cache_rows import CachingReader

            self._caching = CachingReader(cache, sources, self.reader, max_row_group_bytes=max_row_group_bytes)

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
        )

    def is_kept(self, source: int, piece: Piece) -> bool:
        """Whether the block cache most likely has a piece, so that nothing of it need be fetched.

        Called by: any thread.
        """
        return self._caching is not None and self._caching.is_kept(source, piece)

    def will_need(self, source: int, piece: Piece) -> None:
        """Has a piece read ahead, which goes on while others are decoded.

        Raises:
            O41Error: As `reader`.
        """
        if self._caching is None or not self._caching.will_need(source, piece):
            self.reader(source, piece).will_need(piece.row_group)

    def decode(self, order: DecodeBlock, on_piece: Callable[[int], None]) -> BlockDecoded | BlockFailed:
        """Decodes a block: what is wrong with one row group is no harm to those packed beside it.

        `on_piece` hears the number of each piece before a careful worker begins it.

        Raises:
            MemoryError: The system refused memory, which is no fault of the data: another worker may have more luck.
        """
        start = time.perf_counter()
        places = None if order.leaving is None else LeavingOrder(*order.leaving).places(order.num_rows)
        work = _Work(order, places)
        bad: list[BadRowsOfPiece] = []
        pieces = [Piece(*piece) for piece in order.pieces]
        is_together = not order.careful and self._sources[order.source].encoding == PARQUET
        for group in _groups_of(pieces) if is_together else ([piece] for piece in pieces):
            if len(group) > 1 and self._decode_together(group, work):
                continue
            for piece in group:
                if order.careful:
                    on_piece(piece.number)
                bad.extend(self._decode_piece(piece, work))
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

    def close(self) -> None:
        """Closes every shard, and what is open of the cache."""
        self._readers.close()
        if self._caching is not None:
            self._caching.cache.close()

    # ---- many small pieces -----------------------------------------------------------------------------------------

    def _decode_together(self, pieces: Sequence[Piece], work: _Work) -> bool:
        """Decodes small pieces; returns whether all is well with them, else they are to be decoded one by one."""
        tables = []
        reader: ShardReader | None = None
        begun, fetch_s = time.perf_counter(), 0.0
        try:
            for _uri, of_shard in groupby(pieces, attrgetter("uri")):
                run = list(of_shard)
                opening = time.perf_counter()
                found = self.reader(work.order.source, run[0])
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
        first = work.order.slot * self._block_rows
        refused = reader.projector.write_fitting(
            table,
            {name: region[first : first + self._block_rows] for name, region in self._regions.items()},
            places=rows if work.places is None else work.places[rows],
        )
        if refused is not None:
            return False
        work.fetch_s += fetch_s
        work.decode_s += decode_s
        work.rows += table.num_rows
        work.read_bytes += table.nbytes
        return True

    # ---- one piece -------------------------------------------------------------------------------------------------

    def _decode_piece(self, piece: Piece, work: _Work) -> list[BadRowsOfPiece]:
        """Decodes a piece; returns which rows of the block cannot be had, and why.

        A record that cannot be had is no harm to those behind it, so it goes on there, unless a record before tells
        that nothing behind it can be had.
        """
        offset = piece.block_row - piece.row_start
        bad: list[BadRowsOfPiece] = []
        row = piece.row_start
        while row < piece.row_stop:
            try:
                done, refused, error = self._decode_rows(piece, row, work)
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
        self, piece: Piece, row_start: int, work: _Work
    ) -> tuple[int, RefusedRows | None, O41Error | None]:
        """Decodes a piece from a row on into the slot.

        Returns:
            How many rows were decoded, which of them do not fit, and why the next one, if there is one, cannot be had.
        """
        row_stop = piece.row_stop
        if self._caching is not None and not work.order.careful and self._caching.takes(work.order.source, piece):
            row_stop = self._caching.uncached_until(work.order.source, piece, row_start)
            if row_stop == row_start:
                return self._decode_cached(self._caching, piece, row_start, work)
        begun = time.perf_counter()
        reader = self.reader(work.order.source, piece)
        opened = time.perf_counter()
        work.fetch_s += opened - begun
        row_stop = min(row_stop, row_start + reader.rows_at_once(piece.row_group, piece.decoding_bytes))
        table = reader.read_rows(
            piece.row_group,
            row_start,
            row_stop,
            group_rows=piece.group_rows,
            decoding_bytes=piece.decoding_bytes,
        )
        work.decode_s += time.perf_counter() - opened
        refused = self._write(piece, reader.projector, table, row_start, work)
        work.rows += table.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += table.nbytes
        error: O41Error | None = getattr(table, "error", None)  # decoded records have one, or None; tables do not
        return table.num_rows, refused, error

    def _decode_cached(
        self, caching: CachingReader, piece: Piece, row_start: int, work: _Work
    ) -> tuple[int, RefusedRows | None, None]:
        """As `_decode_rows`, through the cache: rows are read, or decoded, as they are written."""
        rows = caching.rows(work.order.source, piece, row_start)
        try:
            refused = self._write(piece, caching.projector(work.order.source), rows, row_start, work)
        except Uncached:
            return 0, None, None  # the cache knows now which rows it cannot give
        except DataError:
            rows.refuse()
            return 0, None, None  # it fails again without the cache, and is told as it always is
        finally:
            work.fetch_s += rows.fetch_s
            work.decode_s += rows.decode_s
        work.rows += rows.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += rows.nbytes
        return rows.num_rows, refused, None

    def _write(self, piece: Piece, projector: Any, rows: Any, row_start: int, work: _Work) -> RefusedRows | None:
        """Writes rows of a piece, from row `row_start` of its unit on, where they go in the slot."""
        first, block_row = work.order.slot * self._block_rows, piece.block_row + row_start - piece.row_start
        places = work.places
        if places is None:
            first += block_row
        else:
            places = places[block_row : block_row + rows.num_rows]
        source = self._sources[work.order.source]
        refused: RefusedRows | None = projector.write_fitting(
            rows,
            {name: region[first:] for name, region in self._regions.items()},
            places=places,
            row_offset_in_shard=piece.shard_row + row_start,
            row_group=None if holds_records(source.encoding) else piece.row_group,
            shard=piece.uri,
            source=source.name,
        )
        return refused


def _is_of_earlier_row(error: O41Error, row: int) -> bool:
    """Whether a record could not even be come to, because of one before it."""
    return isinstance(error, DataError) and error.row is not None and error.row < row


def _groups_of(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Cuts a block's pieces into those to take together; small ones are taken shard by shard."""
    group: list[Piece] = []
    num_bytes = 0
    for piece in sorted((piece for piece in pieces if piece.is_small), key=attrgetter("uri", "row_group")):
        if group and num_bytes + piece.decoding_bytes > TOGETHER_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(piece)
        num_bytes += piece.decoding_bytes
    if group:
        yield group
    for piece in pieces:
        if not piece.is_small:
            yield [piece]
