"""A source's line: its units laid end to end, in a new hashed order each epoch, and the parts of it that lanes walk.

An epoch's order costs one hash and one sort over the units, and one running sum: O(units) time and memory, whatever the
number of rows. The few epochs in use are kept. Where epochs are short (tiny sources that repeat), many are worked out
at once, as rows of a matrix.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from o41td.order.hash import Purpose, absorb_each, hash_grid, stream_key

__all__ = ["LaneLine", "Runs", "SourceLine"]

_FEW_EPOCHS = 4
_MATRIX_ITEMS = 1 << 17
_KEPT_UNITS = 1 << 21
_MOST_KEPT_EPOCHS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of consecutive rows in line order; together they cover a range of x without a gap.

    Attributes:
        x_start: The x of each run's first row, ascending, ``[runs] int64``.
        unit: The unit it lies in, an index in the source's listed units, ``[runs] int64``.
        row_start: Its first row in that unit, ``[runs] int64``.
        num_rows: Its length, at least 1, ``[runs] int64``.
    """

    x_start: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]
    row_start: npt.NDArray[np.int64]
    num_rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.x_start)


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The orders of several epochs: ``perm[i]`` lists units without the empty ones, ``starts[i]`` their line starts."""

    perm: npt.NDArray[np.int64]  # [epochs, units]
    starts: npt.NDArray[np.int64]  # [epochs, units + 1]


class SourceLine:
    """The line of one source in one stage, for any epoch.

    Empty units take no part: the order is the same with or without them. Not safe for use by several threads at once.
    """

    def __init__(
        self,
        unit_rows: npt.ArrayLike,
        *,
        seed: int,
        stage_index: int,
        source_index: int,
        shuffled: bool,
        lanes: int = 1,
        infinite: bool = False,
    ) -> None:
        """Lay out ``unit_rows`` (non-negative, ``[units]``); ``shuffled`` permutes units anew in each epoch.

        An int64 array of them is kept, not copied.
        """
        rows = np.asarray(unit_rows, dtype=np.int64)
        if rows.ndim != 1 or (len(rows) and int(rows.min()) < 0):
            raise ValueError(f"unit rows of source {source_index} / must be one list of numbers of rows, none negative")
        self.num_units = len(rows)
        self.lanes = lanes
        self.shuffled = shuffled
        self._unit_ids = np.flatnonzero(rows)
        all_filled = len(self._unit_ids) == len(rows)  # as mostly: then what would be the same is kept once
        self._unit_rows = rows if all_filled else rows[self._unit_ids]
        self.num_rows = int(self._unit_rows.sum())
        self.is_whole = infinite and self.num_rows < lanes
        """Whether every lane walks the whole line, each in its own order, since there are fewer rows than lanes."""
        self._key_parts = (seed, Purpose.UNIT_ORDER, stage_index, source_index)
        self._index_bits = np.uint64(max(0, len(self._unit_ids) - 1).bit_length())
        self._listed = _Epochs(
            (self._unit_ids if all_filled else np.arange(len(self._unit_ids), dtype=np.int64))[None, :],
            np.concatenate([[0], np.cumsum(self._unit_rows)])[None, :],
        )
        self._kept: OrderedDict[tuple[int, int], _Epochs] = OrderedDict()
        self._num_kept = min(_MOST_KEPT_EPOCHS, max(3, _KEPT_UNITS // max(1, len(self._unit_ids))))

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """Return the half-open range of line positions that ``lane`` walks."""
        if self.is_whole:
            return 0, self.num_rows
        return self.num_rows * lane // self.lanes, self.num_rows * (lane + 1) // self.lanes

    def lane(self, lane: int) -> "LaneLine":
        """Return the part of the line that ``lane`` walks."""
        return LaneLine(self, lane)

    def units_of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the listed indices of non-empty units given by their number among the non-empty ones."""
        return self._unit_ids[slots]

    def line_position(self, unit: int, row: int, epoch: int, lane: int) -> int:
        """Return where a row of ``unit`` lies on the line of ``epoch``; ``lane`` matters to whole-walked lines."""
        slot = int(np.searchsorted(self._unit_ids, unit))
        if not (0 <= unit < self.num_units and slot < len(self._unit_ids) and self._unit_ids[slot] == unit):
            raise ValueError(f"unit {unit} / not a unit with rows of this source")
        if not 0 <= row < self._unit_rows[slot]:
            raise ValueError(f"row {row} of unit {unit} / the unit has {self._unit_rows[slot]} rows")
        order = self.epoch(epoch, lane)
        place = slot if not self.shuffled else int(np.flatnonzero(order.perm[0] == slot)[0])
        return int(order.starts[0, place]) + row

    def epoch(self, epoch: int, lane: int) -> _Epochs:
        """Return the order of one epoch, kept for a while."""
        if not self.shuffled:
            return self._listed
        name = (epoch, lane if self.is_whole else -1)
        order = self._kept.get(name)
        if order is None:
            order = self._kept[name] = self.epochs(np.array([epoch], dtype=np.uint64), lane)
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(name)
        return order

    def epochs(self, epochs: npt.NDArray[np.uint64], lane: int) -> _Epochs:
        """Return the orders of all ``epochs`` of a shuffled line, worked out at once."""
        lane_part = lane + 1 if self.is_whole else 0
        keys = absorb_each(stream_key(*self._key_parts, lane_part), epochs)
        perm = hash_grid(keys, len(self._unit_ids))
        # The hash above, the unit below: all values differ, so any sort gives the same order.
        perm >>= self._index_bits
        perm <<= self._index_bits
        perm |= np.arange(len(self._unit_ids), dtype=np.uint64)
        perm.sort(axis=1)
        perm &= np.uint64((1 << int(self._index_bits)) - 1)
        slots = perm.view(np.int64)
        starts = np.empty((len(epochs), len(self._unit_ids) + 1), dtype=np.int64)
        starts[:, 0] = 0
        np.cumsum(self._unit_rows[slots], axis=1, out=starts[:, 1:])
        return _Epochs(slots, starts)

    @property
    def matrix_epochs(self) -> int:
        """How many epochs to work out at once: 0 where the line is too long for that to help."""
        return _MATRIX_ITEMS // max(1, len(self._unit_ids)) if len(self._unit_ids) <= 1024 else 0


class LaneLine:
    """One lane's part of a source's line, addressed by x, which goes on from epoch to epoch."""

    def __init__(self, line: SourceLine, lane: int) -> None:
        self.line = line
        self.lane_index = lane
        self._low, self._high = line.lane_bounds(lane)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of this source that the lane has in one epoch."""
        return self._high - self._low

    def locate(self, x: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the unit and the row in it of each x, in any order: two ``[len(x)] int64``."""
        if not len(x):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        epoch = x // self.rows_per_epoch
        first, last = int(epoch.min()), int(epoch.max())
        position = x - epoch * self.rows_per_epoch + self._low
        if first == last or not self.line.shuffled:
            slot, row = _locate_in(self.line.epoch(first, self.lane_index), position)
        else:
            slot, row = self._locate_in_epochs(epoch, position)
        return self.line.units_of(slot), row

    def runs(self, x_start: int, x_stop: int) -> Runs:
        """Return the runs that cover [x_start, x_stop) in line order, across epochs."""
        parts = list(self._run_parts(x_start, x_stop))
        if not parts:
            empty = np.empty(0, dtype=np.int64)
            return Runs(x_start=empty, unit=empty, row_start=empty, num_rows=empty)
        starts, slots, rows, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Runs(x_start=starts, unit=self.line.units_of(slots), row_start=rows, num_rows=lengths)

    def _locate_in_epochs(
        self, epoch: npt.NDArray[np.int64], position: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the slots and rows of line positions in several epochs."""
        line = self.line
        distinct, which = np.unique(epoch, return_inverse=True)
        slot = np.empty(len(position), dtype=np.int64)
        row = np.empty(len(position), dtype=np.int64)
        at_once = line.matrix_epochs if len(distinct) > _FEW_EPOCHS else 1
        by_epoch = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(distinct)))
        for begin in range(0, len(distinct), max(1, at_once)):
            end = min(begin + max(1, at_once), len(distinct))
            chosen = by_epoch[(ends[begin - 1] if begin else 0) : ends[end - 1]]
            if end - begin == 1:
                order = line.epoch(int(distinct[begin]), self.lane_index)
                shift = np.zeros(len(chosen), dtype=np.int64)
            else:
                # Lay these epochs' lines end to end: one line with one ascending list of starts.
                several = line.epochs(distinct[begin:end].astype(np.uint64), self.lane_index)
                base = np.arange(end - begin, dtype=np.int64) * line.num_rows
                flat = np.append((several.starts[:, :-1] + base[:, None]).ravel(), base[-1] + line.num_rows)
                order = _Epochs(several.perm.reshape(1, -1), flat[None, :])
                shift = (which[chosen] - begin) * line.num_rows
            slot[chosen], row[chosen] = _locate_in(order, position[chosen] + shift)
        return slot, row

    def _run_parts(self, x_start: int, x_stop: int) -> Iterator[tuple[npt.NDArray[np.int64], ...]]:
        """Yield (x_start, slot, row_start, num_rows) of consecutive epochs or groups of epochs."""
        if x_stop <= x_start:
            return
        num_rows = self.rows_per_epoch
        epoch, last = x_start // num_rows, (x_stop - 1) // num_rows
        at_once = self.line.matrix_epochs if last - epoch >= _FEW_EPOCHS else 0
        while epoch <= last:
            if at_once > 1:
                end = min(epoch + at_once, last + 1)
                yield self._runs_of_epochs(epoch, end, x_start, x_stop)
                epoch = end
            else:
                begin = max(x_start - epoch * num_rows, 0)
                yield self._runs_of_epoch(epoch, begin, min(x_stop - epoch * num_rows, num_rows))
                epoch += 1

    def _runs_of_epoch(self, epoch: int, begin: int, end: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Return the runs of positions [begin, end) of the lane's part of one epoch."""
        order = self.line.epoch(epoch, self.lane_index)
        starts = order.starts[0]
        first = int(np.searchsorted(starts, begin + self._low, side="right")) - 1
        after = int(np.searchsorted(starts, end + self._low, side="left"))
        run_start = starts[first:after].copy()
        run_start[0] = begin + self._low
        run_stop = starts[first + 1 : after + 1].copy()
        run_stop[-1] = end + self._low
        x_start = run_start + (epoch * self.rows_per_epoch - self._low)
        return x_start, order.perm[0, first:after], run_start - starts[first:after], run_stop - run_start

    def _runs_of_epochs(self, first: int, after: int, x_start: int, x_stop: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Return the runs of [x_start, x_stop) that lie in the epochs [first, after), all worked out at once."""
        epochs = np.arange(first, after, dtype=np.int64)
        if self.line.shuffled:
            order = self.line.epochs(epochs.view(np.uint64), self.lane_index)
        else:
            order = self.line.epoch(first, self.lane_index)
        line_to_x = (epochs * self.rows_per_epoch - self._low)[:, None]
        bounds = np.clip(order.starts, self._low, self._high) + line_to_x
        run_start = np.maximum(bounds[:, :-1], x_start)
        num_rows = np.minimum(bounds[:, 1:], x_stop) - run_start
        kept = num_rows > 0
        row_start = run_start - (order.starts[:, :-1] + line_to_x)
        slot = np.broadcast_to(order.perm, num_rows.shape)
        return run_start[kept], slot[kept], row_start[kept], num_rows[kept]


def _locate_in(order: _Epochs, position: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the slots and rows of line positions in one epoch; searches only the stretch of the line they lie in."""
    starts = order.starts[0]
    first = int(np.searchsorted(starts, position.min(), side="right")) - 1
    after = int(np.searchsorted(starts, position.max(), side="right"))
    index = np.searchsorted(starts[first:after], position, side="right") + (first - 1)
    return order.perm[0, index], position - starts[index]
