"""Small shards of records for tests, written with tools that the loader does not use: gzip, json, msgpack, pyarrow."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

ENCODINGS = ("parquet", "jsonl.gz", "msgpack.zstf")


def write_lines(path: Path, text: bytes) -> Path:
    """Compresses a text as it stands."""
    path.write_bytes(gzip.compress(text, 1))
    return path


def frame_of(packed: bytes, *, with_size: bool = True) -> bytes:
    """One record of msgpack.zstf: the frame's length, the frame."""
    compressor = zstandard.ZstdCompressor(write_content_size=with_size)
    frame = compressor.compress(packed)
    return len(frame).to_bytes(8, "big") + frame


def write_frames(path: Path, records: Iterable[Any], *, with_size: bool = True) -> Path:
    """Writes records as frames."""
    path.write_bytes(b"".join(frame_of(msgpack.packb(record), with_size=with_size) for record in records))
    return path


def write_records(folder: Path, name: str, records: Sequence[dict[str, Any]], schema: pa.Schema) -> dict[str, Path]:
    """Writes the same records in the three encodings, Parquet's in one row group; returns the shards by encoding."""
    paths = {encoding: folder / f"{name}.{encoding}" for encoding in ENCODINGS}
    pq.write_table(
        pa.Table.from_pylist(list(records), schema=schema), paths["parquet"], row_group_size=max(1, len(records))
    )
    write_lines(paths["jsonl.gz"], b"".join(json.dumps(record).encode() + b"\n" for record in records))
    write_frames(paths["msgpack.zstf"], records)
    return paths
