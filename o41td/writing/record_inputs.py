"""Files of records as record batches: lines of JSON, frames of MessagePack."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zstandard

from o41td.encodings import MESSAGE_PACK
from o41td.errors import ConfigError, CorruptDataError, SchemaError
from o41td.workers.record_feed import open_feed
from o41td.writing.record_batches import BATCH_ROWS, record_batches

__all__ = ["json_batches", "message_batches"]

_MAX_RECORD_BYTES = 1 << 28
_TAKEN_BYTES = 8 << 20
_LOOKED_AT = 1 << 16
_MEND = "Mend the file, or leave it out of the inputs"
_MEND_KEY = "Mend the records, or keep other keys only: `o41td write` takes those that --column names"


def json_batches(path: Path, keys: Sequence[str] | None = None) -> Iterator[Any]:
    """Yields the rows of a file of JSON objects, one a line; empty lines are passed over.

    Args:
        path: The file.
        keys: The keys that are wanted; others may hold anything. All if left out.

    Raises:
        CorruptDataError: A line is no JSON object; the error says which, counted from 1 as editors do.
        SchemaError: Values of one key have no type in common.
        ConfigError: No record has one of the keys.
    """
    with _opened(path) as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        yield from _batches(_decoded(lines, msgspec.json.decode, path, "line"), path, keys)


def message_batches(path: Path, keys: Sequence[str] | None = None) -> Iterator[Any]:
    """Yields the rows of a file of frames as in `msgpack.zstf` shards.

    Args:
        path: The file.
        keys: The keys that are wanted; others may hold anything. All if left out.

    Raises:
        CorruptDataError: A frame is no MessagePack map; the error says which, counted from 0 as rows are.
        SchemaError: Values of one key have no type in common.
        ConfigError: No record has one of the keys.
    """
    feed = open_feed(path.open("rb"), MESSAGE_PACK, max_record_bytes=_MAX_RECORD_BYTES)
    try:
        frames = iter(lambda: feed.take(BATCH_ROWS, _TAKEN_BYTES), [])
        numbered = enumerate(frame for some in frames for frame in some)
        yield from _batches(_decoded(numbered, msgspec.msgpack.decode, path, "record"), path, keys)
    finally:
        feed.close()


def _batches(records: Iterator[dict[str, Any]], path: Path, keys: Sequence[str] | None) -> Iterator[Any]:
    try:
        yield from record_batches(records if keys is None else _with_keys(records, path, keys))
    except SchemaError as error:
        if error.shard is None:
            error.shard, error.advice = str(path), _MEND_KEY
        raise


def _with_keys(records: Iterator[dict[str, Any]], path: Path, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each record with these keys alone, null where it has none.

    Raises:
        ConfigError: None of the first records has one of the keys: it is mistyped.
    """
    missing, others = set(keys), dict[str, None]()
    number = -1
    for number, record in enumerate(records):
        if missing:
            missing.difference_update(record)
            others.update(dict.fromkeys(islice(record, 100)))
            if missing and number >= _LOOKED_AT:
                break
        yield {key: record.get(key) for key in keys}
    if missing and number >= 0:
        key = next(key for key in keys if key in missing)
        raise ConfigError(
            f"there is no column {key!r}; there are {', '.join(others)}",
            where=str(path),
            advice="Name one that is there, with --column",
        )


def _decoded(
    texts: Iterable[tuple[int, bytes]], decode: Callable[[bytes], Any], path: Path, noun: str
) -> Iterator[dict[str, Any]]:
    for number, text in texts:
        try:
            record = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptDataError(f"{noun} {number} cannot be read: {error}", shard=str(path), advice=_MEND) from error
        if not isinstance(record, dict) or not all(isinstance(key, str) for key in islice(record, 1000)):
            raise CorruptDataError(f"{noun} {number} is no object with names for keys", shard=str(path), advice=_MEND)
        yield record


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if start == b"\x28\xb5\x2f\xfd":
        reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
        return io.BufferedReader(cast("io.RawIOBase", reader), 1 << 20)
    return path.open("rb")
