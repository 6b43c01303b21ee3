"""Reading rows of a shard of records: open feeds kept where they stand, so that consecutive slices are read once.

A shard is one unit, however large, and is decoded slice by slice: what is held is a chunk of text and the values of
some of it. A slice goes on with the feed that stands nearest before it, which is never further than the shard's
beginning is; one that begins before all feeds opens one more. So several that walk through one shard, lanes or the rows
that stand in for bad ones, come to have a feed each. What lies before a slice is decompressed at most, never parsed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from o41td.errors import ChangedDataError, CorruptDataError, DataError
from o41td.fields import FieldPlan
from o41td.memory_costs import RECORD_READ_AHEAD_BYTES
from o41td.workers.lost_handles import LocalFile
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import ByteRange
from o41td.workers.record_decoder import DecodedRecords, RecordDecoder, RecordProjector
from o41td.workers.record_feed import RecordFeed, UnreadableRecord, open_feed
from o41td.workers.shard_file import check_unchanged, indexed_identity, raise_failure

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["RecordReader", "max_record_bytes_of", "open_record_file"]

_BUFFER_BYTES = 128 << 10
_STRIDE_BYTES = 512 << 10
"""Text decoded at once: its Python values take several times as much."""

_MAX_FEEDS = 3
_READ_AHEAD_BYTES = 4 << 20


def max_record_bytes_of(max_row_group_bytes: int) -> int:
    """The largest record that is read: its Python values take up to eight times its text."""
    return max(1, max_row_group_bytes // 8)


def open_record_file(path: str, objects: RemoteObjects | None = None, info: ObjectInfo | None = None) -> Any:
    """Opens a shard of records for reading from its beginning; the caller closes it. `info` is a remote one's."""
    if objects is None:
        return io.BufferedReader(LocalFile(path), _BUFFER_BYTES)
    from o41td.workers.read_ahead_file import ReadAheadFile  # with all that reaches stores

    assert info is not None, "a remote shard is known before it is read"
    whole = [ByteRange(0, info.size_bytes)]
    file = ReadAheadFile(objects, path, info, runs=whole, window_bytes=RECORD_READ_AHEAD_BYTES)
    return io.BufferedReader(file, _BUFFER_BYTES)


class _Stretch:
    """Some records of a shard, one after the other: `rows` has all, `records` those at `places` of it."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.records: list[bytes] = []
        self.places: list[int] = []
        self.refused: list[tuple[range, UnreadableRecord]] = []
        self.num_bytes = 0

    def add(self, row: int, records: Sequence[bytes]) -> None:
        """Appends records from this row on."""
        self.places += range(len(self.rows), len(self.rows) + len(records))
        self.rows += range(row, row + len(records))
        self.records += records
        self.num_bytes += sum(map(len, records))

    def refuse(self, rows: range, why: UnreadableRecord) -> None:
        """Appends rows that cannot be had."""
        self.refused.append((range(len(self.rows), len(self.rows) + len(rows)), why))
        self.rows += rows

    def refuse_last(self, why: UnreadableRecord) -> None:
        """Refuses the row that was appended last, whatever is known of it."""
        self.refused.append((range(len(self.rows) - 1, len(self.rows)), why))


class RecordReader:
    """One shard of records.

    Args:
        path: The shard.
        fields: The fields to read it for.
        encoding: Its encoding.
        source: The source's name, for errors.
        size_bytes: The shard's size when it was indexed; None takes it as it is now.
        mtime_ns: The shard's modification time when it was indexed.
        etag: The object's etag when it was indexed, where it had one.
        objects: Where remote shards are read, or None for this machine's files.
        max_row_group_bytes: Records of more than an eighth of it are refused.

    Raises:
        MissingShardError: There is no such file.
        ChangedDataError: It is not the file that was indexed.
    """

    def __init__(
        self,
        path: str,
        fields: Sequence[FieldPlan],
        *,
        encoding: str,
        source: str | None = None,
        size_bytes: int | None = None,
        mtime_ns: int | None = None,
        etag: str | None = None,
        objects: RemoteObjects | None = None,
        max_row_group_bytes: int = 64 << 20,
    ) -> None:
        self.path = path
        self.source = source
        self._encoding = encoding
        self._objects = objects
        self._max_record_bytes = max_record_bytes_of(max_row_group_bytes)
        self._identity = indexed_identity(
            path, objects, source=source, size_bytes=size_bytes, mtime_ns=mtime_ns, etag=etag
        )
        self._decoder = RecordDecoder(encoding, fields, source=source, shard=path)
        self.projector = RecordProjector(self._decoder.layers)
        self._feeds: list[RecordFeed] = []

    def read_rows(
        self,
        row_group: int,
        row_start: int,
        row_stop: int,
        *,
        group_rows: int | None = None,
        decoding_bytes: int | None = None,  # noqa: ARG002 - every shard is read in slices
    ) -> DecodedRecords:
        """Decodes records [row_start, row_stop) as `slices` does, all at once.

        Args:
            row_group: 0, the shard's only unit.
            row_start: First record.
            row_stop: One past the last record.
            group_rows: The shard's records when it was indexed.
            decoding_bytes: Of no account.
        """
        assert row_group == 0, "a shard of records is one unit"
        return DecodedRecords.joined(list(self.slices([(row_start, row_stop)], group_rows=group_rows)))

    def slices(self, spans: Sequence[tuple[int, int]], *, group_rows: int | None = None) -> Iterator[DecodedRecords]:
        """Decodes the records of spans [start, stop), laid end to end, some at a time.

        Args:
            spans: Which records; those that follow each other are read in one pass.
            group_rows: The shard's records when it was indexed.

        Yields:
            The next records, with those that cannot be had and why.

        Raises:
            ChangedDataError: The shard is not what was indexed any more, or has other records than were stated.
            StorageError: It cannot be read.

        Blocks: On the store, and for the decoding.
        """
        try:
            for read in self._stretches(spans, group_rows):
                self._check_unchanged()
                yield self._decoded(read)
        except Exception as error:  # noqa: BLE001 - whatever reading raises is this shard's error
            self.close()
            self._check_unchanged()
            raise_failure(error, source=self.source, shard=self.path)

    def will_need(self, row_group: int) -> None:  # noqa: ARG002 - the only one
        """Asks the kernel to read the shard's beginning ahead; where it is read in order, the kernel goes on itself."""
        if self._objects is None and not self._feeds:
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # it is told when the records are read
            try:
                os.posix_fadvise(descriptor, 0, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Closes the file."""
        while self._feeds:
            self._feeds.pop().close()

    def _stretches(self, spans: Sequence[tuple[int, int]], group_rows: int | None) -> Iterator[_Stretch]:
        """The spans' records as bytes, about `_STRIDE_BYTES` at a time."""
        stretch = _Stretch()
        broken: UnreadableRecord | None = None
        for start, stop in spans:
            row = start
            while row < stop:
                if stretch.num_bytes >= _STRIDE_BYTES:
                    yield stretch
                    stretch = _Stretch()
                if broken is not None and broken.row <= row:
                    stretch.refuse(range(row, stop), broken)
                    break
                feed = self._feed_at(row)
                try:
                    feed.skip(row - feed.position)
                    records = feed.take(stop - row, _STRIDE_BYTES - stretch.num_bytes)
                except UnreadableRecord as unreadable:
                    if unreadable.can_be_passed:
                        stretch.refuse(range(row, row + 1), unreadable)
                        row += 1
                    else:
                        broken = unreadable
                        self._forget(feed)
                    continue
                if not records:
                    raise self._other_count(feed.position, group_rows)
                stretch.add(row, records)
                row += len(records)
            if stop == group_rows and broken is None:
                self._end(stop, group_rows, stretch)
        if stretch.rows:
            yield stretch

    def _end(self, stop: int, group_rows: int, stretch: _Stretch) -> None:
        """Looks whether the shard ends where it should; what is wrong behind its last record is told of that one."""
        feed = self._feed_at(stop)
        try:
            feed.skip(stop - feed.position)
            if feed.take(1, 1):
                raise self._other_count(stop + 1, group_rows)
        except UnreadableRecord as unreadable:
            stretch.refuse_last(unreadable)
        self._forget(feed)

    def _decoded(self, stretch: _Stretch) -> DecodedRecords:
        rows = np.array(stretch.rows, np.int64)
        places = np.array(stretch.places, np.int64)
        parts, refused = [], []
        if stretch.records:
            decoded = self._decoder.decode(stretch.records, rows[places])
            parts = [(places[kept], tables) for kept, tables in decoded.parts]
            refused = [(places[kept], error) for kept, error in decoded.refused]
        for chosen, unreadable in stretch.refused:
            error = CorruptDataError(unreadable.why, source=self.source, shard=self.path, row=unreadable.row)
            refused.append((np.array(chosen, np.int64), error))
        return DecodedRecords(rows, parts, refused)

    def _feed_at(self, row_start: int) -> RecordFeed:
        """The feed that stands nearest before a record, or at it; a new one where there is none."""
        before = [feed for feed in self._feeds if feed.position <= row_start]
        nearest = max(before, key=lambda feed: feed.position, default=None)
        if nearest is not None:
            self._feeds.remove(nearest)
            self._feeds.append(nearest)
            return nearest
        while len(self._feeds) >= _MAX_FEEDS:
            self._feeds.pop(0).close()
        file = open_record_file(self.path, self._objects, self._identity.info)
        feed = open_feed(file, self._encoding, max_record_bytes=self._max_record_bytes)
        self._feeds.append(feed)
        return feed

    def _forget(self, feed: RecordFeed) -> None:
        self._feeds.remove(feed)
        feed.close()

    def _other_count(self, found: int, group_rows: int | None) -> DataError:
        """The shard has fewer records, or more, than the index says."""
        number = f"{found} records" if group_rows is None or found < group_rows else f"{found} records or more"
        why = f"the shard has {number}, and its index or manifest says {group_rows}"
        return ChangedDataError(why, source=self.source, shard=self.path)

    def _check_unchanged(self) -> None:
        check_unchanged(self._identity, self.path, self._objects, source=self.source)
