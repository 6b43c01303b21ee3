"""A finished shard's rows, read back by other means than the stream's: to compare them with what was written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from o41td.encodings import JSON_LINES, MESSAGE_PACK, PARQUET
from o41td.writing.column_inputs import parquet_batches
from o41td.writing.data_folder import DataFolder, LocalFolder
from o41td.writing.packed_lists import unpacked
from o41td.writing.record_inputs import json_batches, message_batches
from o41td.writing.saved_shard import SavedShard

__all__ = ["shard_batches"]

_READERS = {PARQUET: parquet_batches, JSON_LINES: json_batches, MESSAGE_PACK: message_batches}


def shard_batches(folder: DataFolder, shard: SavedShard, encoding: str) -> Iterator[Any]:
    """Yields a shard's rows as record batches, packed lists as lists.

    Blocks: on the store; a remote shard is fetched whole first.
    """
    if isinstance(folder, LocalFolder):
        yield from map(unpacked, _READERS[encoding](folder.path / shard.uri))
        return
    with tempfile.TemporaryDirectory(prefix="o41td-") as scratch:
        copy = Path(scratch, "shard")
        copy.write_bytes(folder.read(shard.uri) or b"")
        yield from map(unpacked, _READERS[encoding](copy))
