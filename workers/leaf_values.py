"""Leaf values of an Arrow array as NumPy: numbers and a mask of which are there, never converted by way of nulls.

`Array.to_numpy` turns integers with nulls into float64 and booleans into objects; here a null leaves the numbers alone.
A slice's offset is honoured everywhere. Fixed-width values are views of Arrow's buffer; the view keeps the buffer
alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["LeafValues", "bits_of", "leaf_values_of", "plain_dtype_of", "validity_of"]

_EXACT_INTEGER = 1 << 53
_EXACT_SCALE = 22
"""10**22 is the largest power of ten that a float64 holds, so a division by it is rounded once, correctly."""


@dataclass(frozen=True, slots=True)
class LeafValues:
    """`values`: [n] numbers, anything where null; `valid`: [n] bool, None where nothing is null."""

    values: NDArray[Any]
    valid: NDArray[np.bool_] | None


def bits_of(buffer: Any, offset: int, length: int) -> NDArray[np.bool_]:
    """Unpacks `length` bits of an Arrow bitmap from bit `offset` on."""
    first, skip = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, count=(skip + length + 7) // 8, offset=first)
    return np.unpackbits(packed, count=skip + length, bitorder="little")[skip:].view(np.bool_)


def validity_of(array: Any) -> NDArray[np.bool_] | None:
    """Which values of an Arrow array are not null, or None where all are there."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    if array.null_count == 0:
        return None
    return bits_of(array.buffers()[0], array.offset, len(array))


def leaf_values_of(array: Any) -> LeafValues:
    """The numbers of a leaf array: [n], in the array's own dtype (decimals as float64, times as raw units).

    Args:
        array: Any array of a type that `plan_projection` accepts as a leaf.
    """
    kind = array.type
    types = pa.types
    if isinstance(kind, pa.Bool8Type):
        stored = leaf_values_of(array.storage)
        return LeafValues(stored.values != 0, stored.valid)
    if types.is_dictionary(kind):
        return _dictionary_values(array)
    valid = validity_of(array)
    if types.is_null(kind):
        return LeafValues(np.zeros(len(array), np.int8), valid)
    if len(array) == 0:
        return LeafValues(np.empty(0, _dtype_of(kind)), None)
    buffer = array.buffers()[1]
    if types.is_boolean(kind):
        return LeafValues(bits_of(buffer, array.offset, len(array)), valid)
    if types.is_decimal(kind):
        return LeafValues(_decimal_values(array, buffer, valid), valid)
    dtype = _dtype_of(kind)
    return LeafValues(np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize), valid)


def plain_dtype_of(kind: Any) -> np.dtype[Any] | None:
    """The dtype of a type whose values lie in Arrow's buffer as they lie in NumPy's, or None for any other type."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or (types.is_temporal(kind) and not types.is_interval(kind)):
        return _dtype_of(kind)
    return None


def _dtype_of(kind: Any) -> np.dtype[Any]:
    types = pa.types
    if types.is_boolean(kind):
        return np.dtype(np.bool_)
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    if types.is_integer(kind) or types.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    return np.dtype(f"<i{kind.bit_width // 8}")  # dates, times, timestamps, durations: raw units


def _dictionary_values(array: Any) -> LeafValues:
    """Decodes a dictionary: its values, never its indices."""
    indices = leaf_values_of(array.indices)
    entries = leaf_values_of(array.dictionary)
    valid = indices.valid
    if len(entries.values) == 0:
        return LeafValues(np.zeros(len(array), entries.values.dtype), np.zeros(len(array), np.bool_))
    places = indices.values if valid is None else np.where(valid, indices.values, 0)
    values = entries.values.take(places)
    if entries.valid is not None:
        there = entries.valid.take(places)
        valid = there if valid is None else there & valid
    return LeafValues(values, valid)


def _decimal_values(array: Any, buffer: Any, valid: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Decimals as the nearest float64 each.

    Arrow's own cast multiplies by a rounded power of ten and is off by one unit in the last place for many values
    (1.005), so small decimals are divided here, which rounds once, and large ones go through Python's exact decimals.
    """
    scale, width = array.type.scale, array.type.byte_width
    length, offset = len(array), array.offset
    word = np.dtype(f"<i{min(width, 8)}")  # decimal32 has one short word, the wider ones several of eight bytes
    words = np.frombuffer(buffer, word, count=length * width // word.itemsize, offset=offset * width).reshape(
        length, -1
    )
    low = words[:, 0].astype(np.int64)
    small = (low >= -_EXACT_INTEGER) & (low <= _EXACT_INTEGER)
    for place in range(1, words.shape[1]):
        small &= words[:, place] == low >> 63
    small &= 0 <= scale <= _EXACT_SCALE
    values: NDArray[np.float64] = low / 10.0 ** min(max(scale, 0), _EXACT_SCALE)
    large = ~small if valid is None else ~small & valid
    for row in np.flatnonzero(large).tolist():
        exact: Decimal = array[row].as_py()
        values[row] = float(exact)
    return values
