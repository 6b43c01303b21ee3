"""How large a loader is: rows in a slot, slots, which sources stay resident, and the memory bound. Pure.

Arena slots hold, for the stage that needs most: every open window's live rows, the batch being gathered, the blocks in
flight, and the blocks of resident sources. Resident sources (infinite stages only) take at most half of what the bound
leaves under the limit, and at most `_RESIDENT_CAP_BYTES`, because their pages are reserved before the first batch.
Ranks of one host have a loader each, so the cap is shared among up to eight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from o41td.coordinator.resident import resident_blocks_of
from o41td.fields import NUMPY_DTYPES, FieldPlan, field_bytes
from o41td.index import SourceIndex
from o41td.job import StageJob, StreamJob
from o41td.memory import LoaderShape, MemoryBound, block_fill_rows, choose_block_rows, memory_bound
from o41td.order.stage import StageOrder
from o41td.shm.layout import ArenaLayout, plan_arena

__all__ = ["LoaderSize", "order_of", "size_loader"]

_RESIDENT_CAP_BYTES = 1 << 30
_RANKS_OF_A_HOST = 8
_WINDOW_ROWS = 16384
_MAX_WINDOW_BATCHES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSize:
    """What `size_loader` decided. `resident[stage]` are the sources of that stage that stay decoded."""

    layout: ArenaLayout
    bound: MemoryBound
    resident: tuple[frozenset[int], ...]
    window_batches: tuple[int, ...]
    ahead_rows: int


def order_of(job: StreamJob, stage: int, sources: Sequence[SourceIndex]) -> StageOrder:
    """Returns the order of a stage of the job over its sources' units."""
    stage_job = job.stages[stage]
    return StageOrder(
        seed=job.seed,
        stage_index=stage,
        unit_rows=[source.unit_rows for source in sources],
        weights=[source.weight for source in stage_job.sources],
        batch_size=stage_job.batch_size,
        buffer_rows=stage_job.buffer_rows,
        infinite=stage_job.infinite,
        drop_last=stage_job.drop_last,
        lanes=job.lanes,
    )


def size_loader(
    job: StreamJob, sources: Sequence[Sequence[SourceIndex]], *, world_size: int, limit_bytes: int
) -> LoaderSize:
    """Decides the size of a loader for one rank of `world_size`; `sources[stage]` are the indexes of a stage's sources.

    Raises:
        MemoryBoundError: It cannot be had within `limit_bytes`.
    """
    fields = job.stages[0].sources[0].fields
    row_bytes = sum(field_bytes(field) for field in fields)
    every = [source for stage in sources for source in stage]
    lanes_served = job.lanes // math.gcd(world_size, job.lanes)
    typical = _typical_unit_rows(every)
    num_windows = lanes_served * max(len(stage) for stage in sources)
    block_rows = job.block_rows or choose_block_rows(row_bytes, typical, num_windows)
    shape = LoaderShape(
        field_row_bytes=tuple(field_bytes(field) for field in fields),
        block_rows=block_rows,
        fill_rows=block_fill_rows(block_rows, typical),
        window_rows=(),
        threads=job.threads,
        lookahead=job.lookahead,
        batch_size=max(stage.batch_size for stage in job.stages),
        prefetch_batches=job.prefetch_batches,
        unit_bytes=max((int(s.unit_decoded_bytes.max(initial=0)) for s in every), default=0),
        fetch_bytes=max((int(s.unit_compressed_bytes.max(initial=0)) for s in every), default=0),
        max_row_group_bytes=job.max_row_group_bytes,
        num_units=sum(len(source.unit_rows) for source in every),
    )

    def shape_of(stage: int, resident: frozenset[int], extra_slots: int) -> LoaderShape:
        windows = _window_rows(job, job.stages[stage], sources[stage], lanes_served, resident)
        return replace(shape, window_rows=windows, extra_slots=extra_slots)

    resident: list[frozenset[int]] = []
    bounds: list[MemoryBound] = []
    for stage, stage_job in enumerate(job.stages):
        without = memory_bound(shape_of(stage, frozenset(), 0))
        cap = min(
            _RESIDENT_CAP_BYTES // min(world_size, _RANKS_OF_A_HOST), max(0, limit_bytes - without.total_bytes) // 2
        )
        chosen, slots = _resident_sources(stage_job, sources[stage], block_rows, cap // max(1, block_rows * row_bytes))
        resident.append(chosen)
        bounds.append(memory_bound(shape_of(stage, chosen, slots)))
    bound = max(bounds, key=lambda candidate: (candidate.shape.num_slots, candidate.total_bytes))
    bound.check(limit_bytes)
    return LoaderSize(
        layout=plan_arena(_regions_of(fields), num_slots=bound.shape.num_slots, block_rows=block_rows),
        bound=bound,
        resident=tuple(resident),
        window_batches=tuple(_window_batches(job, stage) for stage in job.stages),
        ahead_rows=(job.threads * job.lookahead + 2) * block_rows + max(s.buffer_rows for s in job.stages),
    )


def _regions_of(fields: Sequence[FieldPlan]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(field.name, NUMPY_DTYPES[field.dtype].str, field.shape) for field in fields]


def _window_batches(job: StreamJob, stage: StageJob) -> int:
    """Batches that may be with the consumer ungathered: enough that a message carries many, few enough to stay small."""
    return max(job.prefetch_batches + 2, min(_MAX_WINDOW_BATCHES, _WINDOW_ROWS // stage.batch_size))


def _typical_unit_rows(sources: Sequence[SourceIndex]) -> int:
    """Returns the median unit, by rows: half of all rows lie in units of at most so many rows."""
    rows = np.sort(np.concatenate([np.empty(0, np.int64), *[source.unit_rows for source in sources]]))
    rows = rows[rows > 0]
    if not len(rows):
        return 0
    return int(rows[np.searchsorted(np.cumsum(rows), rows.sum() / 2)])


def _window_rows(
    job: StreamJob, stage: StageJob, sources: Sequence[SourceIndex], lanes_served: int, resident: frozenset[int]
) -> tuple[int, ...]:
    """Live rows of each (lane, source) window: the shuffle's buffer, or one row; never more than the lane has."""
    rows = []
    for number, source in enumerate(sources):
        if number not in resident and source.num_rows:
            lane_rows = -(-source.num_rows // job.lanes)
            rows.extend([max(1, min(stage.buffer_rows or 1, lane_rows))] * lanes_served)
    return tuple(rows)


def _resident_sources(
    stage: StageJob, sources: Sequence[SourceIndex], block_rows: int, max_slots: int
) -> tuple[frozenset[int], int]:
    """Returns the sources that stay decoded, smallest first as long as they fit into `max_slots`, and their slots."""
    if not stage.infinite:
        return frozenset(), 0
    chosen: set[int] = set()
    slots = 0
    for number in sorted(range(len(sources)), key=lambda number: sources[number].num_rows):
        source = sources[number]
        if not source.num_rows or source.num_rows > (max_slots - slots) * block_rows:
            continue
        needed = len(resident_blocks_of(source.unit_rows, block_rows))
        if slots + needed <= max_slots:
            chosen.add(number)
            slots += needed
    return frozenset(chosen), slots
