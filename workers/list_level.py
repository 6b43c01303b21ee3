"""One list level of an Arrow array as NumPy: where each row's items begin, how many there are, and of what.

Every kind of list comes down to the same three arrays, so all of them give the same output: list, large_list, list_view
and large_list_view (whose rows may lie in any order and overlap), fixed_size_list, tensors, and packed binary. A null
row has no items, whatever payload Arrow keeps under it. Arrow's casts between list kinds are not used: some give
invalid arrays for views and slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.workers.arrow_cast import large_binary_of
from o41td.workers.leaf_values import LeafValues, validity_of

__all__ = [
    "ListLevel",
    "bytes_level_of",
    "item_places",
    "list_level_of",
    "packed_values_of",
    "tensor_level_of",
]


@dataclass(frozen=True, slots=True)
class ListLevel:
    """Rows of items: row i is items [starts[i], starts[i] + lengths[i]) of `items`.

    `starts` and `lengths` are int64 [n]; `valid` is bool [n], None where no row is null. `items` is an Arrow array
    (from its own beginning: a slice's offset is already in `starts`).
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    valid: NDArray[np.bool_] | None
    items: Any

    def taken(self, places: NDArray[np.int64]) -> ListLevel:
        """The level of the rows at `places`, in that order."""
        valid = None if self.valid is None else self.valid[places]
        return ListLevel(self.starts[places], self.lengths[places], valid, self.items)

    def part(self, start: int, stop: int) -> ListLevel:
        """The level of rows [start, stop)."""
        valid = None if self.valid is None else self.valid[start:stop]
        return ListLevel(self.starts[start:stop], self.lengths[start:stop], valid, self.items)

    def without(self, gone: NDArray[np.bool_]) -> ListLevel:
        """The level with some rows empty."""
        return replace(self, lengths=np.where(gone, 0, self.lengths))


def list_level_of(array: Any) -> ListLevel:
    """The outermost list level of a list array; a null array is rows that are all null."""
    types = pa.types
    kind = array.type
    num_rows = len(array)
    valid = validity_of(array)
    if num_rows == 0 or types.is_null(kind):
        return ListLevel(np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64), valid, pa.nulls(0))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        starts = (np.arange(num_rows, dtype=np.int64) + array.offset) * size
        level = ListLevel(starts, np.full(num_rows, size, np.int64), valid, array.values)
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        starts = array.offsets.to_numpy().astype(np.int64)
        level = ListLevel(starts, array.sizes.to_numpy().astype(np.int64), valid, array.values)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
        level = ListLevel(offsets[:-1], np.diff(offsets), valid, array.values)
    return level if valid is None else level.without(~valid)


def tensor_level_of(array: Any, shape: Sequence[int]) -> ListLevel:
    """The outermost axis of a tensor array's storage; its items are fixed-size lists of the other axes."""
    level = list_level_of(array)
    items = level.items
    inner = 1
    for size in reversed(shape[1:]):
        inner *= size
        items = pa.FixedSizeListArray.from_arrays(items, size)
    return ListLevel(level.starts // inner, np.where(level.lengths > 0, shape[0], 0), level.valid, items)


def bytes_level_of(array: Any) -> ListLevel:
    """Binary values as rows of uint8 items."""
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_binary_view(array.type):
        array = large_binary_of(array)
    num_rows = len(array)
    valid = validity_of(array)
    if num_rows == 0:
        empty = np.empty(0, np.int64)
        return ListLevel(empty, empty, None, pa.array([], pa.uint8()))
    buffers = array.buffers()
    if types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = (np.arange(num_rows, dtype=np.int64) + array.offset) * width
        lengths = np.full(num_rows, width, np.int64)
    else:
        offset_dtype = np.dtype("<i8" if types.is_large_binary(array.type) else "<i4")
        place = array.offset * offset_dtype.itemsize
        offsets = np.frombuffer(buffers[1], offset_dtype, count=num_rows + 1, offset=place).astype(np.int64, copy=False)
        starts, lengths = offsets[:-1], np.diff(offsets)
    data = buffers[-1] if buffers[-1] is not None else pa.py_buffer(b"")
    level = ListLevel(starts, lengths, valid, pa.Array.from_buffers(pa.uint8(), data.size, [None, data]))
    return level if valid is None else level.without(~valid)


def packed_values_of(level: ListLevel, dtype: np.dtype[Any]) -> tuple[ListLevel, LeafValues]:
    """Rows of bytes, each a multiple of the item size, as rows of numbers; the level's items are then in the values."""
    size = dtype.itemsize
    data = np.frombuffer(level.items.buffers()[1], np.uint8) if len(level.items) else np.empty(0, np.uint8)
    starts = level.starts
    filled = level.lengths > 0
    first = int(starts[filled].min()) if filled.any() else 0
    last = int((starts + level.lengths)[filled].max()) if filled.any() else 0
    if ((starts[filled] - first) % size).any():
        # Bytes of null or refused rows lie between: close the gaps.
        data = data[item_places(starts, level.lengths)]
        starts = np.cumsum(level.lengths) - level.lengths
        first, last = 0, len(data)
    usable = (last - first) // size * size
    values = np.frombuffer(data, dtype, count=usable // size, offset=first) if usable else np.empty(0, dtype)
    return replace(level, starts=(starts - first) // size, lengths=level.lengths // size), LeafValues(values, None)


def item_places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of every item of every row, row after row: starts[i], starts[i] + 1, … for each i."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
