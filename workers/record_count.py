"""How many records a shard has: the pass over it that its index needs, and a look at its first records.

Counting `jsonl.gz` decompresses all of it and parses none; counting `msgpack.zstf` goes from length to length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from o41td.errors import CorruptDataError
from o41td.fields import FieldPlan
from o41td.workers.record_decoder import RecordDecoder
from o41td.workers.record_feed import RecordFeed, UnreadableRecord, open_feed
from o41td.workers.record_reader import max_record_bytes_of, open_record_file
from o41td.workers.shard_file import (
    ShardIdentity,
    content_version,
    indexed_identity,
    raise_failure,
    remote_version,
)

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["RecordCount", "count_records"]

_STRIDE_RECORDS = 4096
_SAMPLE_BYTES = 256 << 10
_MOST_PASSED = 64
"""Unreadable records that are passed over in search of one that gives the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCount:
    """One shard: its records, what they take decompressed, and what it is."""

    num_rows: int
    text_bytes: int
    size_bytes: int
    mtime_ns: int
    version: str


def count_records(
    path: str,
    encoding: str,
    fields: Sequence[FieldPlan],
    *,
    keys: Sequence[str] = (),
    known_rows: int | None = None,
    source: str | None = None,
    size_bytes: int | None = None,
    etag: str | None = None,
    objects: RemoteObjects | None = None,
    max_row_group_bytes: int = 64 << 20,
    on_progress: Callable[[], None] = lambda: None,
) -> RecordCount:
    """Counts a shard's records, and checks that one of the first gives the fields.

    Args:
        path: The shard.
        encoding: Its encoding.
        fields: The fields of the source.
        keys: What nodes want of a record; that none of the first has any of them is a mistyped one.
        known_rows: How many records there are, if that is known: then only the first of them are read.
        source: The source's name, for errors.
        size_bytes: A remote shard's size when it was listed.
        etag: Its etag then.
        objects: Where remote shards are read, or None for this machine's files.
        max_row_group_bytes: As for `RecordReader`.
        on_progress: Called again and again while it counts.

    Raises:
        MissingShardError: There is no such file.
        CorruptDataError: It is not what its encoding says, or cut short.
        SchemaError: None of the first records gives the fields; of the first one, which lacks a field's key, this is
            said. Or none has any of the keys.
        ValueRefusedError: The same, where the first one's value cannot give a field.
        StorageError: The store does not answer.

    Blocks: On the store, for as long as the shard is large.
    Called by: A worker.
    """
    identity = indexed_identity(path, objects, source=source, size_bytes=size_bytes, etag=etag)
    try:
        version = _version_of(path, identity, objects)
        file = open_record_file(path, objects, identity.info)
        feed = open_feed(file, encoding, max_record_bytes=max_record_bytes_of(max_row_group_bytes))
        try:
            sample = _sample_of(feed)
            decoder = RecordDecoder(encoding, fields, source=source, shard=path)
            decoder.check_sample(sample)
            decoder.check_keys(sample, keys)
            if known_rows is None:
                num_rows, text_bytes = _counted(feed, on_progress)
            else:
                num_rows = known_rows
                text_bytes = sum(len(record) for _row, record in sample) * known_rows // max(1, len(sample))
        finally:
            feed.close()
    except UnreadableRecord as unreadable:
        raise CorruptDataError(unreadable.why, source=source, shard=path, row=unreadable.row) from unreadable
    except Exception as error:  # noqa: BLE001 - whatever reading raises is this shard's error
        raise_failure(error, source=source, shard=path)
    return RecordCount(
        num_rows=num_rows,
        text_bytes=text_bytes,
        size_bytes=identity.size_bytes,
        mtime_ns=identity.mtime_ns,
        version=version,
    )


def _version_of(path: str, identity: ShardIdentity, objects: RemoteObjects | None) -> str:
    if objects is not None:
        has_etag = identity.etag is not None
        return remote_version(identity, b"" if has_etag else objects.tail(path, identity.info).data)
    with open_record_file(path) as file:
        return content_version(file, identity)


def _sample_of(feed: RecordFeed) -> list[tuple[int, bytes]]:
    """The first records that can be read, each with its number; none of a shard without records."""
    sample: list[tuple[int, bytes]] = []
    failures: list[UnreadableRecord] = []
    num_bytes = 0
    while num_bytes < _SAMPLE_BYTES and len(sample) < _STRIDE_RECORDS and len(failures) < _MOST_PASSED:
        first = feed.position
        try:
            records = feed.take(_STRIDE_RECORDS - len(sample), _SAMPLE_BYTES - num_bytes)
        except UnreadableRecord as failure:
            failures.append(failure)
            if not failure.can_be_passed:
                break
            feed.skip(1)  # it is told, or replaced, when its turn comes
            continue
        if not records:
            break
        sample += enumerate(records, first)
        num_bytes += sum(map(len, records))
    if failures and not sample:
        raise failures[0]
    return sample


def _counted(feed: RecordFeed, on_progress: Callable[[], None]) -> tuple[int, int]:
    """(records, decompressed bytes) of a feed, gone through to its end."""
    while feed.skip(_STRIDE_RECORDS):
        on_progress()
    return feed.position, feed.text_bytes
