"""Rows of a piece through the block cache: read where they are kept, else decoded and kept.

What is kept is the unit of decoding, in the order of the file, as the reader gave it: the projected columns in Arrow,
not yet cut, padded or converted. So it is the same for every seed, buffer, block size and rank, for every length and
dtype of Parquet fields, and takes no padding. Slots, in the order in which rows leave a shuffle, are good for one epoch
of one order. And everything behind the reader runs as without a cache: the same values are refused, in the same words.

| unit | is kept as |
|---|---|
| a row group that is decoded whole | itself; a slice reads the parts that it touches |
| a row group too large for that, a shard of records | fixed chunks of about 4 MiB to decode |
| a row group of few rows, of a local file | nothing: many are decoded at once, in a third of the time of a file each |
| what cannot be had whole: a damaged page, a bad record | nothing: it is decoded as without a cache, each time |

A chunk is decoded whole though a slice may want only its end, or beginning: its neighbour finds the rest kept.

A key is a digest of the shard (where it is, size, modification time, version), of how many rows it and the unit have,
of the rows, of what is projected, and of this format. A local shard is looked at before rows of it are taken from the
cache, as it is before they are decoded; of remote ones the version tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgpack
import numpy as np

from o41td.encodings import holds_records
from o41td.fields import FieldPlan
from o41td.listing import is_local
from o41td.memory_costs import STREAM_BATCH_BYTES
from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_file import BrokenUnit, DecodedPart, cut_parts, parts_of
from o41td.workers.parts_projector import PartsProjector
from o41td.workers.phase_clock import PhaseClock
from o41td.workers.piece import Piece, SourceFormat, Uncached
from o41td.workers.shard_file import ShardIdentity, check_unchanged

__all__ = ["CachedRows", "CachingReader"]

_FORMAT = 1
"""Grows when a kept unit would not be what the reader gives now."""

_CHUNK_BYTES = 4 << 20

_Chunk = tuple[int, int]


class CachingReader:
    """Reads pieces of some sources through a cache.

    Args:
        cache: The cache.
        sources: The sources.
        reader_of: Gives the open reader of a piece's shard, as (source, piece).
        max_row_group_bytes: Row groups whose decoding takes more are kept in chunks.
    """

    def __init__(
        self,
        cache: BlockCache,
        sources: Sequence[SourceFormat],
        reader_of: Callable[[int, Piece], Any],
        *,
        max_row_group_bytes: int,
    ) -> None:
        self._cache = cache
        self._sources = sources
        self._reader_of = reader_of
        self._max_row_group_bytes = max_row_group_bytes
        self._projections = [_projection_of(source, max_row_group_bytes) for source in sources]
        self._projectors: dict[int, PartsProjector] = {}

    @property
    def cache(self) -> BlockCache:
        """The cache."""
        return self._cache

    def takes(self, source: int, piece: Piece) -> bool:
        """Whether a piece goes through the cache."""
        if not is_local(piece.uri):
            return piece.version is not None
        is_known = bool(piece.size_bytes) and piece.mtime_ns is not None
        return is_known and (holds_records(self._sources[source].encoding) or not piece.is_of_small_unit)

    def projector(self, source: int) -> PartsProjector:
        """What writes `CachedRows` of a source into a slot."""
        found = self._projectors.get(source)
        if found is None:
            of = self._sources[source]
            found = self._projectors[source] = PartsProjector(_layers_of(of))
        return found

    def uncached_until(self, source: int, piece: Piece, row_start: int) -> int:
        """Up to which row of a piece, from one on, rows are to be had without the cache; that row where it has them.

        Of records a chunk that cannot be had whole is no harm to the others. Of a row group that is damaged further on,
        as many rows are lost as are read at once, with a cache as without.
        """
        until = row_start
        for key, chunk in self._step(source, piece, row_start):
            if self._cache.refuses(key):
                if not holds_records(self._sources[source].encoding):
                    return piece.row_stop
                until = min(chunk[1], piece.row_stop)
            elif holds_records(self._sources[source].encoding):
                break
        return until

    def rows(self, source: int, piece: Piece, row_start: int, clock: PhaseClock) -> CachedRows:
        """The rows of a piece from a row of the unit on, as many as are read at once and can be kept: at least one.

        Raises:
            DataError: The local shard is not what was indexed.
        """
        chunks = list(takewhile(lambda found: not self._cache.refuses(found[0]), self._step(source, piece, row_start)))
        assert chunks, "a row that cannot be kept is not asked for"
        row_stop = min(piece.row_stop, row_start + self._rows_at_once(source, piece), chunks[-1][1][1])
        if is_local(piece.uri):
            assert piece.size_bytes is not None
            assert piece.mtime_ns is not None
            identity = ShardIdentity(size_bytes=piece.size_bytes, mtime_ns=piece.mtime_ns)
            check_unchanged(identity, piece.uri, source=self._sources[source].name)
        return CachedRows(
            self._cache,
            chunks,
            row_start,
            row_stop,
            decode=lambda chunk: self._decode(source, piece, chunk),
            clock=clock,
        )

    def keep(self, source: int, piece: Piece, table: Any) -> None:
        """Keeps a row group that was decoded whole beside others."""
        if self.takes(source, piece):
            ((key, _chunk),) = self._chunks_of(source, piece, 0, piece.group_rows)
            self._cache.counts.misses += 1
            self._cache.keep(key, parts_of(table))

    def is_kept(self, source: int, piece: Piece) -> bool:
        """Whether a piece will most likely be found whole, so that nothing of it need be fetched.

        Called by: any thread.
        """
        if not self.takes(source, piece):
            return False
        chunks = self._chunks_of(source, piece, piece.row_start, piece.row_stop)
        return all(self._cache.has(key) for key, _chunk in chunks)

    def will_need(self, source: int, piece: Piece) -> bool:
        """Asks the kernel to read a piece ahead if it is kept; returns whether it is."""
        if not self.takes(source, piece):
            return False
        found = []
        for key, chunk in self._chunks_of(source, piece, piece.row_start, piece.row_stop):
            unit = self._cache.find(key)
            if unit is None:
                return False
            found.append((unit, chunk))
            unit.will_need(max(0, piece.row_start - chunk[0]), piece.row_stop - chunk[0])
        return True

    def _decode(self, source: int, piece: Piece, chunk: _Chunk) -> list[DecodedPart]:
        """Decodes rows of a unit, all or none."""
        rows = self._reader_of(source, piece).read_rows(
            piece.row_group,
            *chunk,
            group_rows=piece.group_rows,
            decoding_bytes=piece.decoding_bytes,
        )
        if not holds_records(self._sources[source].encoding):
            return parts_of(rows)
        parts: list[DecodedPart] = [(len(places), tables) for places, tables in rows.parts]
        in_order = np.concatenate([np.empty(0, np.int64), *(places for places, _tables in rows.parts)])
        if rows.refused or not np.array_equal(in_order, np.arange(chunk[1] - chunk[0])):
            raise Uncached
        return parts

    def _is_whole(self, source: int, piece: Piece) -> bool:
        """Whether a piece's unit is decoded, and kept, whole."""
        if holds_records(self._sources[source].encoding):
            return False
        return piece.decoding_bytes <= self._max_row_group_bytes or piece.group_rows == 1

    def _rows_at_once(self, source: int, piece: Piece) -> int:
        """As the shard's reader says, which need not be open."""
        if holds_records(self._sources[source].encoding) or self._is_whole(source, piece):
            return piece.group_rows
        return max(1, piece.group_rows * STREAM_BATCH_BYTES // piece.decoding_bytes)

    def _step(self, source: int, piece: Piece, row_start: int) -> Iterator[tuple[bytes, _Chunk]]:
        """Yields the chunks of the rows that are read at once."""
        row_stop = min(piece.row_stop, row_start + self._rows_at_once(source, piece))
        return self._chunks_of(source, piece, row_start, row_stop)

    def _chunks_of(self, source: int, piece: Piece, row_start: int, row_stop: int) -> Iterator[tuple[bytes, _Chunk]]:
        """Yields the chunks of a piece's unit that rows of it lie in, each with its key."""
        chunk_rows = piece.group_rows
        if not self._is_whole(source, piece):
            chunk_rows = max(1, piece.group_rows * _CHUNK_BYTES // max(1, piece.decoding_bytes))
        for first in range(row_start // chunk_rows * chunk_rows, row_stop, chunk_rows):
            chunk = (first, min(first + chunk_rows, piece.group_rows))
            yield self._key_of(source, piece, chunk), chunk

    def _key_of(self, source: int, piece: Piece, chunk: _Chunk) -> bytes:
        of_shard = [piece.uri, piece.size_bytes, piece.mtime_ns, piece.version, piece.shard_rows]
        of_unit = [piece.row_group, piece.group_rows, *chunk]
        named = msgpack.packb(
            [_FORMAT, *of_shard, *of_unit, self._projections[source]], unicode_errors="surrogateescape"
        )
        return hashlib.blake2b(named, digest_size=16).digest()


class CachedRows:
    """Rows [row_start, row_stop) of a unit, read or decoded part by part while they are projected.

    Attributes:
        num_rows: The rows.
        nbytes: What the rows so far take in Arrow.
    """

    def __init__(
        self,
        cache: BlockCache,
        chunks: Sequence[tuple[bytes, _Chunk]],
        row_start: int,
        row_stop: int,
        *,
        decode: Callable[[_Chunk], list[DecodedPart]],
        clock: PhaseClock,
    ) -> None:
        """`chunks` are those that the rows lie in, `decode` gives all rows of one.

        `clock` is told of the time taken to decode, and to read and to write files of the cache, which is fetching.
        """
        self._cache = cache
        self._chunks = chunks
        self._row_start = row_start
        self._row_stop = row_stop
        self._decode = decode
        self.num_rows = row_stop - row_start
        self._clock = clock
        self.nbytes = 0

    @property
    def parts(self) -> Iterator[DecodedPart]:
        """The rows; to be walked through once.

        Raises:
            Uncached: A file was damaged, or some rows cannot be kept, as `CachingReader` knows from now on.
            DataError: They cannot be decoded.
        """
        for key, (first, last) in self._chunks:
            start, stop = max(0, self._row_start - first), min(last, self._row_stop) - first
            for num_rows, tables in self._of_chunk(key, (first, last), start, stop):
                self.nbytes += sum(table.nbytes for table in tables)
                yield num_rows, tables

    def refuse(self) -> None:
        """Notes that none of these rows are to be had through the cache."""
        for key, _chunk in self._chunks:
            self._cache.refuse(key)

    def _of_chunk(self, key: bytes, chunk: _Chunk, start: int, stop: int) -> Iterator[DecodedPart]:
        self._clock.begin()
        unit = self._cache.find(key)
        if unit is None:
            yield from self._decoded(key, chunk, start, stop)
            return
        try:
            for part in unit.parts(start, stop):
                self._clock.fetched()
                yield part
                self._clock.begin()
        except BrokenUnit:
            self._cache.discard(key)
            self._cache.counts.misses += 1
            raise Uncached from None
        self._cache.counts.hits += 1
        self._cache.counts.read_bytes += unit.bytes_of(start, stop)

    def _decoded(self, key: bytes, chunk: _Chunk, start: int, stop: int) -> Iterator[DecodedPart]:
        self._clock.begin()
        self._cache.counts.misses += 1
        try:
            parts = self._decode(chunk)
        except Uncached:
            self._cache.refuse(key)
            raise
        self._clock.decoded()
        self._cache.keep(key, parts)
        self._clock.fetched()
        yield from cut_parts(parts, start, stop)


def _layers_of(source: SourceFormat) -> list[list[FieldPlan]]:
    """The fields of a source, by the table of a part in which their columns are."""
    if not holds_records(source.encoding):
        return [list(source.fields)]
    from o41td.workers.record_decoder import layers_of  # only where there are records: it brings msgspec

    return layers_of(source.fields)


def _projection_of(source: SourceFormat, max_row_group_bytes: int) -> list[Any]:
    """What decoded rows of a source depend on: of Parquet the columns, of records also what they become."""
    if not holds_records(source.encoding):
        return [source.encoding, sorted({field.source for field in source.fields})]
    return [source.encoding, [field.to_record() for field in source.fields], max_row_group_bytes]
