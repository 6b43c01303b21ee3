"""A stage's mix over time, from the order alone: when sources run out, how long an epoch is, who gives how much when.

Lanes of a stage have the same mix but for a row, so shares over time are taken from one lane, and the end of a source
from as many lanes as `_MOST_LANES`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from o41td.order.shares import CHUNK_ROWS
from o41td.order.stage import StageOrder

__all__ = ["StageShares", "epoch_batches", "last_batch_of", "mix_error_rows", "shares_over", "source_progress"]

_MOST_LANES = 256
_MOST_BINS = 200
_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShares:
    """How much of each stretch of a stage's batches each source gives.

    Attributes:
        edges: Where stretches begin and end, numbers of batches in the stage, ``[bins + 1] float64``.
        shares: Each source's part of a stretch's rows, ``[bins, sources] float64``; a stretch's parts add up to 1.
    """

    edges: NDArray[np.float64]
    shares: NDArray[np.float64]


def last_batch_of(order: StageOrder, source: int) -> int | None:
    """Returns the number of the batch with the source's last row; None if it never runs out, or has no rows."""
    if order.infinite:
        return None
    lanes = np.unique(np.linspace(0, order.lanes - 1, min(order.lanes, _MOST_LANES)).astype(np.int64)).tolist()
    last = None
    for lane in lanes:
        rows = int(order.source_lane_rows[source, lane])
        if rows:
            at = order.lane_mix(lane).position_of(source, rows - 1)
            assert at is not None, "every row of a lane has a place in its mix"
            batch = at // order.batch_size * order.lanes + lane
            last = batch if last is None else max(last, batch)
    return last


def epoch_batches(order: StageOrder, source: int) -> float | None:
    """Returns after how many batches of an infinite stage a source starts over; None in a finite one."""
    if not order.infinite:
        return None
    share = int(order.shares[source]) / _total_share(order)
    num_epochs_at_once = order.lanes if order.lines[source].is_whole else 1
    return order.lines[source].num_rows * num_epochs_at_once / share / order.batch_size


def mix_error_rows(order: StageOrder) -> float:
    """Returns by how many rows, at a batch's end, a source is away from its weighted share of a lane's rows so far.

    Looked at while every source has rows left, at a few dozen batches.
    """
    lane = _fullest_lane(order)
    mix = order.lane_mix(lane)
    segment = mix.plan.segment(0)
    if segment is None:
        return 0.0
    full_rows = None if segment.num_chunks is None else segment.start + segment.num_chunks * CHUNK_ROWS
    most_batches = (1 << 20) if full_rows is None else full_rows // order.batch_size
    active = np.where(order.source_lane_rows[:, lane] > 0, order.shares, 0)
    shares = active / active.sum()
    batches = np.unique(np.geomspace(1, max(1, most_batches), _SAMPLES).astype(np.int64))
    positions = [batch * order.batch_size for batch in batches.tolist() if batch <= most_batches]
    return max((float(np.abs(mix.counts_at(p) - p * shares).max()) for p in positions), default=0.0)


def source_progress(order: StageOrder, position: int) -> list[tuple[int, float] | None]:
    """Returns how far each source is after a stage's batches [0, position): its epoch, and the part of it given.

    In the lane of the batch that is next, from which others are a batch away at most; None for a source without rows
    in that lane.
    """
    lane = position % order.lanes
    taken = position // order.lanes * order.batch_size
    if not order.infinite:
        taken = min(taken, int(order.lane_rows[lane]))
    counts = order.lane_mix(lane).counts_at(taken).tolist()
    progress: list[tuple[int, float] | None] = []
    for count, rows in zip(counts, order.source_lane_rows[:, lane].tolist(), strict=True):
        epoch = count // rows if rows and order.infinite else 0
        progress.append((epoch, count / rows - epoch) if rows else None)
    return progress


def shares_over(order: StageOrder, num_batches: int) -> StageShares:
    """Returns who gives how much over the first `num_batches` batches of a stage."""
    lane = _fullest_lane(order)
    mix = order.lane_mix(lane)
    lane_rows = -(-num_batches // order.lanes) * order.batch_size
    if not order.infinite:
        lane_rows = min(lane_rows, int(order.lane_rows[lane]))
    positions = np.append(np.linspace(0, lane_rows, _MOST_BINS, endpoint=False).astype(np.int64), lane_rows)
    positions[:-1] -= positions[:-1] % CHUNK_ROWS  # where the mix is exact
    positions = np.unique(positions)
    counts = np.array([mix.counts_at(position) for position in positions.tolist()])
    given = np.diff(counts, axis=0)
    return StageShares(
        edges=positions / max(1, lane_rows) * num_batches, shares=given / given.sum(axis=1, keepdims=True)
    )


def _fullest_lane(order: StageOrder) -> int:
    return int(np.argmax(order.lane_rows))


def _total_share(order: StageOrder) -> int:
    """The shares of all sources that have rows."""
    return sum(share for share, line in zip(order.shares.tolist(), order.lines, strict=True) if line.num_rows)
