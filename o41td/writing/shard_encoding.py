"""One shard's rows into a file, in any of the three encodings. The same rows make the same bytes."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import zstandard

from o41td.encodings import JSON_LINES, MESSAGE_PACK, PARQUET
from o41td.errors import ValueRefusedError
from o41td.writing.layout import SAMPLE_BYTES, Layout, plan_columns
from o41td.writing.packed_lists import list_facts_of
from o41td.writing.row_spool import RowSpool

__all__ = ["EncodedShard", "encode_shard"]

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedShard:
    """What a file was given: its rows, and of Parquet each row group's."""

    rows: int
    row_groups: tuple[int, ...] | None


def encode_shard(spool: RowSpool, path: Path, *, encoding: str, layout: Layout) -> EncodedShard:
    """Writes all rows of a spool into a new file.

    Args:
        spool: The rows.
        path: The file; replaced if it is there.
        encoding: One of `FILE_ENCODINGS`.
        layout: How Parquet is laid out; records have no layout.

    Raises:
        SchemaError: The rows have no schema in common.
        ValueRefusedError: A value cannot be written in the encoding.

    Blocks: on the disk, and for the encoding.
    """
    if encoding == PARQUET:
        return _encode_parquet(spool, path, layout)
    writers: Mapping[str, Callable[[RowSpool, Path], None]] = {JSON_LINES: _encode_lines, MESSAGE_PACK: _encode_frames}
    writers[encoding](spool, path)
    return EncodedShard(rows=spool.num_rows, row_groups=None)


def _encode_parquet(spool: RowSpool, path: Path, layout: Layout) -> EncodedShard:
    mean_row_bytes = spool.num_bytes / spool.num_rows
    sample_rows = max(1, int(SAMPLE_BYTES / max(1.0, mean_row_bytes)))
    plan = plan_columns(
        layout,
        spool.schema(),
        sample=next(spool.tables(sample_rows)).to_batches()[0],
        nullable=spool.nullable(),
        lists=list_facts_of(spool.batches()) if layout.packs_lists else {},
        mean_row_bytes=mean_row_bytes,
    )
    with path.open("wb") as file, plan.writer_on(file) as writer:
        for table in spool.tables(plan.row_group_rows):
            (batch,) = table.to_batches()
            writer.write_batch(plan.laid_out(batch), row_group_size=batch.num_rows)
    metadata = pq.read_metadata(path)
    groups = tuple(metadata.row_group(place).num_rows for place in range(metadata.num_row_groups))
    return EncodedShard(rows=spool.num_rows, row_groups=groups)


def _encode_lines(spool: RowSpool, path: Path) -> None:
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as lines:
        row = 0
        for batch in spool.batches():
            for record in batch.to_pylist():
                _refuse_what_json_lacks(record, row)
                lines.write(encode(record))
                lines.write(b"\n")
                row += 1


def _encode_frames(spool: RowSpool, path: Path) -> None:
    encode = msgspec.msgpack.Encoder().encode
    compressor = zstandard.ZstdCompressor(level=3)
    with path.open("wb") as file:
        row = 0
        for batch in spool.batches():
            for record in batch.to_pylist():
                try:
                    frame = compressor.compress(encode(record))
                except (TypeError, OverflowError) as error:
                    raise ValueRefusedError(f"MessagePack cannot hold this record: {error}", row=row) from error
                file.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
                row += 1


def _refuse_what_json_lacks(record: Mapping[str, Any], row: int) -> None:
    for name, value in record.items():
        found = _not_json(value)
        if found is not None:
            raise ValueRefusedError("JSON cannot hold this value", row=row, column=name, value=found)


def _not_json(value: Any) -> str | None:
    """What JSON cannot hold in a value; None where it can hold all of it."""
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return next((found for found in map(_not_json, value) if found is not None), None)
    if isinstance(value, dict):
        return next((found for found in map(_not_json, value.values()) if found is not None), None)
    return None if value is None or isinstance(value, bool | int | str) else type(value).__name__
