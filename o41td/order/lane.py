"""Reading a lane: batches of (source, x), from any batch on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from o41td.order.mix import LaneMix
from o41td.order.shuffle import SourceWalk

__all__ = ["LaneReader", "LaneRows"]

_FILL_ROWS = 4096
_FIRST_SOURCE = np.int32(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRows:
    """The rows of consecutive batches of one lane.

    Attributes:
        first_batch: Number in the lane of the first batch; batch n of the stage is number n // lanes of its lane.
        source: Source of each row, ``[rows] int32``; not to be written to.
        x: Its x in that source's lane line, ``[rows] int64``.
        offsets: Where batches begin and end, ``[num_batches + 1] int64``: batch i is rows [offsets[i], offsets[i + 1]).
    """

    first_batch: int
    source: npt.NDArray[np.int32]
    x: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of all of them."""
        return len(self.x)


class LaneReader:
    """Reads a lane's batches in order. Works ahead by a few thousand rows, so that small batches cost little each.

    Not safe for use by several threads at once.
    """

    def __init__(
        self,
        mix: LaneMix,
        open_walk: Callable[[int, int], SourceWalk],
        *,
        batch_size: int,
        first_batch: int,
        num_rows: int | None,
        fill_rows: int = _FILL_ROWS,
    ) -> None:
        """Open at batch ``first_batch`` of the lane.

        Args:
            mix: The lane's sequence of sources.
            open_walk: Opens the walk of (source, count); called when a source's first row is needed.
            batch_size: Rows in a batch.
            first_batch: Number in the lane of the first batch to read.
            num_rows: Rows of the lane that come in batches; None if there is no end.
            fill_rows: Rows to work out at a time, where no more are asked for.
        """
        self._mix = mix
        self._open_walk = open_walk
        self._batch_size = batch_size
        self._num_rows = num_rows
        self._most_fill_rows = fill_rows
        self._fill_rows = 0  # the next time: twice as many each time, so that the first batch need not wait for others
        self._next_batch = first_batch
        self._filled = self._clipped(first_batch * batch_size)  # lane position after the rows in the buffers
        self._opened_at = mix.counts_at(self._filled)
        self._walks: dict[int, SourceWalk] = {}
        self._entered_x = self._opened_at.copy()
        self._source = np.empty(0, dtype=np.int32)
        self._x = np.empty(0, dtype=np.int64)
        self._read = 0  # rows of the buffers that were handed out
        self._offsets = np.zeros(1, dtype=np.int64)  # of the last call: calls are mostly alike
        self._offsets_of = (0, 0)

    @property
    def next_batch(self) -> int:
        """Number in the lane of the batch that is read next."""
        return self._next_batch

    @property
    def entered_x(self) -> npt.NDArray[np.int64]:
        """For each source, a bound above every x read so far, ``[sources] int64``; the count where none was read."""
        for source, walk in self._walks.items():
            self._entered_x[source] = walk.entered_x
        return self._entered_x.copy()

    def read_batches(self, num_batches: int) -> LaneRows:
        """Return the next ``num_batches`` batches, fewer (at last none) at the end of a finite stage."""
        first = self._next_batch
        num_rows = num_batches * self._batch_size
        if self._num_rows is not None:
            num_rows = max(0, min(num_rows, self._num_rows - first * self._batch_size))
        if self._read + num_rows > len(self._x):
            self._fill(first * self._batch_size + num_rows)
        offsets = self._offsets
        if (num_batches, num_rows) != self._offsets_of:
            num_batches = -(-num_rows // self._batch_size)
            offsets = np.arange(num_batches + 1, dtype=np.int64) * self._batch_size
            offsets[-1] = num_rows
            offsets.flags.writeable = False
            self._offsets = offsets
            self._offsets_of = (num_batches, num_rows)
        start = self._read
        self._read = stop = start + num_rows
        self._next_batch = first + num_batches
        return LaneRows(first_batch=first, source=self._source[start:stop], x=self._x[start:stop], offsets=offsets)

    def _clipped(self, position: int) -> int:
        return position if self._num_rows is None else min(position, self._num_rows)

    def _fill(self, stop: int) -> None:
        """Work out rows up to lane position ``stop`` or, if that is little, some more."""
        stop = self._clipped(max(stop, self._filled + self._fill_rows))
        source, x = self._next_rows(stop)
        assert len(x) == stop - self._filled
        self._fill_rows = min(max(2 * self._fill_rows, len(x)), self._most_fill_rows)
        self._filled = stop
        if self._read < len(self._x):
            source = np.concatenate([self._source[self._read :], source])
            x = np.concatenate([self._x[self._read :], x])
        self._source, self._x, self._read = source, x, 0

    def _next_rows(self, stop: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the source of each row up to lane position ``stop``, and its x."""
        if self._mix.plan.num_sources == 1:
            x = self._walk(0).take(stop - self._filled)
            return np.broadcast_to(_FIRST_SOURCE, x.shape), x
        source = self._mix.rows(self._filled, stop)
        counts = np.bincount(source)
        present = np.flatnonzero(counts).tolist()
        taken = [self._walk(index).take(int(counts[index])) for index in present]
        if len(present) == 1:
            return source, taken[0]
        # Small integers are sorted by radix; a stable sort keeps each source's rows in order.
        small = source.astype(np.uint8 if len(counts) <= 1 << 8 else np.uint16 if len(counts) <= 1 << 16 else np.int32)
        x = np.empty(len(source), dtype=np.int64)
        x[np.argsort(small, kind="stable")] = np.concatenate(taken)
        return source, x

    def _walk(self, source: int) -> SourceWalk:
        walk = self._walks.get(source)
        if walk is None:
            walk = self._walks[source] = self._open_walk(source, int(self._opened_at[source]))
        return walk
