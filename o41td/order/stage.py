"""The order of one stage: batches by number, totals in closed form, readers at any position, and the way back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from o41td.exclusions import NOTHING_EXCLUDED, Exclusions
from o41td.order.hash import Purpose, absorb, stream_key
from o41td.order.lane import LaneReader
from o41td.order.leaving import LeavingOrder, place_in_epoch
from o41td.order.line import LaneLine, Runs, SourceLine
from o41td.order.mix import LaneMix, MixPlan
from o41td.order.shares import ShareTable, integer_shares
from o41td.order.shuffle import MAX_BUFFER_ROWS, MAX_EPOCH_ROWS, SourceWalk

__all__ = ["MAX_LANES", "Occurrence", "StageOrder"]

MAX_LANES = 1 << 16

_MOST_PLANS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One coming of a row: batch ``batch`` of the stage, place ``place`` in it; in which lane and epoch."""

    batch: int
    place: int
    lane: int
    epoch: int


class StageOrder:
    """The order of a stage. A pure function of its arguments; memory O(units), set-up O(units + sources * lanes).

    Not safe for use by several threads at once: a few epochs' unit orders are kept between calls.
    """

    def __init__(
        self,
        *,
        seed: int,
        stage_index: int,
        unit_rows: Sequence[npt.ArrayLike],
        weights: Sequence[float],
        batch_size: int,
        buffer_rows: int | None = None,
        infinite: bool = False,
        drop_last: bool = False,
        lanes: int = 1,
    ) -> None:
        """Set up the order.

        Args:
            seed: In [0, 2**64).
            stage_index: Number of the stage.
            unit_rows: For each source, the rows of each of its units in listed order.
            weights: For each source, a finite positive number.
            batch_size: Rows in a batch, at least 1.
            buffer_rows: The shuffle's buffer, below 2**32; 0 or None keeps the listed order.
            infinite: Whether sources start over instead of running out.
            drop_last: Whether partial batches at the end of a finite stage are dropped.
            lanes: Number of independent sub-sequences, 1 to 65 536.

        Raises:
            ValueError: If an argument is outside these bounds, or an infinite stage has no rows.
        """
        self.buffer_rows = buffer_rows or 0
        _check_numbers(seed, batch_size, lanes, self.buffer_rows)
        if len(unit_rows) != len(weights):
            raise ValueError(f"{len(weights)} weights for {len(unit_rows)} sources / each source needs one")
        self.seed = seed
        self.stage_index = stage_index
        self.batch_size = batch_size
        self.infinite = infinite
        self.drop_last = drop_last
        self.lanes = lanes
        self.num_sources = len(unit_rows)
        self.shares, self.share_total = integer_shares(weights)
        self.lines = tuple(
            SourceLine(
                rows,
                seed=seed,
                stage_index=stage_index,
                source_index=source,
                shuffled=self.buffer_rows > 0,
                lanes=lanes,
                infinite=infinite,
            )
            for source, rows in enumerate(unit_rows)
        )
        if any(line.num_rows > MAX_EPOCH_ROWS for line in self.lines):
            raise ValueError(f"a source of more than {MAX_EPOCH_ROWS} rows / split it")
        if infinite and not any(line.num_rows for line in self.lines):
            raise ValueError("infinite stage without rows / at least one source must have rows")
        self.source_lane_rows = self._source_lane_rows()
        """Rows of each source in each lane in one epoch, ``[sources, lanes] int64``."""
        self.lane_rows = self.source_lane_rows.sum(axis=0)
        """Rows of each lane (of one epoch of every source, if infinite), ``[lanes] int64``."""
        self.num_batches = None if infinite else self._num_batches()
        """Batches until the first lane that has none left, M; None if the stage is infinite."""
        self._tables: dict[bytes, ShareTable] = {}
        self._plans: dict[bytes, MixPlan] = {}

    @property
    def total_rows(self) -> int:
        """Rows of all sources, each once."""
        return sum(line.num_rows for line in self.lines)

    # ---- totals

    def batch_rows(self, batch: int) -> int:
        """Return the number of rows of batch ``batch``: less than the batch size only for the last of a lane."""
        if self.infinite:
            return self.batch_size
        before = batch // self.lanes * self.batch_size
        left = int(self.lane_rows[batch % self.lanes]) - before
        rows = min(self.batch_size, left)
        return 0 if rows <= 0 or (self.drop_last and rows < self.batch_size) else rows

    def rows_before(self, batch: int) -> int:
        """Return the number of rows of the batches [0, batch); ``batch`` is at most ``num_batches``."""
        if self.infinite:
            return batch * self.batch_size
        return int(self._lane_positions(batch).sum())

    def source_rows_before(self, batch: int) -> npt.NDArray[np.int64]:
        """Return how many rows of each source the batches [0, batch) hold: ``[sources] int64``.

        Costs one look into the mix per lane.
        """
        positions = self._lane_positions(batch).tolist()
        counts = np.zeros(self.num_sources, dtype=np.int64)
        for lane, position in enumerate(positions):
            if position:
                counts += self.lane_mix(lane).counts_at(position)
        return counts

    def epochs_begun(self, source: int, batch: int) -> int:
        """Return how many epochs of ``source`` the batches [0, batch) reach into, in the lane that is farthest."""
        most = 0
        for lane, position in enumerate(self._lane_positions(batch).tolist()):
            rows = int(self.source_lane_rows[source, lane])
            if position and rows:
                most = max(most, -(-int(self.lane_mix(lane).counts_at(position)[source]) // rows))
        return most

    def rounds(self, position: int, world_size: int, excluded: Exclusions = NOTHING_EXCLUDED) -> int | None:
        """Return the whole rounds of ``world_size`` batches from batch ``position`` to the end; None if infinite.

        ``excluded`` batches are part of no round.
        """
        if self.num_batches is None:
            return None
        left = max(0, self.num_batches - position)
        return (left - excluded.count(position, position + left)) // world_size

    def excluded_rows(self, start: int, stop: int, excluded: Exclusions) -> int:
        """Return how many rows the ``excluded`` of the batches [start, stop) hold."""
        stop = stop if self.num_batches is None else min(stop, self.num_batches)
        return sum(self.rows_before(end) - self.rows_before(begin) for begin, end in excluded.overlap(start, stop))

    def dropped_rows(self, position: int, rank: int, world_size: int, excluded: Exclusions = NOTHING_EXCLUDED) -> int:
        """Return the rows that ``rank`` drops when a run from batch ``position`` on reaches the stage's end.

        Dropped are the rows of every batch after the last whole round: those of a last round that could not be filled,
        of batches of lanes that go on beyond ``num_batches``, and of partial batches that ``drop_last`` drops. Batch n,
        also one that is never delivered, counts on rank (n - position) % world_size, less what is ``excluded`` in
        between. With the rows before ``position``, those delivered since and those excluded, the sum over ranks is the
        number of rows of the stage.
        """
        rounds = self.rounds(position, world_size, excluded)
        if rounds is None:
            return 0
        assert self.num_batches is not None
        end = self.num_batches
        leftover = 0  # of a last round that could not be filled: fewer than world_size batches
        for start, stop in excluded.stretches(excluded.after(position, rounds * world_size), end):
            for batch in range(start, stop or end):
                if (batch - position - excluded.count(position, batch)) % world_size == rank:
                    leftover += self.batch_rows(batch)
        first = self._lane_batches(end)
        left = -(-self.lane_rows // self.batch_size) - first  # batches of each lane that never come, partial ones too
        left = np.maximum(left, 0)
        lane = np.repeat(np.arange(self.lanes, dtype=np.int64), left)
        lane_start = np.cumsum(left) - left
        batch_in_lane = np.arange(len(lane), dtype=np.int64) - lane_start[lane] + first[lane]
        rows = np.minimum(self.batch_size, self.lane_rows[lane] - batch_in_lane * self.batch_size)
        ordinal = batch_in_lane * self.lanes + lane - position - excluded.count(position, end)
        return leftover + int(rows[ordinal % world_size == rank].sum())

    # ---- reading

    def open_lane(self, lane: int, batch_in_lane: int = 0, *, fill_rows: int | None = None) -> LaneReader:
        """Return a reader of ``lane`` at its batch ``batch_in_lane``.

        ``fill_rows`` is how many rows it works out at a time; by default a few thousand.
        """
        num_rows = None
        if not self.infinite:
            num_rows = int(self.lane_rows[lane])
            if self.drop_last:
                num_rows -= num_rows % self.batch_size

        def open_walk(source: int, count: int) -> SourceWalk:
            return self.open_walk(source, lane, count)

        mix = self.lane_mix(lane)
        if fill_rows is None:
            return LaneReader(mix, open_walk, batch_size=self.batch_size, first_batch=batch_in_lane, num_rows=num_rows)
        return LaneReader(
            mix,
            open_walk,
            batch_size=self.batch_size,
            first_batch=batch_in_lane,
            num_rows=num_rows,
            fill_rows=fill_rows,
        )

    def open_walk(self, source: int, lane: int, count: int = 0) -> SourceWalk:
        """Return the walk of a lane's rows of ``source`` in leaving order, after the first ``count`` of them."""
        return SourceWalk(
            self.lane_line(source, lane),
            shuffle_key=self._shuffle_key(source, lane),
            buffer_rows=self.buffer_rows,
            count=count,
            num_epochs=None if self.infinite else 1,
        )

    def leaving_order(self, source: int, lane: int, x: int) -> LeavingOrder | None:
        """Return in which order the rows from ``x`` of a lane's line of ``source`` leave; None in the line's order."""
        if self.buffer_rows <= 1:
            return None
        epoch, first = divmod(x, int(self.source_lane_rows[source, lane]))
        return LeavingOrder(absorb(self._shuffle_key(source, lane), epoch), first, self.buffer_rows)

    def lane_line(self, source: int, lane: int) -> LaneLine:
        """Return a lane's part of the line of ``source``."""
        return self.lines[source].lane(lane)

    def lane_mix(self, lane: int) -> LaneMix:
        """Return the sequence of sources of ``lane``."""
        rows = self.source_lane_rows[:, lane].copy()
        name = rows.tobytes()
        plan = self._plans.get(name)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[name] = MixPlan(self.shares, rows, infinite=self.infinite, tables=self._tables)
        return LaneMix(plan, stream_key(self.seed, Purpose.MIX, self.stage_index, lane))

    def line_runs(self, source: int, lane: int, x_start: int, x_stop: int) -> Runs:
        """Return the runs of rows that cover [x_start, x_stop) of a lane's line of ``source``."""
        return self.lane_line(source, lane).runs(x_start, x_stop)

    def locate(
        self, source: int, lane: int, x: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the unit and the row in it of each x of a lane's line of ``source``: two ``[len(x)] int64``."""
        return self.lane_line(source, lane).locate(x)

    def coordinates(self, batch: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (source, unit, row in unit) of each row of batch ``batch``, without reading what came before.

        Raises:
            IndexError: If the stage has no such batch.
        """
        if batch < 0 or (self.num_batches is not None and batch >= self.num_batches):
            raise IndexError(f"batch {batch} / the stage has {self.num_batches} batches")
        lane = batch % self.lanes
        rows = self.open_lane(lane, batch // self.lanes, fill_rows=self.batch_size).read_batches(1)
        unit = np.empty(rows.num_rows, dtype=np.int64)
        row = np.empty(rows.num_rows, dtype=np.int64)
        for source in np.unique(rows.source).tolist():
            chosen = rows.source == source
            unit[chosen], row[chosen] = self.locate(source, lane, rows.x[chosen])
        return rows.source, unit, row

    # ---- the way back

    def find(self, source: int, unit: int, row: int, *, epochs: int = 1) -> list[Occurrence]:
        """Return where a row comes in the first ``epochs`` epochs of its source, in the order of batches.

        A source that every lane walks whole comes once an epoch in each lane. A row that is dropped at the stage's end
        does not come.

        Raises:
            ValueError: If the source has no such row.
        """
        line = self.lines[source]
        found = []
        for epoch in range(epochs if self.infinite else min(1, epochs)):
            for whole_lane in range(self.lanes if line.is_whole else 1):
                position = line.line_position(unit, row, epoch, whole_lane)
                lane = whole_lane if line.is_whole else ((position + 1) * self.lanes - 1) // line.num_rows
                occurrence = self._occurrence(source, lane, epoch, position - line.lane_bounds(lane)[0])
                if occurrence is not None:
                    found.append(occurrence)
        return sorted(found, key=lambda occurrence: (occurrence.batch, occurrence.place))

    def _occurrence(self, source: int, lane: int, epoch: int, position: int) -> Occurrence | None:
        """Return where the row at ``position`` of a lane's part of an epoch comes, or None if it is dropped."""
        length = int(self.source_lane_rows[source, lane])
        place = place_in_epoch(
            position,
            rows_per_epoch=length,
            buffer_rows=self.buffer_rows,
            epoch_key=absorb(self._shuffle_key(source, lane), epoch),
        )
        at = self.lane_mix(lane).position_of(source, epoch * length + place)
        assert at is not None, "every row of a lane has a place in its mix"
        batch = at // self.batch_size * self.lanes + lane
        if self.num_batches is not None and batch >= self.num_batches:
            return None
        return Occurrence(batch=batch, place=at % self.batch_size, lane=lane, epoch=epoch)

    # ---- inside

    def _shuffle_key(self, source: int, lane: int) -> int:
        return stream_key(self.seed, Purpose.SHUFFLE, self.stage_index, source, lane)

    def _source_lane_rows(self) -> npt.NDArray[np.int64]:
        edges = np.arange(self.lanes + 1, dtype=np.int64)
        rows = np.empty((self.num_sources, self.lanes), dtype=np.int64)
        for source, line in enumerate(self.lines):
            rows[source] = line.num_rows if line.is_whole else np.diff(line.num_rows * edges // self.lanes)
        return rows

    def _num_batches(self) -> int:
        whole, rest = np.divmod(self.lane_rows, self.batch_size)
        batches = whole if self.drop_last else whole + (rest > 0)
        return int((batches * self.lanes + np.arange(self.lanes)).min())

    def _lane_batches(self, batch: int) -> npt.NDArray[np.int64]:
        """Return how many of the batches [0, batch) belong to each lane: ``[lanes] int64``."""
        return (batch - np.arange(self.lanes, dtype=np.int64) + self.lanes - 1) // self.lanes

    def _lane_positions(self, batch: int) -> npt.NDArray[np.int64]:
        """Return the lane position of each lane after the batches [0, batch): ``[lanes] int64``."""
        if batch < 0 or (self.num_batches is not None and batch > self.num_batches):
            raise IndexError(f"position {batch} / the stage has {self.num_batches} batches")
        positions = self._lane_batches(batch) * self.batch_size
        return positions if self.infinite else np.minimum(positions, self.lane_rows)


def _check_numbers(seed: int, batch_size: int, lanes: int, buffer_rows: int) -> None:
    """Raise ValueError for a number outside its bounds."""
    for name, value, low, high in (
        ("seed", seed, 0, (1 << 64) - 1),
        ("batch_size", batch_size, 1, 1 << 40),
        ("lanes", lanes, 1, MAX_LANES),
        ("buffer_rows", buffer_rows, 0, MAX_BUFFER_ROWS),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} {value} / must be between {low} and {high}")
