"""Files of records as record batches: lines of JSON, frames of MessagePack."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zstandard

from o41td.encodings import MESSAGE_PACK
from o41td.errors import CorruptDataError
from o41td.workers.record_feed import open_feed
from o41td.writing.record_batches import BATCH_ROWS, record_batches

__all__ = ["json_batches", "message_batches"]

_MAX_RECORD_BYTES = 1 << 28
_TAKEN_BYTES = 8 << 20
_MEND = "Mend the file, or leave it out of the inputs"


def json_batches(path: Path) -> Iterator[Any]:
    """Yields the rows of a file of JSON objects, one a line; empty lines are passed over.

    Raises:
        CorruptDataError: A line is no JSON object; the error says which, counted from 1 as editors do.
        SchemaError: Values of one key have no type in common.
    """
    with _opened(path) as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        yield from record_batches(_decoded(lines, msgspec.json.decode, path, "line"))


def message_batches(path: Path) -> Iterator[Any]:
    """Yields the rows of a file of frames as in `msgpack.zstf` shards.

    Raises:
        CorruptDataError: A frame is no MessagePack map; the error says which, counted from 0 as rows are.
        SchemaError: Values of one key have no type in common.
    """
    feed = open_feed(path.open("rb"), MESSAGE_PACK, max_record_bytes=_MAX_RECORD_BYTES)
    try:
        frames = iter(lambda: feed.take(BATCH_ROWS, _TAKEN_BYTES), [])
        numbered = enumerate(frame for some in frames for frame in some)
        yield from record_batches(_decoded(numbered, msgspec.msgpack.decode, path, "record"))
    finally:
        feed.close()


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
