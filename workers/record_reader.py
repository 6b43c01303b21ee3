"""Reading rows of a shard of records: open feeds kept where they stand, so that consecutive slices are read once.

A shard is one unit, however large, and is decoded slice by slice: what is held is a chunk of text and the values of
some of it. A slice that begins where a feed stands, or not far behind, goes on with that feed; any other opens one more
and passes over the records before, so several lanes that walk through one shard each have a feed. What lies before a
slice is decompressed at most, never parsed.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from o41td.errors import ChangedDataError, CorruptDataError, DataError
from o41td.fields import FieldPlan
from o41td.memory import RECORD_READ_AHEAD_BYTES
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
_NEAR_SLICES = 8
_NEAR_ROWS = 256
"""Passing over so many records costs less than reading a shard from its beginning, however few are wanted."""
_READ_AHEAD_BYTES = 4 << 20


def max_record_bytes_of(max_row_group_bytes: int) -> int:
    """The largest record that is read: its Python values take up to eight times its text."""
    return max(1, max_row_group_bytes // 8)


def open_record_file(path: str, objects: RemoteObjects | None = None, info: ObjectInfo | None = None) -> Any:
    """Opens a shard of records for reading from its beginning; the caller closes it. `info` is a remote one's."""
    if objects is None:
        return open(path, "rb", buffering=_BUFFER_BYTES)
    from o41td.workers.read_ahead_file import ReadAheadFile  # with all that reaches stores

    assert info is not None, "a remote shard is known before it is read"
    whole = [ByteRange(0, info.size_bytes)]
    file = ReadAheadFile(objects, path, info, runs=whole, window_bytes=RECORD_READ_AHEAD_BYTES)
    return io.BufferedReader(file, _BUFFER_BYTES)


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
        self._at_once = sys.maxsize  # records decoded in one go; few where many cannot be had, whose go is in vain

    def read_rows(
        self,
        row_group: int,
        row_start: int,
        row_stop: int,
        *,
        group_rows: int | None = None,
        decoding_bytes: int | None = None,  # noqa: ARG002 - every shard is read in slices
    ) -> DecodedRecords:
        """Decodes records [row_start, row_stop).

        Args:
            row_group: 0, the shard's only unit.
            row_start: First record.
            row_stop: One past the last record.
            group_rows: The shard's records when it was indexed.
            decoding_bytes: Of no account.

        Returns:
            The records, or those before the first that cannot be had, with its error.

        Raises:
            ChangedDataError: The shard is not what was indexed any more, or has other records than were stated.
            StorageError: It cannot be read.

        Blocks: On the store, and for the decoding.
        """
        assert row_group == 0, "a shard of records is one unit"
        try:
            records = self._read(row_start, row_stop, group_rows)
        except Exception as error:  # noqa: BLE001 - whatever reading raises is this shard's error
            self.close()
            self._check_unchanged()
            raise_failure(error, source=self.source, shard=self.path)
        self._check_unchanged()
        return records

    def rows_at_once(self, row_group: int, decoding_bytes: int) -> int:  # noqa: ARG002 - every shard is read in slices
        """How many records to ask `read_rows` for at once: as many as a slot has."""
        return sys.maxsize

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

    def _read(self, row_start: int, row_stop: int, group_rows: int | None) -> DecodedRecords:
        feed = self._feed_at(row_start, row_stop - row_start)
        parts: list[tuple[int, list[Any]]] = []
        error: DataError | None = None
        is_over = False
        try:
            self._skip(feed, row_start, group_rows)
            while feed.position < row_stop and error is None:
                first = feed.position
                records = feed.take(min(row_stop - first, self._at_once), _STRIDE_BYTES)
                if not records:
                    raise self._other_count(feed.position, group_rows)
                part, error = self._decoder.decode(records, first)
                parts.append(part)
                self._at_once = min(2 * self._at_once, sys.maxsize) if error is None else max(1, part[0])
                if error is not None:
                    feed.give_back(records[part[0] :])
            if row_stop == group_rows and error is None and feed.take(1, 1):
                raise self._other_count(row_stop + 1, group_rows)
        except UnreadableRecord as unreadable:
            error = CorruptDataError(unreadable.why, source=self.source, shard=self.path, row=unreadable.row)
            is_over = not unreadable.can_be_passed
        behind = feed.position + (error is not None)
        if is_over or (row_stop == group_rows and behind >= row_stop):
            self._feeds.remove(feed)
            feed.close()
        return DecodedRecords(parts, error)

    def _skip(self, feed: RecordFeed, row_start: int, group_rows: int | None) -> None:
        feed.skip(row_start - feed.position)
        if feed.position < row_start:
            raise self._other_count(feed.position, group_rows)

    def _feed_at(self, row_start: int, num_rows: int) -> RecordFeed:
        """A feed that stands at or before a record: the nearest if it is near, else a new one."""
        before = [feed for feed in self._feeds if feed.position <= row_start]
        nearest = max(before, key=lambda feed: feed.position, default=None)
        if nearest is not None and row_start - nearest.position <= max(_NEAR_ROWS, _NEAR_SLICES * num_rows):
            self._feeds.remove(nearest)
            self._feeds.append(nearest)
            return nearest
        while len(self._feeds) >= _MAX_FEEDS:
            self._feeds.pop(0).close()
        file = open_record_file(self.path, self._objects, self._identity.info)
        feed = open_feed(file, self._encoding, max_record_bytes=self._max_record_bytes)
        self._feeds.append(feed)
        return feed

    def _other_count(self, found: int, group_rows: int | None) -> DataError:
        """The shard has fewer records, or more, than the index says."""
        number = f"{found} records" if group_rows is None or found < group_rows else f"{found} records or more"
        why = f"the shard has {number}, and its index or manifest says {group_rows}"
        return ChangedDataError(why, source=self.source, shard=self.path)

    def _check_unchanged(self) -> None:
        check_unchanged(self._identity, self.path, self._objects, source=self.source)
