"""A name for the content of each row: equal for equal rows, wherever they lie and in whatever batch.

A name is a digest of 128 bits of the schema and of each value's bytes. Numbers, texts, bytes and lists of numbers are
digested where they lie; anything else is as Python shows it.
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


def _bytes_getter(array: Any) -> Callable[[int], bytes]:
    """How a row's value is got out of a column as bytes that tell it from others of the column.

    They depend on the value alone, not on what else is in the column: a null is one byte, any other value begins with
    another one that says how it was taken.
    """
    valid = array.is_valid().to_pylist() if array.null_count else None
    bytes_of = _taken(array)
    return bytes_of if valid is None else lambda row: bytes_of(row) if valid[row] else b"n"


def _taken(array: Any) -> Callable[[int], bytes]:
    types = pa.types
    if _is_plain(array.type):
        return _fixed(array)
    if types.is_string(array.type) or types.is_binary(array.type):
        large = array.cast(pa.large_binary())
        return _sliced(large, large.buffers()[2], 1)
    is_list = types.is_list(array.type) or types.is_large_list(array.type)
    if is_list and _is_plain(array.type.value_type):
        large = array.cast(pa.large_list(array.type.value_type))
        width, values = array.type.value_type.bit_width // 8, large.values
        data = values.buffers()[1]
        bytes_of = _sliced(large, None if data is None else data.slice(values.offset * width), width)
        if not values.null_count:
            return bytes_of
        return lambda row: _shown(large[row].as_py()) if large[row].values.null_count else bytes_of(row)
    return lambda row: _shown(array[row].as_py())


def _is_plain(kind: Any) -> bool:
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return bool(is_number and not pa.types.is_interval(kind))


def _shown(value: Any) -> bytes:
    return b"s" + repr(value).encode("utf-8", "surrogatepass")


def _fixed(array: Any) -> Callable[[int], bytes]:
    width = array.type.bit_width // 8
    data = memoryview(array.buffers()[1] or b"")
    first = array.offset
    return lambda row: b"b" + data[(first + row) * width : (first + row + 1) * width]


def _sliced(array: Any, buffer: Any, width: int) -> Callable[[int], bytes]:
    """Of an array with 64-bit offsets, whose values are `width` bytes each."""
    data = memoryview(buffer if buffer is not None else b"")
    ends = memoryview(array.buffers()[1] or b"").cast("B").cast("q")
    first = array.offset
    return lambda row: b"b" + data[ends[first + row] * width : ends[first + row + 1] * width]
