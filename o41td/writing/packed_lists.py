"""Lists of numbers as binary values and back: the bytes of each list, little-endian, in the narrowest dtype that fits.

A list column of Parquet carries a level for every value, and decoding those costs more than the values themselves.
Packed, a list is one value: of 2 048 tokens below 65 536 it is read five to ten times as fast (docs/layout.md). The
Arrow field's metadata says what was packed, so that the reader takes it for the list it was. Bools are packed as bits,
behind a byte that says how many bits of the last byte are none of the list's.

Only flat lists are packed, and only where no item is null; a null list stays a null value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from o41td.fields import SOURCE_DTYPES, value_bytes
from o41td.projection import PACKED_BITS, PACKED_KEY
from o41td.workers.list_level import bytes_level_of, item_places
from o41td.workers.packed_bits import broken_bits, packed_bits_of

__all__ = [
    "ListFacts",
    "is_flat_list",
    "list_facts_of",
    "pack_lists",
    "packed_bytes_of",
    "packed_dtype_of",
    "unpack_lists",
    "unpacked",
]

_DTYPE_NAMES = {np.dtype(dtype): name for name, dtype in SOURCE_DTYPES.items()}
_NARROW_FIRST = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFacts:
    """What all lists of a column have in common.

    Attributes:
        low: The smallest integer; None where there is none, or values are no integers.
        high: The largest one.
        length: The length of every list; None where they differ or one is null.
        has_null_items: Whether any item is null.
        rows: How many rows these facts are of.
    """

    low: int | None
    high: int | None
    length: int | None
    has_null_items: bool
    rows: int

    @classmethod
    def of(cls, column: Any) -> Self:
        """The facts of one array of lists of numbers."""
        values = column.flatten()
        low = high = None
        if pa.types.is_integer(values.type) and len(values) > values.null_count:
            bounds = pc.min_max(values)
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
        lengths = pc.min_max(pc.list_value_length(column))
        same = column.null_count == 0 and lengths["min"].as_py() == lengths["max"].as_py()
        return cls(
            low=low,
            high=high,
            length=lengths["max"].as_py() if same else None,
            has_null_items=values.null_count > 0,
            rows=len(column),
        )

    def joined(self, other: ListFacts) -> ListFacts:
        """The facts of both columns, one behind the other."""
        if not (self.rows and other.rows):
            return self if self.rows else other
        return ListFacts(
            low=min((low for low in (self.low, other.low) if low is not None), default=None),
            high=max((high for high in (self.high, other.high) if high is not None), default=None),
            length=self.length if self.length == other.length else None,
            has_null_items=self.has_null_items or other.has_null_items,
            rows=self.rows + other.rows,
        )


def list_facts_of(batches: Iterable[Any]) -> dict[str, ListFacts]:
    """Returns the facts of every flat list column of record batches of one schema."""
    facts: dict[str, ListFacts] = {}
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if is_flat_list(field.type):
                mine = ListFacts.of(column)
                facts[field.name] = facts[field.name].joined(mine) if field.name in facts else mine
    return facts


def packed_dtype_of(list_type: Any, facts: ListFacts) -> str | None:
    """Returns the `source_dtype` to pack lists of a type in; None where they cannot be packed.

    Args:
        list_type: An Arrow type.
        facts: What is known of all the column's lists.
    """
    if not is_flat_list(list_type) or facts.has_null_items:
        return None
    item = list_type.value_type
    if pa.types.is_boolean(item):
        return PACKED_BITS
    own = np.dtype(item.to_pandas_dtype()).newbyteorder("<")
    if own.kind == "f":
        return _DTYPE_NAMES.get(own)
    if facts.low is None or facts.high is None:
        return _DTYPE_NAMES[own]
    for name in _NARROW_FIRST:
        limits = np.iinfo(np.dtype(SOURCE_DTYPES[name]))
        if limits.min <= facts.low and facts.high <= limits.max:
            return name if value_bytes(name) < own.itemsize else _DTYPE_NAMES[own]
    raise AssertionError("every integer that Arrow holds fits one of eight dtypes")


def pack_lists(column: Any, dtype: str, length: int | None) -> Any:
    """Returns lists as a binary array: fixed-size where `length` is what every list has, else `binary`.

    Args:
        column: An array of flat lists without null items.
        dtype: What `packed_dtype_of` said.
        length: What `ListFacts.length` said of all lists, this array's and others'.
    """
    values = column.flatten()
    if dtype == PACKED_BITS:
        return _packed_bits(column, values, length)
    numbers = np.dtype(SOURCE_DTYPES[dtype])
    flat = np.ascontiguousarray(values.to_numpy(zero_copy_only=False).astype(numbers, copy=False))
    return _binary(column, flat, _lengths_of(column) * numbers.itemsize, packed_bytes_of(dtype, length))


def packed_bytes_of(dtype: str, length: int | None) -> int | None:
    """Returns how many bytes every value takes where all lists are of one length; None where they are not."""
    if not length:
        return None
    return 1 + (length + 7) // 8 if dtype == PACKED_BITS else length * value_bytes(dtype)


def _packed_bits(column: Any, values: Any, length: int | None) -> Any:
    lengths = _lengths_of(column)
    num_bytes = (lengths + 7) // 8
    ends = np.cumsum(num_bytes)
    bits = np.zeros(8 * int(num_bytes.sum()), np.bool_)
    bits[item_places((ends - num_bytes) * 8, lengths)] = values.to_numpy(zero_copy_only=False)
    there = np.ones(len(column), np.int64) if column.null_count == 0 else column.is_valid().to_numpy(False).astype(int)
    flat = np.empty(int((num_bytes + there).sum()), np.uint8)
    starts = np.cumsum(num_bytes + there) - num_bytes
    flat[item_places(starts, num_bytes)] = np.packbits(bits, bitorder="little")
    flat[(starts - there)[there > 0]] = (num_bytes * 8 - lengths)[there > 0]
    return _binary(column, flat, num_bytes + there, packed_bytes_of(PACKED_BITS, length))


def _lengths_of(column: Any) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    return lengths


def _binary(column: Any, flat: NDArray[Any], num_bytes: NDArray[np.int64], width: int | None) -> Any:
    """Values of so many bytes each, null where the column's are; of a fixed size if `width` says so."""
    data = pa.py_buffer(flat)
    if width:
        return pa.Array.from_buffers(pa.binary(width), len(column), [None, data])
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(num_bytes, out=offsets[1:])
    valid = column.is_valid().buffers()[1] if column.null_count else None
    packed = pa.Array.from_buffers(pa.large_binary(), len(column), [valid, pa.py_buffer(offsets), data])
    return packed if offsets[-1] >= 2**31 else packed.cast(pa.binary())


def unpack_lists(column: Any, dtype: str) -> Any:
    """Returns packed lists as lists again, of the dtype that they were packed in."""
    if dtype == PACKED_BITS:
        return _unpacked_bits(column)
    numbers = np.dtype(SOURCE_DTYPES[dtype])
    as_large = column.cast(pa.large_binary())
    buffers = as_large.buffers()
    ends = np.frombuffer(buffers[1], np.int64, len(as_large) + 1, as_large.offset * 8)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    flat = data[ends[0] : ends[-1]].view(numbers)
    offsets = pa.array((ends - ends[0]) // numbers.itemsize)
    return pa.LargeListArray.from_arrays(
        offsets, pa.array(flat), mask=as_large.is_null() if as_large.null_count else None
    )


def _unpacked_bits(column: Any) -> Any:
    level = bytes_level_of(column)
    if broken_bits(level).any():
        raise ValueError("a value is no packed bits")
    bits, leaf = packed_bits_of(level)
    offsets = np.append(0, np.cumsum(bits.lengths))
    values = leaf.values[item_places(bits.starts, bits.lengths)]
    return pa.LargeListArray.from_arrays(
        pa.array(offsets), pa.array(values), mask=column.is_null() if column.null_count else None
    )


def unpacked(batch: Any) -> Any:
    """Returns a record batch with every packed column as lists, which is what it stands for."""
    fields, columns = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        dtype = (field.metadata or {}).get(PACKED_KEY, b"").decode(errors="replace")
        if (dtype in SOURCE_DTYPES or dtype == PACKED_BITS) and _is_binary(field.type):
            column = unpack_lists(column, dtype)  # noqa: PLW2901 - the same column, as what it stands for
            field = pa.field(field.name, column.type, field.nullable)  # noqa: PLW2901 - as above
        fields.append(field)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def is_flat_list(arrow_type: Any) -> bool:
    """Whether values are lists of plain numbers or bools."""
    types = pa.types
    is_list = (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )
    if not is_list:
        return False
    item = arrow_type.value_type
    return bool(types.is_integer(item) or types.is_floating(item) or types.is_boolean(item))


def _is_binary(arrow_type: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(arrow_type) or types.is_large_binary(arrow_type) or types.is_fixed_size_binary(arrow_type)
    )
