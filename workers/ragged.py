"""Rows of unequal length into rows of equal length: cut, padded, written straight into the slot.

Measured on rows of about 700 values into 2 048 (ns a row, int32 and bool): a NumPy slice a row 2 260 and 1 440; a
boolean mask 3 120 and 2 090; a memoryview slice a row after one fill 1 480 and 530; Arrow's `list_slice` 2 140 and 375;
gluing views of rows and of padding together in one Arrow cast 1 600 and 240. So long rows are copied by memoryview, and
short ones, where the interpreter's 300 ns a row would dominate, by the cast. To pad behind the values of long rows, and
not the whole row first, takes as long where a third is values, and a fifth less where nearly all are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.workers.arrow_cast import large_binary_of
from o41td.workers.slot_rows import SlotRows

__all__ = ["copy_ragged"]

_GLUED_ROW_BYTES = 4096
"""Rows up to this size are glued, longer ones are copied one by one."""

_PADDED_ROW_BYTES = 64 << 10
"""Of rows up to this size only what is behind their values is padded, longer ones are filled first."""

_GLUED_BLOCK_BYTES = 2 << 20
"""Bytes of output glued at once; as much again is needed meanwhile."""

_INLINE_BYTES = 12
"""A binary view this short holds its bytes itself."""

_VIEW = np.dtype([("size", "<i4"), ("inline", "u1", 4), ("buffer", "<i4"), ("offset", "<i4")])


def copy_ragged(
    values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], rows: SlotRows, pad: object
) -> None:
    """Writes `values[starts[i] : starts[i] + lengths[i]]` into row i, and `pad` behind it.

    Args:
        values: [m], contiguous, of the rows' dtype.
        starts: int64 [n].
        lengths: int64 [n], none above the rows' width.
        rows: n rows with one axis.
        pad: The value behind short rows.
    """
    width = rows.array.shape[1]
    if not len(rows) or not width:
        return
    if not lengths.any():
        rows.put(pad)
        return
    row_bytes = width * rows.array.itemsize
    if row_bytes > _GLUED_ROW_BYTES or values.nbytes >= 2**31:
        _copy_rows(values, starts, lengths, rows, pad)
        return
    block_rows = _GLUED_BLOCK_BYTES // row_bytes
    for row in range(0, len(rows), block_rows):
        block = slice(row, row + block_rows)
        # Arrow sets aside room for all bytes that it is shown, so it is shown those of the block.
        filled = lengths[block] > 0
        first = int(starts[block][filled].min(initial=len(values)))
        last = int((starts[block] + lengths[block])[filled].max(initial=first))
        rows.part(row, row + block_rows).put(
            _glued(values[first:last], starts[block] - first, lengths[block], width, pad)
        )


def _copy_rows(
    values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], rows: SlotRows, pad: object
) -> None:
    out, size = rows.array, rows.array.itemsize
    row_bytes = out.shape[1] * size
    if row_bytes > _PADDED_ROW_BYTES:
        rows.put(pad)
    # NumPy 2 arrays are buffers, which their stubs say of Python 3.12 on only.
    target = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type,unused-ignore]
    source = memoryview(values.view(np.uint8))  # type: ignore[arg-type,unused-ignore]
    tail = np.full(min(row_bytes, _PADDED_ROW_BYTES) // size, pad, out.dtype)
    padding = memoryview(tail.view(np.uint8))  # type: ignore[arg-type,unused-ignore]
    begins = rows.places * row_bytes
    ends = begins + lengths * size
    stops = begins + row_bytes if row_bytes <= _PADDED_ROW_BYTES else ends
    firsts = starts * size
    lasts = firsts + lengths * size
    columns = (column.tolist() for column in (begins, ends, stops, firsts, lasts))
    for begin, end, stop, first, last in zip(*columns, strict=True):
        target[begin:end] = source[first:last]
        target[end:stop] = padding[: stop - end]


def _glued(
    values: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int, pad: object
) -> NDArray[Any]:
    """Builds Arrow binary views [row 0, padding, row 1, padding, …] and lets one cast lay their bytes end to end."""
    num_rows, size = len(starts), values.itemsize
    padding = np.full(max(width, _INLINE_BYTES), pad, values.dtype)
    views = np.zeros((num_rows, 2), _VIEW)
    views["size"][:, 0] = lengths * size
    views["size"][:, 1] = (width - lengths) * size
    views["offset"][:, 0] = starts * size
    views["buffer"][:, 1] = 1
    _fill_inline(views[:, 0], values.view(np.uint8))
    _fill_inline(views[:, 1], padding.view(np.uint8))
    buffers = [None, pa.py_buffer(views), pa.py_buffer(values), pa.py_buffer(padding)]
    glued = large_binary_of(pa.Array.from_buffers(pa.binary_view(), 2 * num_rows, buffers))
    return np.frombuffer(glued.buffers()[2], values.dtype, count=num_rows * width).reshape(num_rows, width)


def _fill_inline(views: NDArray[Any], data: NDArray[np.uint8]) -> None:
    """Puts the bytes of short views into the views, and zeros behind them, as Arrow's format wants it."""
    short = np.flatnonzero(views["size"] <= _INLINE_BYTES)
    if not len(short):
        return
    places = views["offset"][short, None] + np.arange(_INLINE_BYTES)
    there = np.arange(_INLINE_BYTES) < views["size"][short, None]
    taken = np.where(there, data.take(places, mode="clip") if len(data) else 0, 0).astype(np.uint8)
    packed = np.zeros(len(short), _VIEW)
    packed["size"] = views["size"][short]
    packed.view(np.uint8).reshape(len(short), _VIEW.itemsize)[:, 4:] = taken
    views[short] = packed
