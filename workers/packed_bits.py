"""Lists of bools packed as bits, eight to a byte, behind a byte that says how many bits of the last one are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from o41td.workers.leaf_values import LeafValues
from o41td.workers.list_level import ListLevel
from o41td.workers.ragged import copy_ragged
from o41td.workers.slot_rows import SlotRows

__all__ = ["broken_bits", "packed_bits_of", "padded_bits_of"]

_MAX_UNUSED_BITS = 7


def broken_bits(level: ListLevel) -> NDArray[np.bool_]:
    """Which rows of bytes are no packed bits: [n] bool. A null row, which has no bytes, is not broken."""
    heads = _heads_of(level)
    broken: NDArray[np.bool_] = (heads > _MAX_UNUSED_BITS) | ((level.lengths == 1) & (heads > 0))
    empty = level.lengths == 0
    broken |= empty if level.valid is None else empty & level.valid
    return broken


def packed_bits_of(level: ListLevel) -> tuple[ListLevel, LeafValues]:
    """Rows of packed bits, none broken, as rows of bools."""
    filled = level.lengths > 0
    if not filled.any():
        return replace(level, lengths=np.zeros_like(level.lengths)), LeafValues(np.empty(0, np.bool_), None)
    lengths = _lengths_of(level)
    first = int(level.starts[filled].min())
    last = int((level.starts + level.lengths)[filled].max())
    values = np.unpackbits(_bytes_of(level)[first:last], bitorder="little").view(np.bool_)
    return replace(level, starts=(level.starts + 1 - first) * 8, lengths=lengths), LeafValues(values, None)


def padded_bits_of(level: ListLevel, width: int, *, pad: bool) -> NDArray[np.uint8]:
    """Rows of packed bits, none broken, cut and padded to `width` bits each: [n, ceil(width / 8)], lowest bit first."""
    lengths = np.minimum(_lengths_of(level), width)
    padded = np.empty((len(lengths), (width + 7) // 8), np.uint8)
    copy_ragged(_bytes_of(level), level.starts + 1, (lengths + 7) // 8, SlotRows(padded), 255 if pad else 0)
    rows = np.flatnonzero(lengths % 8)  # those whose last byte has other bits behind their own
    last, own = lengths[rows] // 8, (1 << lengths[rows] % 8) - 1
    padded[rows, last] = padded[rows, last] & own | (~own & 255 if pad else 0)
    return padded


def _heads_of(level: ListLevel) -> NDArray[np.int64]:
    """The first byte of every row; 0 of empty ones."""
    if not len(level.items):
        return np.zeros(len(level.starts), np.int64)
    return np.where(level.lengths > 0, _bytes_of(level).take(level.starts, mode="clip"), 0).astype(np.int64)


def _lengths_of(level: ListLevel) -> NDArray[np.int64]:
    """How many bits every row has."""
    return np.where(level.lengths > 0, (level.lengths - 1) * 8 - _heads_of(level), 0)


def _bytes_of(level: ListLevel) -> NDArray[np.uint8]:
    return np.frombuffer(level.items.buffers()[1], np.uint8) if len(level.items) else np.empty(0, np.uint8)
