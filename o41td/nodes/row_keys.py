"""A name for the content of each row: equal for equal rows, wherever they lie and in whatever batch.

A name is a digest of 128 bits of the schema and of each value's bytes. Numbers, texts, bytes and lists of numbers
without nulls are digested where they lie; anything else is as Python shows it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["row_keys"]

_DIGEST_BYTES = 16


def row_keys(batch: Any, prefix: str) -> list[str]:
    """Returns a key for each row of a `pyarrow.RecordBatch`.

    Args:
        batch: The rows.
        prefix: What else the keys depend on.
    """
    base = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    base.update(f"{prefix}\0".encode())
    for field in batch.schema:
        base.update(f"{len(field.name)}:{field.name}:{field.type}\0".encode())
    columns = [_bytes_getter(column) for column in batch.columns]
    keys = []
    for row in range(batch.num_rows):
        digest = base.copy()
        for bytes_of in columns:
            value = bytes_of(row)
            digest.update(struct.pack("<q", len(value)))
            digest.update(value)
        keys.append(digest.hexdigest())
    return keys


def _bytes_getter(array: Any) -> Callable[[int], Any]:
    """How a row's value is got out of a column as bytes that tell it from others of the column."""
    types = pa.types
    if not array.null_count:
        if _is_plain(array.type):
            return _fixed_getter(array)
        if types.is_string(array.type) or types.is_binary(array.type):
            return _sliced_getter(array.cast(pa.large_binary()), array.cast(pa.large_binary()).buffers()[2], 1)
        is_list = types.is_list(array.type) or types.is_large_list(array.type)
        if is_list and _is_plain(array.type.value_type) and not array.flatten().null_count:
            large = array.cast(pa.large_list(array.type.value_type))
            width = array.type.value_type.bit_width // 8
            values = large.values
            data = values.buffers()[1]
            return _sliced_getter(large, None if data is None else data.slice(values.offset * width), width)
    values = array.to_pylist()
    return lambda row: repr(values[row]).encode("utf-8", "surrogatepass")


def _is_plain(kind: Any) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return bool(is_number and not pa.types.is_interval(kind))


def _fixed_getter(array: Any) -> Callable[[int], Any]:
    width = array.type.bit_width // 8
    data = memoryview(array.buffers()[1] or b"")
    first = array.offset
    return lambda row: data[(first + row) * width : (first + row + 1) * width]


def _sliced_getter(array: Any, buffer: Any, width: int) -> Callable[[int], Any]:
    """Of an array with 64-bit offsets, whose values are `width` bytes each."""
    data = memoryview(buffer if buffer is not None else b"")
    ends = memoryview(array.buffers()[1]).cast("B").cast("q")
    first = array.offset
    return lambda row: data[ends[first + row] * width : ends[first + row + 1] * width]
