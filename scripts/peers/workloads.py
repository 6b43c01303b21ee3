"""The four workloads of `make_data.py`: what columns a batch has, how many rows, and how lists become arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["BUFFER_ROWS", "WORKLOADS", "Batch", "Column", "Workload", "dense_columns", "read_columns"]

Batch = Mapping[str, Any]
"""A column's array, [batch, *shape], by its name: of NumPy, or of PyTorch."""

BUFFER_ROWS = 4096
"""Rows that a shuffle has to choose from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a batch. A `length` makes lists an array of that width: longer ones are cut, others padded."""

    name: str
    dtype: str
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is read of a data set.

    Attributes:
        name: The folder of its shards.
        columns: Every column that is read.
        batch_size: Rows of a batch.
        part: So many of its first shards are what every row is checked on, and what is converted into formats of row
            by row peers, which would not get through the whole in the time that they have.
    """

    name: str
    columns: tuple[Column, ...]
    batch_size: int
    part: int

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]


def _workloads() -> Iterator[Workload]:
    tokens = Column(name="tokens", dtype="int32", length=2048)
    mask = Column(name="loss_mask", dtype="bool", length=2048)
    pixels = Column(name="pixels", dtype="float32", length=12288)
    row_id = Column(name="doc_id", dtype="int64")
    floats = [Column(name=f"f{i}", dtype="float32") for i in range(40)]
    ints = [Column(name=f"i{i}", dtype="int64") for i in range(10)]
    yield Workload(name="tokens", columns=(tokens, row_id), batch_size=32, part=4)
    yield Workload(name="docs", columns=(tokens, mask, row_id), batch_size=32, part=4)
    table = (*floats, *ints, Column(name="label", dtype="bool"), row_id)
    yield Workload(name="tabular", columns=table, batch_size=4096, part=2)
    yield Workload(name="images", columns=(pixels, row_id), batch_size=32, part=4)


WORKLOADS = {workload.name: workload for workload in _workloads()}


def padded(rows: pa.ListArray, column: Column) -> npt.NDArray[Any]:
    """Lists as [rows, length], cut or padded with zeros; a view where all have that length."""
    length = column.length
    assert length is not None
    values: npt.NDArray[Any] = rows.values.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(rows.type):
        assert rows.type.list_size == length
        return values[rows.offset * length : (rows.offset + len(rows)) * length].reshape(-1, length)
    offsets = rows.offsets.to_numpy()
    if (np.diff(offsets) == length).all():
        return values[offsets[0] : offsets[-1]].reshape(-1, length)
    array = np.zeros((len(rows), length), column.dtype)
    for row, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist())):
        size = min(end - begin, length)
        array[row, :size] = values[begin : begin + size]
    return array


def dense_columns(table: pa.Table | pa.RecordBatch, workload: Workload) -> dict[str, npt.NDArray[Any]]:
    """The columns of an Arrow table as arrays, as somebody who knows Arrow and NumPy would write it."""
    arrays = {}
    for column in workload.columns:
        data = table[column.name]
        if isinstance(data, pa.ChunkedArray):
            data = data.chunk(0) if data.num_chunks == 1 else data.combine_chunks()
        if isinstance(data, pa.ExtensionArray):
            data = data.storage
        array = data.to_numpy(zero_copy_only=False) if column.length is None else padded(data, column)
        arrays[column.name] = array.astype(column.dtype, copy=False)
    return arrays


def read_columns(files: Sequence[str], workload: Workload) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The arrays of every row group, in order."""
    for path in files:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield dense_columns(file.read_row_group(group, columns=workload.names, use_threads=False), workload)
