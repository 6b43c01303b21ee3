"""Columnar files as record batches: Parquet, Arrow IPC, CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from o41td.errors import CorruptDataError, SchemaError
from o41td.writing.record_batches import BATCH_ROWS

__all__ = ["arrow_batches", "csv_batches", "opened", "parquet_batches"]


def parquet_batches(path: Path) -> Iterator[Any]:
    """Yields the rows of a Parquet file, in memory bounded by some pages of each column."""
    with opened(path) as source, pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file:
        _refuse_doubled(file.schema_arrow.names, path)
        yield from file.iter_batches(BATCH_ROWS, use_threads=False)


def arrow_batches(path: Path) -> Iterator[Any]:
    """Yields the rows of an Arrow IPC file, or of a stream in a file, as HF datasets keeps it."""
    with opened(path) as file:
        if file.read(6) == b"ARROW1":
            with pa.ipc.open_file(file) as reader:
                _refuse_doubled(reader.schema.names, path)
                for place in range(reader.num_record_batches):
                    yield from _small(reader.get_batch(place))
            return
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            _refuse_doubled(reader.schema.names, path)
            for batch in reader:
                yield from _small(batch)


def csv_batches(path: Path) -> Iterator[Any]:
    """Yields the rows of a CSV file with a header; a column's type is what its first megabyte looks like.

    Raises:
        SchemaError: A value further on does not have that type.
    """
    options = pyarrow.csv.ReadOptions(use_threads=False)
    try:
        with opened(path) as file, pyarrow.csv.open_csv(_plain(file, path), read_options=options) as reader:
            _refuse_doubled(reader.schema.names, path)
            for batch in reader:
                yield from _small(batch)
    except pa.ArrowInvalid as error:
        if not os.path.getsize(path):
            raise SchemaError(
                "the file is empty, and CSV begins with a header", shard=str(path), advice="Leave it out of the inputs"
            ) from error
        raise SchemaError(
            f"a line does not fit the header and types that the file begins with: {' '.join(str(error).split())}",
            shard=str(path),
            advice="Mend the file, or write it as Parquet with the types that you mean",
        ) from error


def opened(path: Path) -> Any:
    """Opens a file for Arrow, which takes names for UTF-8 and has to be given bytes where they are none."""
    return pa.OSFile(os.fsencode(path))


def _plain(file: Any, path: Path) -> Any:
    return pa.CompressedInputStream(file, "gzip") if path.name.lower().endswith(".gz") else file


def _small(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)


def _refuse_doubled(names: list[str], path: Path) -> None:
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise CorruptDataError(f"two columns are named {doubled!r}", shard=str(path), advice="Rename one of them")
