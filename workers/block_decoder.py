"""Decoding a block into its slot: piece by piece, or many small pieces at once.

A piece costs about half a millisecond, however few rows it has: a call of Arrow's reader, some calls for each field.
Row groups of a few rows are therefore taken together: those of one shard in one read (of 25 rows each, sixteen take a
third of the time), and all in one projection. If anything about them is wrong, each is decoded again by
itself, which finds out which one it is and what can be had of the others. Pieces of a shard of records, of which bad
records and those that stand in for them make many, are read in one pass; what cannot be had is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.encodings import PARQUET, holds_records
from o41td.error_records import error_to_record
from o41td.errors import DataError, O41Error
from o41td.order.leaving import LeavingOrder
from o41td.workers.messages import BlockDecoded, BlockFailed, DecodeBlock
from o41td.workers.parquet import ShardReader
from o41td.workers.phase_clock import PhaseClock
from o41td.workers.piece import TOGETHER_BYTES, Piece, SourceFormat, Uncached
from o41td.workers.project import RefusedRows
from o41td.workers.reader_pool import ReaderPool
from o41td.workers.slot_rows import Placement

if TYPE_CHECKING:
    from o41td.workers.block_cache import BlockCache
    from o41td.workers.block_cache_rows import CachingReader
    from o41td.workers.chain_reader import ChainReader
    from o41td.workers.record_reader import RecordReader
    from o41td.workers.remote_objects import RemoteObjects
    from o41td.workers.shard_facts import FactsShelf

__all__ = ["BlockDecoder"]

BadRowsOfPiece = tuple[NDArray[np.int64], O41Error]


@dataclass(slots=True)
class _Work:
    """A block in the making: the order, where its rows go in the slot (None: as they come), what it has cost so far."""

    order: DecodeBlock
    places: Placement | None
    rows: int = 0
    read_bytes: int = 0
    clock: PhaseClock = field(default_factory=PhaseClock)


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
        cache: BlockCache | None = None,
    ) -> None:
        """`regions` are the arena's arrays by field, in which each slot has `block_rows` rows."""
        self._regions = regions
        self._block_rows = block_rows
        self._sources = sources
        self._objects = objects
        self._max_row_group_bytes = max_row_group_bytes
        self._chains: dict[int, ChainReader] = {}
        self._readers = ReaderPool(
            objects=objects, facts=facts, max_row_group_bytes=max_row_group_bytes, max_held_units=max_held_units
        )
        self._caching: CachingReader | None = None
        if cache is not None:
            from o41td.workers.block_cache_rows import CachingReader

            self._caching = CachingReader(cache, sources, self.reader, max_row_group_bytes=max_row_group_bytes)

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
            plans=None if of.chain is None else self._chain(source).columns,
        )

    def _chain(self, source: int) -> ChainReader:
        """The nodes of a source that is a chain.

        Raises:
            ConfigError: They cannot be built here.
        """
        chain = self._chains.get(source)
        if chain is None:
            from o41td.workers.chain_reader import ChainReader  # it brings the nodes, and msgspec

            of = self._sources[source]
            assert of.chain is not None
            chain = ChainReader(
                of.chain,
                of.fields,
                source=of.name,
                encoding=of.encoding,
                max_row_group_bytes=self._max_row_group_bytes,
                objects=self._objects,
            )
            self._chains[source] = chain
        return chain

    def take_result_counts(self, source: int) -> tuple[int, int, str | None] | None:
        """As `ChainReader.take_counts`, of a source that is a chain; else None."""
        chain = self._chains.get(source)
        return None if chain is None else chain.take_counts()

    def is_kept(self, source: int, piece: Piece) -> bool:
        """Whether the block cache most likely has a piece, so that nothing of it need be fetched.

        Called by: any thread.
        """
        return self._caches(source) and cast("CachingReader", self._caching).is_kept(source, piece)

    def _caches(self, source: int) -> bool:
        """Whether the block cache is for this source: what comes of nodes is kept where the user says."""
        return self._caching is not None and self._sources[source].chain is None

    def will_need(self, source: int, piece: Piece) -> None:
        """Has a piece read ahead, which goes on while others are decoded.

        Raises:
            O41Error: As `reader`.
        """
        if self._sources[source].chain is not None and self._sources[source].encoding != PARQUET:
            return
        if not self._caches(source) or not cast("CachingReader", self._caching).will_need(source, piece):
            self.reader(source, piece).will_need(piece.row_group)

    def decode(self, order: DecodeBlock, on_piece: Callable[[int], None]) -> BlockDecoded | BlockFailed:
        """Decodes a block: what is wrong with one row group is no harm to those packed beside it.

        `on_piece` hears the number of each piece before a careful worker begins it.

        Raises:
            MemoryError: The system refused memory, which is no fault of the data: another worker may have more luck.
        """
        leaving = None if order.leaving is None else LeavingOrder(*order.leaving)
        work = _Work(order, None if leaving is None else Placement(order=leaving.rows(order.num_rows)))
        bad: list[BadRowsOfPiece] = []
        pieces = [Piece(*piece) for piece in order.pieces]
        is_chain = self._sources[order.source].chain is not None
        are_records = holds_records(self._sources[order.source].encoding) and not is_chain
        groups: Iterable[list[Piece]] = ([piece] for piece in pieces)
        if are_records and not order.careful:
            groups = _shards_of(pieces)
        elif not order.careful and not is_chain:
            groups = _groups_of(pieces, [piece.is_small and not self.is_kept(order.source, piece) for piece in pieces])
        for group in groups:
            if order.careful:
                on_piece(group[0].number)
            if are_records:
                bad.extend(self._decode_records(group, work))
            elif is_chain or len(group) == 1 or not self._decode_together(group, work):
                for piece in group:
                    bad.extend(self._decode_piece(piece, work))
        bad_rows = [rows.astype("<i8").tobytes() for rows, _error in bad]
        bad_errors = [error_to_record(error) for _rows, error in bad]
        if bad and work.rows == 0:
            return BlockFailed(order.block_id, bad_rows, bad_errors)
        project_s, project_cpu_s = work.clock.rest_s()
        return BlockDecoded(
            block_id=order.block_id,
            rows=work.rows,
            read_bytes=work.read_bytes,
            fetch_s=work.clock.fetch_s,
            decode_s=work.clock.decode_s,
            project_s=project_s,
            fetch_cpu_s=work.clock.fetch_cpu_s,
            decode_cpu_s=work.clock.decode_cpu_s,
            project_cpu_s=project_cpu_s,
            bad_rows=bad_rows,
            bad_errors=bad_errors,
        )

    def close(self) -> None:
        """Closes every shard, and what is open of the cache."""
        self._readers.close()
        for chain in self._chains.values():
            chain.close()
        if self._caching is not None:
            self._caching.cache.close()

    # ---- many small pieces -----------------------------------------------------------------------------------------

    def _decode_together(self, pieces: Sequence[Piece], work: _Work) -> bool:
        """Decodes small pieces; returns whether all is well with them, else they are to be decoded one by one."""
        tables = []
        reader: ShardReader | None = None
        work.clock.begin()
        try:
            for _uri, of_shard in groupby(pieces, attrgetter("uri")):
                run = list(of_shard)
                work.clock.decoded()
                found = self.reader(work.order.source, run[0])
                work.clock.fetched()
                assert isinstance(found, ShardReader)
                if reader is not None and found.plan is not reader.plan:
                    return False
                reader = found
                tables.append(reader.read_groups([(piece.row_group, piece.group_rows) for piece in run]))
            assert reader is not None
            table = pa.concat_tables(tables).combine_chunks()
        except (O41Error, pa.ArrowException):
            return False
        work.clock.decoded()
        rows = np.concatenate([np.arange(piece.block_row, piece.block_row + piece.num_rows) for piece in pieces])
        first = work.order.slot * self._block_rows
        refused = reader.projector.write_fitting(
            table,
            {name: region[first : first + self._block_rows] for name, region in self._regions.items()},
            places=rows if work.places is None else work.places[rows],
        )
        if refused is not None:
            return False
        work.rows += table.num_rows
        work.read_bytes += table.nbytes
        if self._caching is not None:
            work.clock.begin()
            row = 0
            for piece in pieces:
                self._caching.keep(work.order.source, piece, table.slice(row, piece.num_rows))
                row += piece.num_rows
            work.clock.fetched()
        return True

    # ---- one piece -------------------------------------------------------------------------------------------------

    def _decode_piece(self, piece: Piece, work: _Work) -> list[BadRowsOfPiece]:
        """Decodes a piece of a Parquet shard; returns which rows of the block cannot be had, and why."""
        offset = piece.block_row - piece.row_start
        bad: list[BadRowsOfPiece] = []
        row = piece.row_start
        while row < piece.row_stop:
            try:
                done, refused = self._decode_rows(piece, row, work)
            except O41Error as failure:
                bad.append((np.arange(row, piece.row_stop) + offset, failure))
                break
            if refused is not None:
                bad.append((refused.rows + row + offset, refused.error))
            row += done
        return bad

    def _decode_rows(self, piece: Piece, row_start: int, work: _Work) -> tuple[int, RefusedRows | None]:
        """Decodes a piece from a row on into the slot; returns how many rows, and which of them do not fit."""
        if self._sources[work.order.source].chain is not None:
            return self._decode_chain(piece, row_start, work)
        row_stop = piece.row_stop
        caching = self._caching_of(piece, work)
        if caching is not None:
            row_stop = caching.uncached_until(work.order.source, piece, row_start)
            if row_stop == row_start:
                return self._decode_cached(caching, piece, row_start, work)
        work.clock.begin()
        reader = self.reader(work.order.source, piece)
        assert isinstance(reader, ShardReader)
        work.clock.fetched()
        row_stop = min(row_stop, row_start + reader.rows_at_once(piece.row_group, piece.decoding_bytes))
        table = reader.read_rows(
            piece.row_group,
            row_start,
            row_stop,
            group_rows=piece.group_rows,
            decoding_bytes=piece.decoding_bytes,
        )
        work.clock.decoded()
        refused = self._write(piece, reader.projector, table, row_start, work)
        work.rows += table.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += table.nbytes
        return table.num_rows, refused

    def _decode_chain(self, piece: Piece, row_start: int, work: _Work) -> tuple[int, RefusedRows | None]:
        """As `_decode_rows`, through the nodes of a source that is a chain."""
        source = work.order.source
        chain = self._chain(source)

        def read(start: int, stop: int) -> Any:
            work.clock.decoded()
            reader = self.reader(source, piece)
            assert isinstance(reader, ShardReader)
            work.clock.fetched()
            return reader.read_rows(
                piece.row_group, start, stop, group_rows=piece.group_rows, decoding_bytes=piece.decoding_bytes
            )

        work.clock.begin()
        rows = chain.rows(piece, row_start, piece.row_stop, read)
        work.clock.decoded()
        refused = self._write(piece, chain.projector, rows, row_start, work)
        work.rows += rows.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += rows.nbytes
        return rows.num_rows, refused

    # ---- records ---------------------------------------------------------------------------------------------------

    def _decode_records(self, pieces: Sequence[Piece], work: _Work) -> list[BadRowsOfPiece]:
        """Decodes pieces of a shard of records; returns which rows of the block cannot be had, and why."""
        bad: list[BadRowsOfPiece] = []
        lacking: list[Piece] = []
        for piece in pieces:
            caching = self._caching_of(piece, work)
            if caching is None:
                lacking.append(piece)
            else:
                bad.extend(self._decode_kept_records(caching, piece, lacking, work))
        return bad + (self._decode_in_one_pass(lacking, work) if lacking else [])

    def _decode_kept_records(
        self, caching: CachingReader, piece: Piece, lacking: list[Piece], work: _Work
    ) -> list[BadRowsOfPiece]:
        """Decodes what the cache has of a piece, or can keep; adds what it has not to `lacking`."""
        offset = piece.block_row - piece.row_start
        bad: list[BadRowsOfPiece] = []
        row = piece.row_start
        while row < piece.row_stop:
            until = caching.uncached_until(work.order.source, piece, row)
            if until > row:
                lacking.append(piece._replace(row_start=row, row_stop=until, block_row=row + offset))
                row = until
                continue
            try:
                done, refused = self._decode_cached(caching, piece, row, work)
            except O41Error as failure:
                bad.append((np.arange(row, piece.row_stop) + offset, failure))
                break
            if refused is not None:
                bad.append((refused.rows + row + offset, refused.error))
            row += done
        return bad

    def _decode_in_one_pass(self, pieces: Sequence[Piece], work: _Work) -> list[BadRowsOfPiece]:
        """Decodes pieces of a shard of records without the cache."""
        source, places = work.order.source, work.places
        block_rows = np.concatenate([np.arange(piece.block_row, piece.block_row + piece.num_rows) for piece in pieces])
        first = work.order.slot * self._block_rows
        slot = {name: region[first : first + self._block_rows] for name, region in self._regions.items()}
        bad: list[BadRowsOfPiece] = []
        done = 0
        work.clock.begin()
        try:
            reader = cast("RecordReader", self.reader(source, pieces[0]))
            spans = [(piece.row_start, piece.row_stop) for piece in pieces]
            work.clock.fetched()
            for records in reader.slices(spans, group_rows=pieces[0].group_rows):
                work.clock.decoded()
                own = block_rows[done : done + records.num_rows]
                done += len(own)
                refused = reader.projector.write_fitting(
                    records,
                    slot,
                    places=own if places is None else places[own],
                    shard=pieces[0].uri,
                    source=self._sources[source].name,
                )
                bad += [(own[at], error) for at, error in records.refused]
                if refused is not None:
                    bad.append((own[refused.rows], refused.error))
                work.rows += len(own) - records.num_refused - (0 if refused is None else len(refused.rows))
                work.read_bytes += records.nbytes
                work.clock.begin()
        except O41Error as failure:
            bad.append((block_rows[done:], failure))
        return bad

    # ---- through the cache -----------------------------------------------------------------------------------------

    def _caching_of(self, piece: Piece, work: _Work) -> CachingReader | None:
        """The cache's reader where a piece is read through it."""
        if (
            self._caching is None
            or not self._caches(work.order.source)
            or work.order.careful
            or not self._caching.takes(work.order.source, piece)
        ):
            return None
        return self._caching

    def _decode_cached(
        self, caching: CachingReader, piece: Piece, row_start: int, work: _Work
    ) -> tuple[int, RefusedRows | None]:
        """As `_decode_rows`, through the cache: rows are read, or decoded, as they are written."""
        rows = caching.rows(work.order.source, piece, row_start, work.clock)
        try:
            refused = self._write(piece, caching.projector(work.order.source), rows, row_start, work)
        except Uncached:
            return 0, None  # the cache knows now which rows it cannot give
        except DataError:
            rows.refuse()
            return 0, None  # it fails again without the cache, and is told as it always is
        work.rows += rows.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += rows.nbytes
        return rows.num_rows, refused

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
            row_group=piece.row_group if source.encoding == PARQUET else None,
            shard=piece.uri,
            source=source.name,
        )
        return refused


def _shards_of(pieces: Sequence[Piece]) -> Iterable[list[Piece]]:
    """Cuts a block's pieces into those of one shard each."""
    shards: dict[str, list[Piece]] = {}
    for piece in pieces:
        shards.setdefault(piece.uri, []).append(piece)
    return shards.values()


def _groups_of(pieces: Sequence[Piece], are_together: Sequence[bool]) -> Iterator[list[Piece]]:
    """Cuts a block's pieces into groups, shard by shard of those that are taken together; others are alone."""
    group: list[Piece] = []
    num_bytes = 0
    for piece in sorted(compress(pieces, are_together), key=attrgetter("uri", "row_group")):
        if group and num_bytes + piece.decoding_bytes > TOGETHER_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(piece)
        num_bytes += piece.decoding_bytes
    if group:
        yield group
    for piece, is_together in zip(pieces, are_together, strict=True):
        if not is_together:
            yield [piece]
