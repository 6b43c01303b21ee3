"""Batches and streams as Arrow: for pyarrow itself, and through the PyCapsule interface for everybody else.

The interface (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html) hands over C structs that
polars, DuckDB, nanoarrow and others read without knowing this package. A row of shape () is a value there, [n] a fixed
size list of n, and a deeper shape fixed size lists within one another: what every reader has. The extension type
`arrow.fixed_shape_tensor` keeps a deeper shape in its metadata and the values in one flat list, so a reader that does
not know it would lose the shape; `Batch.to_arrow`, whose reader is pyarrow, has it.

Nothing is copied but bools, which Arrow packs eight to a byte. An array holds the NumPy array that it was made of, and
so the batch's memory (see `batch_buffers`), until its release callback is called, in whichever thread.

This module imports pyarrow: whoever uses it imports it where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.fields import FieldPlan

__all__ = ["nested_batch", "stream_capsule", "tensor_batch"]


def tensor_batch(arrays: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
    """Returns arrays [rows, *shape] as a record batch: values as columns, others as fixed-shape tensors."""
    columns = {}
    for name, array in arrays.items():
        shape = array.shape[1:]
        column = _values_of(array)
        if shape:
            kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(array.dtype), shape)
            storage = pa.FixedSizeListArray.from_arrays(column, prod(shape))
            column = pa.ExtensionArray.from_storage(kind, storage)
        columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def nested_batch(arrays: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
    """Returns arrays [rows, *shape] as a record batch in which each axis behind the first is a fixed size list."""
    columns = {}
    for name, array in arrays.items():
        column = _values_of(array)
        for extent in reversed(array.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, extent)
        columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def stream_capsule(
    fields: Sequence[FieldPlan], next_arrays: Callable[[], Mapping[str, NDArray[Any]] | None], requested_schema: object
) -> object:
    """Returns a capsule of an ArrowArrayStream.

    Args:
        fields: The columns of every batch.
        next_arrays: Gives the arrays of the next batch, None at the end; what it raises, the reader sees as an error.
        requested_schema: A capsule of an ArrowSchema that the reader would rather have, or None.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        while (arrays := next_arrays()) is not None:
            yield nested_batch(arrays)

    reader = pa.RecordBatchReader.from_batches(_nested_schema(fields), batches())
    return reader.__arrow_c_stream__(requested_schema)


def _nested_schema(fields: Sequence[FieldPlan]) -> pa.Schema:
    """The schema that `nested_batch` gives the arrays of these fields."""
    columns = []
    for field in fields:
        kind = pa.from_numpy_dtype(field.numpy_dtype)
        for extent in reversed(field.shape):
            kind = pa.list_(kind, extent)
        columns.append(pa.field(field.name, kind))
    return pa.schema(columns)


def _values_of(array: NDArray[Any]) -> pa.Array:
    """All values of a C-contiguous array in one column, over the same memory unless they are bools."""
    assert array.flags.c_contiguous, f"strides {array.strides} of shape {array.shape}"
    return pa.array(np.reshape(array, -1))
