"""A digest of rows by value: the same for the same rows in any order, any types that hold them, any layout.

A row's hash adds up those of its columns, and a digest those of its rows, modulo 2**64; so digests of parts add up to
that of the whole, and rows that are shuffled, split over shards and packed keep theirs. A number counts as a number: 1
and 1.0 are the same, so that columns may be widened; a null counts as no column. The mixer is that of
`o41td.order.hash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from o41td.order.hash import hash_range, mix64, mix_in_place

__all__ = ["digest_of", "row_hashes"]

_Hashes = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1342543DE82EF95)
_HALF = np.uint64(32)
_ABSENT = np.uint64(0)
_EXACT_BITS = 53
_SEQUENCE_KEY = 41
_LONG_ITEMS = 64
"""Lists longer than this on the average are worth a call each."""

_CACHED_BYTES = 256 << 10
"""Rows are hashed a few at a time, so that what is made of them meanwhile stays in the processor's cache."""


def digest_of(batches: Iterable[Any]) -> int:
    """Returns the digest of all rows of record batches."""
    total = 0
    for batch in batches:
        num_rows = max(1, batch.num_rows * _CACHED_BYTES // max(1, batch.nbytes))
        for row in range(0, batch.num_rows, num_rows):
            total += int(row_hashes(batch.slice(row, num_rows)).sum(dtype=np.uint64))
    return total & _MASK


def row_hashes(batch: Any) -> _Hashes:
    """Returns a hash of each row: uint64 [rows]."""
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        total += _named(name, _present(_hashes_of(column), column))
    return mix_in_place(total)


def _hashes_of(array: Any) -> _Hashes:
    """A hash of each value; anything where it is null."""
    kind = array.type
    types = pa.types
    if isinstance(array, pa.ExtensionArray):
        return _hashes_of(array.storage)
    if types.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if types.is_dictionary(kind):
        return _hashes_of(array.dictionary_decode())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return mix_in_place(_number_words(array) + _GOLDEN)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _hashes_of(array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()))
    if types.is_struct(kind):
        return _struct_hashes(array)
    if types.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _list_hashes(pa.ListArray.from_arrays(array.offsets, entries))
    if hasattr(kind, "value_type"):
        return _list_hashes(array)
    if types.is_binary(kind) or types.is_string(kind) or types.is_large_binary(kind) or types.is_large_string(kind):
        return _byte_hashes(array)
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return _byte_hashes(array.cast(pa.large_binary()))
    return _byte_hashes(array.cast(pa.large_string()))  # decimals, and views of text


def _number_words(array: Any) -> _Hashes:
    """A word of each number that tells it from others, not yet mixed; 1 and 1.0 have the same."""
    values = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
    numbers = values.to_numpy(zero_copy_only=False)
    words: _Hashes = numbers.astype(np.float64).view(np.uint64)
    if numbers.dtype.kind in "iu" and numbers.itemsize == 8 and len(numbers):
        limit = 1 << _EXACT_BITS
        large = (numbers > limit) | (numbers < -limit if numbers.dtype.kind == "i" else False)
        if large.any():  # what a float would round away
            words[large] ^= mix_in_place(numbers[large].astype(np.uint64))
    words ^= words >> _HALF  # small integers fill the upper bits only
    return words


def _byte_hashes(array: Any) -> _Hashes:
    large = array.cast(pa.large_binary())
    buffers = large.buffers()
    ends = np.frombuffer(buffers[1], np.int64, len(large) + 1, large.offset * 8)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    return _sequence_hashes(data[ends[0] : ends[-1]].astype(np.uint64), np.diff(ends))


def _list_hashes(array: Any) -> _Hashes:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    items = array.flatten()
    kind = items.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return _sequence_hashes(_present(_number_words(items), items, _ODD), lengths)
    return _sequence_hashes(_present(_hashes_of(items), items, _ODD), lengths)


def _sequence_hashes(items: _Hashes, lengths: NDArray[np.int64]) -> _Hashes:
    """A hash of each run of items: their products with as many random keys, added up, and their number."""
    longest = int(lengths.max(initial=0))
    keys = _keys(1 << longest.bit_length())[:longest]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    sums: _Hashes
    if longest and (lengths == longest).all():
        sums = items.reshape(len(lengths), longest) @ keys
    elif len(items) > _LONG_ITEMS * len(lengths):
        runs = zip(starts.tolist(), ends.tolist(), strict=True)
        sums = np.array([np.dot(items[start:end], keys[: end - start]) for start, end in runs], np.uint64)
    else:
        places = np.arange(len(items)) - np.repeat(starts, lengths)
        running = np.zeros(len(items) + 1, np.uint64)
        np.cumsum(items * keys[places], out=running[1:])
        sums = running[ends] - running[starts]
    return mix_in_place(sums + (lengths.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


@lru_cache(maxsize=4)
def _keys(count: int) -> _Hashes:
    """The first keys of sequences: odd, so that no product loses an item."""
    return hash_range(_SEQUENCE_KEY, 0, count) | np.uint64(1)


def _struct_hashes(array: Any) -> _Hashes:
    total = np.full(len(array), _GOLDEN, np.uint64)
    for name, member in zip((field.name for field in array.type), array.flatten(), strict=True):
        total += _named(name, _present(_hashes_of(member), member))
    return mix_in_place(total)


def _present(hashes: _Hashes, array: Any, null: np.uint64 = _ABSENT) -> _Hashes:
    """The hashes, and `null` where a value is null."""
    if not array.null_count:
        return hashes
    there = array.is_valid().to_numpy(zero_copy_only=False)
    return np.where(there, hashes, null)


def _named(name: str, hashes: _Hashes) -> _Hashes:
    """The hashes as those of a column or member of this name; 0 stays 0."""
    key = mix64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")) | 1
    return hashes * np.uint64(key)
