"""The shuffle: a lane's rows of one source in the order in which they leave.

Rows leave in the order of their keys (see ``leaving``), never across an epoch's end. Since p <= key / 2**20 < p + R, a
row's place differs from p by less than R; once the rows below T have been entered, all rows with keys below T << 20 may
leave; and at output position a all rows p <= a - R have left, so any position is found by entering the rows from
a - R + 1 on and passing over those that left before.

Rows are entered a step at a time, few at first: a mix of many sources opens all of them for one batch. Key and
position, both counted from R rows before the step, are packed in one uint64: sorting those is several times faster than
an argsort, and ties are broken by position. What is pending is sorted with the rows of the next step: that costs less
than to pick it out. Very large buffers do not fit and take a stable argsort instead, with the same result.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from o41td.order.hash import absorb, absorb_each, hash_grid, hash_range
from o41td.order.leaving import FRACTION_BITS, delays
from o41td.order.line import LaneLine

__all__ = ["MAX_BUFFER_ROWS", "MAX_EPOCH_ROWS", "SourceWalk"]

MAX_BUFFER_ROWS = (1 << 32) - 1
MAX_EPOCH_ROWS = 1 << 43
"""A position and a buffer below these fit a key."""

_FIRST_STEP_ROWS = 2048
_STEP_ROWS = 16384
_FRACTION = np.uint64(FRACTION_BITS)


class SourceWalk:
    """Hands out the x of a lane's rows of one source in the order in which they leave the shuffle.

    Each row is hashed once and sorted once. Not safe for use by several threads at once.
    """

    def __init__(
        self,
        lane_line: LaneLine,
        *,
        shuffle_key: int,
        buffer_rows: int,
        count: int = 0,
        num_epochs: int | None = None,
    ) -> None:
        """Start after ``count`` rows of the lane's rows of the source.

        Args:
            lane_line: The lane's part of the source's line; it has rows.
            shuffle_key: Stream of (seed, purpose SHUFFLE, stage, source, lane); epochs are absorbed here.
            buffer_rows: R; 0 or 1 leaves the line's order.
            count: Rows already handed out, over all epochs.
            num_epochs: Epochs after which the walk ends; None if it never does.
        """
        self._rows_per_epoch = lane_line.rows_per_epoch
        assert 0 < self._rows_per_epoch <= MAX_EPOCH_ROWS
        assert 0 <= buffer_rows <= MAX_BUFFER_ROWS
        self._buffer_rows = buffer_rows
        self._shuffle_key = shuffle_key
        self._num_epochs = num_epochs
        self._step = max(_STEP_ROWS, buffer_rows // 2)
        self._index_bits = np.uint64((buffer_rows + self._step).bit_length())
        key_bits = (2 * buffer_rows + self._step).bit_length() + FRACTION_BITS
        self._is_packed = key_bits + int(self._index_bits) <= 64
        self._index_mask = np.uint64((1 << int(self._index_bits)) - 1)
        self._packed_row = np.uint64((1 << (FRACTION_BITS + int(self._index_bits))) + 1)  # one position further on
        self._ready = np.empty(0, dtype=np.int64)
        self._pending = np.empty(0, dtype=np.uint64)  # packed, or keys of the epoch when not packed
        self._pending_positions = np.empty(0, dtype=np.int64)  # only when not packed
        self._epoch, place = divmod(count, self._rows_per_epoch)
        if buffer_rows <= 1:
            self._entered, self._passed_over = place, 0
        else:
            is_short = self._rows_per_epoch <= self._step
            self._entered = 0 if is_short else max(0, place - buffer_rows + 1)
            self._passed_over = place - self._entered
        self._last_step = 0
        self._next_step = min(self._step, max(_FIRST_STEP_ROWS, self._passed_over))
        self._epoch_key = absorb(shuffle_key, self._epoch)

    @property
    def entered_x(self) -> int:
        """A bound above every x handed out so far: all rows below it have been taken into the shuffle."""
        return self._epoch * self._rows_per_epoch + self._entered

    def take(self, num_rows: int) -> npt.NDArray[np.int64]:
        """Return the x of the next ``num_rows`` rows, fewer where the walk ends: ``[rows] int64``."""
        if len(self._ready) < num_rows:
            parts = [self._ready]
            missing = num_rows - len(self._ready)
            while missing > 0 and (self._num_epochs is None or self._epoch < self._num_epochs):
                entered = self._enter(missing)
                if self._passed_over:
                    skipped = min(self._passed_over, len(entered))
                    self._passed_over -= skipped
                    entered = entered[skipped:]
                parts.append(entered)
                missing -= len(entered)
            self._ready = np.concatenate(parts)
        taken, self._ready = self._ready[:num_rows], self._ready[num_rows:]
        return taken

    def _enter(self, num_rows: int) -> npt.NDArray[np.int64]:
        """Enter the next rows of the line and return the x that leave by that, about ``num_rows`` if it can."""
        if self._buffer_rows <= 1:
            return self._enter_in_line_order(num_rows)
        if self._entered == 0 and self._rows_per_epoch <= self._step:
            return self._enter_epochs(num_rows + self._passed_over)
        return self._enter_window()

    def _enter_in_line_order(self, num_rows: int) -> npt.NDArray[np.int64]:
        start = self.entered_x
        stop = start + max(num_rows, self._step)
        if self._num_epochs is not None:
            stop = min(stop, self._num_epochs * self._rows_per_epoch)
        self._epoch, self._entered = divmod(stop, self._rows_per_epoch)
        return np.arange(start, stop, dtype=np.int64)

    def _enter_epochs(self, num_rows: int) -> npt.NDArray[np.int64]:
        """Enter whole short epochs, as many as give ``num_rows`` rows up to the size of a step."""
        length = self._rows_per_epoch
        num_epochs = min(-(-num_rows // length), max(1, self._step // length))
        if self._num_epochs is not None:
            num_epochs = min(num_epochs, self._num_epochs - self._epoch)
        epochs = np.arange(self._epoch, self._epoch + num_epochs, dtype=np.uint64)
        keys = delays(hash_grid(absorb_each(self._shuffle_key, epochs), length), self._buffer_rows)
        positions = np.arange(length, dtype=np.uint64)
        keys += positions << _FRACTION
        if self._is_packed:
            keys <<= self._index_bits
            keys |= positions
            keys.sort(axis=1)
            keys &= self._index_mask
            order = keys.view(np.int64)
        else:
            order = np.argsort(keys, axis=1, kind="stable")
        order = order + (epochs.view(np.int64) * length)[:, None]
        self._start_epoch(self._epoch + num_epochs)
        return order.ravel()

    def _enter_window(self) -> npt.NDArray[np.int64]:
        """Enter one step of a long epoch and return what leaves: keys below any later row's, or all at the end."""
        first = self._entered
        after = min(self._rows_per_epoch, first + self._next_step)
        self._next_step = min(2 * self._next_step, self._step)
        is_last = after == self._rows_per_epoch
        keys = delays(hash_range(self._epoch_key, first, after), self._buffer_rows)
        if self._is_packed:
            x = self._leave_packed(keys, is_last=is_last)
            x += self.entered_x - self._buffer_rows
        else:
            x = self._leave_wide(keys, first, after, is_last=is_last)
            x += self._epoch * self._rows_per_epoch
        if is_last:
            self._start_epoch(self._epoch + 1)
        else:
            self._entered = after
        return x

    def _leave_packed(self, keys: npt.NDArray[np.uint64], *, is_last: bool) -> npt.NDArray[np.int64]:
        """Return the positions that leave once a step's rows with ``keys`` are in, from R before the step's first."""
        num_entering = len(keys)
        keys <<= self._index_bits
        keys += _packed_rows(self._buffer_rows, self._step, int(self._packed_row))[:num_entering]
        if len(self._pending):
            self._pending -= self._packed_row * np.uint64(self._last_step)
            keys = np.concatenate([self._pending, keys])
        self._last_step = num_entering
        keys.sort()
        num_leaving = len(keys)
        if not is_last:
            next_row = np.uint64(self._buffer_rows + num_entering) * self._packed_row
            num_leaving = int(keys.searchsorted(next_row))
        leaving, self._pending = keys[:num_leaving], keys[num_leaving:]
        leaving &= self._index_mask
        return leaving.view(np.int64)

    def _leave_wide(
        self, keys: npt.NDArray[np.uint64], first: int, after: int, *, is_last: bool
    ) -> npt.NDArray[np.int64]:
        new = np.arange(first, after, dtype=np.int64)
        keys += new.view(np.uint64) << _FRACTION
        keys = np.concatenate([self._pending, keys])
        positions = np.concatenate([self._pending_positions, new])  # ascending: a stable sort breaks ties by position
        if is_last:
            self._pending, self._pending_positions = keys[:0], positions[:0]
        else:
            leaves = keys < np.uint64(after << FRACTION_BITS)
            self._pending, self._pending_positions = keys[~leaves], positions[~leaves]
            keys, positions = keys[leaves], positions[leaves]
        return positions[np.argsort(keys, kind="stable")]

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._entered = 0
        self._epoch_key = absorb(self._shuffle_key, epoch)


@lru_cache(maxsize=4)
def _packed_rows(buffer_rows: int, num_rows: int, packed_row: int) -> npt.NDArray[np.uint64]:
    """Return the packed positions of a step's rows; all walks of a stage share them."""
    rows = np.arange(buffer_rows, buffer_rows + num_rows, dtype=np.uint64)
    rows *= np.uint64(packed_row)
    rows.flags.writeable = False
    return rows
