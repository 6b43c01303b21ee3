"""How large a loader is: rows in a slot, slots, which sources stay resident, and the memory bound. Pure.

Arena slots hold, for the stage that needs most: every open window's live rows, the batch being gathered, the blocks in
flight, and the blocks of resident sources; and never fewer than one batch may lie in, without which no eviction helps.

Resident sources (infinite stages only) take at most half of what the bound leaves under the limit, and at most
`_RESIDENT_CAP_BYTES`, because their pages are reserved before the first batch. Ranks of one host may have a loader
each, so the cap is shared among up to eight. A source that takes no more slots whole than its windows would is always
resident: so is a tiny one, each of whose epochs would be a block of its own.

How many blocks are in flight is ours to say, where the user does not: what is far away comes as fast as its pipe allows
only if many blocks are on their way at once, so remote shards get more, where memory allows.

Ranks that one loader serves share the windows of the lanes that they have in common, and no batch of one may take the
last slots from another's: each has room for its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from o41td.coordinator.blocks import GROUP_BLOCKS
from o41td.coordinator.resident import num_resident_blocks
from o41td.encodings import holds_records
from o41td.errors import MemoryBoundError
from o41td.fields import DTYPES, FieldPlan, field_bytes
from o41td.index import SourceIndex, is_remote_source
from o41td.job import StageJob, StreamJob
from o41td.listing import is_local
from o41td.loader_shape import LoaderShape, block_fill_rows, choose_block_rows, slots_needed
from o41td.memory import MemoryBound, memory_bound
from o41td.memory_costs import (
    CACHE_WORK_BYTES,
    HTTP_WORKER_BYTES,
    MAX_RECORD_FEEDS,
    RECORD_FETCH_BYTES,
    RECORD_READ_AHEAD_BYTES,
    RECORD_VALUES_FACTOR,
    RECORD_WORK_BYTES,
    S3_WORKER_BYTES,
    read_ahead_bytes,
    stream_bytes,
)
from o41td.order_lookup import most_batch_rows
from o41td.shm.layout import ArenaLayout, plan_arena

__all__ = ["LoaderSize", "size_loader"]

_RESIDENT_CAP_BYTES = 1 << 30
_RANKS_OF_A_HOST = 8
_WINDOW_ROWS = 65536
_MAX_WINDOW_BATCHES = 256
_MOST_LENT_SLOTS = 2
_LOOKAHEAD = 2
_REMOTE_BLOCKS_IN_FLIGHT = 16
"""Of all workers. At 50 ms a request and 1 Gbit/s, two workers with 2, 4 and 8 blocks each, by HTTP, of the smaller of
pipe and decoding: lists of 2 048 tokens 0.68, 1.03, 1.17; of 680, padded and masked, 0.37, 0.77, 0.93."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSize:
    """What `size_loader` decided.

    `lookahead` is how many blocks each worker has in flight. `resident[stage]` are the sources of that stage that stay
    decoded; `lent_slots[stage]` is in how many slots batches may lie that are handed out as they lie there.
    """

    layout: ArenaLayout
    bound: MemoryBound
    limit_bytes: int
    lookahead: int
    resident: tuple[frozenset[int], ...]
    window_batches: tuple[int, ...]
    ahead_rows: int
    lent_slots: tuple[int, ...]


def size_loader(
    job: StreamJob,
    sources: Sequence[Sequence[SourceIndex]],
    *,
    world_size: int,
    limit_bytes: int,
    ranks: Sequence[int] = (0,),
    forks: bool = False,
) -> LoaderSize:
    """Decides the size of a loader for `ranks` of `world_size`.

    Args:
        job: What is to be streamed.
        sources: The indexes of each stage's sources.
        world_size: Ranks in all.
        limit_bytes: What the loader may take.
        ranks: Those that it is for.
        forks: Whether workers are forked.

    Raises:
        MemoryBoundError: It cannot be had within `limit_bytes`.
    """
    job = _without_room_for_nothing(job, sources)
    sized = partial(_sized, job, sources, world_size=world_size, limit_bytes=limit_bytes, ranks=ranks, forks=forks)
    if job.lookahead is not None:
        return sized(lookahead=job.lookahead)
    if any(is_remote_source(source) for stage in sources for source in stage):
        with suppress(MemoryBoundError):
            return sized(lookahead=max(_LOOKAHEAD, _REMOTE_BLOCKS_IN_FLIGHT // job.threads))
    return sized(lookahead=_LOOKAHEAD)


def _sized(
    job: StreamJob,
    sources: Sequence[Sequence[SourceIndex]],
    *,
    lookahead: int,
    world_size: int,
    limit_bytes: int,
    ranks: Sequence[int],
    forks: bool,
) -> LoaderSize:
    fields = job.stages[0].sources[0].fields
    row_bytes = sum(field_bytes(field) for field in fields)
    every = [source for stage in sources for source in stage]
    num_groups = math.gcd(world_size, job.lanes)  # of ranks: those of one group read the same lanes
    groups = {rank % num_groups for rank in ranks}
    lanes_served = job.lanes // num_groups * len(groups)
    typical = _typical_unit_rows(every)
    num_windows = lanes_served * max(len(stage) for stage in sources)
    least_batch_size = min(stage.batch_size for stage in job.stages)
    block_rows = job.block_rows or choose_block_rows(row_bytes, typical, num_windows, least_batch_size)
    shape = LoaderShape(
        field_row_bytes=tuple(field_bytes(field) for field in fields),
        block_rows=block_rows,
        fill_rows=block_fill_rows(block_rows, typical),
        window_rows=(),
        threads=job.threads,
        forks=forks,
        lookahead=lookahead,
        batch_size=max(stage.batch_size for stage in job.stages),
        least_batch_size=least_batch_size,
        prefetch_batches=job.prefetch_batches,
        num_ranks=len(ranks),
        ranks_a_window=-(-len(ranks) // len(groups)),
        num_columns=len(fields),
        max_row_group_bytes=job.max_row_group_bytes,
        cache_bytes=CACHE_WORK_BYTES if job.cache_dir is not None else 0,
        held_units=num_windows + 1,
        **_largest_units(every, job.max_row_group_bytes, len(fields), num_windows + 1),
        **_remote_units(every, job.max_row_group_bytes),
        footers_bytes=sum(source.footers_bytes for source in every),
        largest_footer_bytes=max((source.largest_footer_bytes for source in every), default=0),
        num_units=sum(len(source.unit_rows) for source in every),
        num_shards=sum(len(source.shards) for source in every),
        announced_rows=max(_window_batches(job, stage) * stage.batch_size for stage in job.stages),
        buffer_rows=max(stage.buffer_rows for stage in job.stages),
        reach_rows=_most_rows(job, sources),
    )

    def shape_of(stage: int, resident: frozenset[int], extra_slots: int) -> LoaderShape:
        windows = _window_rows(job, job.stages[stage], sources[stage], lanes_served, resident)
        return replace(shape, window_rows=windows, extra_slots=extra_slots)

    def sized(stage: int, resident: frozenset[int], resident_slots: int) -> MemoryBound:
        batch_blocks = _most_blocks_of_batch(job, job.stages[stage], sources[stage], block_rows, resident)
        lacking = max(0, batch_blocks * len(ranks) - shape_of(stage, resident, 0).num_slots)
        return memory_bound(shape_of(stage, resident, resident_slots + lacking))

    def slots_if_not_resident(stage: int, source: SourceIndex) -> tuple[int, int]:
        windows = _window_rows(job, job.stages[stage], [source], lanes_served, frozenset())
        window_slots = slots_needed(windows, block_rows, 0, fill_rows=shape.fill_rows)
        batch_blocks = _most_blocks_of_batch(job, job.stages[stage], [source], block_rows, frozenset())
        return max(window_slots, batch_blocks), window_slots

    resident: list[frozenset[int]] = []
    bounds: list[MemoryBound] = []
    for stage, stage_job in enumerate(job.stages):
        left_bytes = max(0, limit_bytes - memory_bound(shape_of(stage, frozenset(), 0)).total_bytes)
        loaders_beside = -(-min(world_size, _RANKS_OF_A_HOST) // len(ranks))
        cap_bytes = min(_RESIDENT_CAP_BYTES // loaders_beside, left_bytes // 2)
        candidates: list[tuple[frozenset[int], MemoryBound]] = []
        if stage_job.infinite:
            # What a source would take otherwise is free. A batch's blocks may already have room in other windows: if
            # all does not fit with them counted, only the source's own windows are.
            free = list(zip(*(slots_if_not_resident(stage, source) for source in sources[stage]), strict=True))
            for cap_slots, free_slots in product((cap_bytes // max(1, block_rows * row_bytes), 0), free):
                chosen, slots = _resident_sources(sources[stage], block_rows, cap_slots, free_slots)
                candidates.append((chosen, sized(stage, chosen, slots)))
        else:
            candidates.append((frozenset(), sized(stage, frozenset(), 0)))
        fitting = [candidate for candidate in candidates if candidate[1].total_bytes <= limit_bytes]
        chosen, stage_bound = fitting[0] if fitting else min(candidates, key=lambda found: found[1].total_bytes)
        resident.append(chosen)
        bounds.append(stage_bound)
    bound = max(bounds, key=lambda candidate: (candidate.shape.num_slots, candidate.total_bytes))
    bound.check(limit_bytes)
    lent_slots = _slots_to_lend(
        bound.shape.num_slots,
        (_most_blocks_of_batch(job, *stage, block_rows) for stage in zip(job.stages, sources, strict=True)),
    )
    return LoaderSize(
        layout=plan_arena(_regions_of(fields), num_slots=bound.shape.num_slots, block_rows=block_rows),
        bound=bound,
        limit_bytes=limit_bytes,
        lookahead=lookahead,
        resident=tuple(resident),
        window_batches=tuple(_window_batches(job, stage) for stage in job.stages),
        ahead_rows=bound.shape.ahead_rows,
        lent_slots=tuple(0 if of_stage else lent_slots for of_stage in resident),
    )


def _slots_to_lend(num_slots: int, batch_blocks: Iterable[int]) -> int:
    """Returns how many slots batches may hold: of those that every stage can do without, one beside the current one.

    A batch of one stage may be kept while another is streamed.
    """
    return max(0, min(_MOST_LENT_SLOTS, num_slots - max(batch_blocks)))


def _without_room_for_nothing(job: StreamJob, sources: Sequence[Sequence[SourceIndex]]) -> StreamJob:
    """Returns the job with batches no larger than they can become."""
    stages = zip(job.stages, sources, strict=True)
    return replace(
        job,
        stages=tuple(replace(stage, batch_size=most_batch_rows(stage, job.lanes, found)) for stage, found in stages),
    )


def _regions_of(fields: Sequence[FieldPlan]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(field.name, DTYPES[field.dtype], field.shape) for field in fields]


def _window_batches(job: StreamJob, stage: StageJob) -> int:
    """Batches that may be with the consumer ungathered: enough that a message carries many, few enough to be small."""
    return max(job.prefetch_batches + 2, min(_MAX_WINDOW_BATCHES, _WINDOW_ROWS // stage.batch_size))


def _most_rows(job: StreamJob, sources: Sequence[Sequence[SourceIndex]]) -> int | None:
    """Rows of the largest stage, None where one has no end."""
    if any(stage.infinite for stage in job.stages):
        return None
    return max(sum(source.num_rows for source in stage) for stage in sources)


def _largest_units(sources: Sequence[SourceIndex], max_bytes: int, num_columns: int, held_units: int) -> dict[str, int]:
    """Returns what `LoaderShape` wants to know of the largest units; a unit of one row is never streamed."""
    found = {"whole_bytes": 0, "whole_rows": 0, "fetch_bytes": 0, "stream_bytes": 0}
    for source in sources:
        if holds_records(source.encoding):  # read piece by piece, however large the shard is
            record_bytes = int((source.unit_decoded_bytes // np.maximum(source.unit_rows, 1)).max(initial=0))
            work_bytes = RECORD_WORK_BYTES + RECORD_VALUES_FACTOR * record_bytes
            found["whole_bytes"] = max(found["whole_bytes"], work_bytes)
            fetch_bytes = RECORD_FETCH_BYTES
            if is_remote_source(source):
                fetch_bytes += min(held_units, MAX_RECORD_FEEDS) * RECORD_READ_AHEAD_BYTES
            found["fetch_bytes"] = max(found["fetch_bytes"], fetch_bytes)
            continue
        streamed = (source.unit_decoding_bytes > max_bytes) & (source.unit_rows > 1)
        largest = {
            "whole_bytes": source.unit_decoding_bytes[~streamed],
            "whole_rows": source.unit_rows[~streamed],
            "fetch_bytes": source.unit_compressed_bytes[~streamed],
        }
        found |= {name: max(found[name], int(values.max(initial=0))) for name, values in largest.items()}
        decoding, rows = source.unit_decoding_bytes[streamed], source.unit_rows[streamed]
        if len(rows):
            most_bytes = stream_bytes(int(decoding.max()), int((decoding // rows).max()), num_columns)
            most_bytes += read_ahead_bytes(num_columns) if is_remote_source(source) else 0
            found["stream_bytes"] = max(found["stream_bytes"], most_bytes)
    return found


def _remote_units(sources: Sequence[SourceIndex], max_bytes: int) -> dict[str, int]:
    """Returns what `LoaderShape` wants to know of remote units, of which whole blocks are fetched ahead."""
    remote = [source for source in sources if is_remote_source(source)]
    if not remote:
        return {}
    is_http = all(
        shard.uri.startswith("http") for source in remote for shard in source.shards if not is_local(shard.uri)
    )
    found = {
        "remote_worker_bytes": HTTP_WORKER_BYTES if is_http else S3_WORKER_BYTES,
        "remote_unit_bytes": 0,
        "remote_row_bytes": 0,
        "remote_bytes": 0,
    }
    for source in remote:
        if holds_records(source.encoding):
            continue
        whole = (source.unit_decoding_bytes <= max_bytes) | (source.unit_rows == 1)
        compressed, rows = source.unit_compressed_bytes[whole], np.maximum(1, source.unit_rows[whole])
        found["remote_unit_bytes"] = max(found["remote_unit_bytes"], int(compressed.max(initial=0)))
        found["remote_row_bytes"] = max(found["remote_row_bytes"], int((-(-compressed // rows)).max(initial=0)))
        found["remote_bytes"] += int(compressed.sum())
    return found


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
            rows.extend([max(1, min(stage.buffer_rows, _lane_rows(job, stage, source)))] * lanes_served)
    return tuple(rows)


def _lane_rows(job: StreamJob, stage: StageJob, source: SourceIndex) -> int:
    """Rows of a source in the lane that has most; all of it where an infinite stage has more lanes than it has rows."""
    return source.num_rows if stage.infinite and source.num_rows < job.lanes else -(-source.num_rows // job.lanes)


def _resident_sources(
    sources: Sequence[SourceIndex], block_rows: int, max_slots: int, free_slots: Sequence[int]
) -> tuple[frozenset[int], int]:
    """Returns the sources that stay decoded, smallest first as long as they fit into `max_slots`, and their slots.

    A source that needs no more than its `free_slots` does not count against `max_slots`.
    """
    chosen: set[int] = set()
    slots = counted = 0
    for number in sorted(range(len(sources)), key=lambda number: sources[number].num_rows):
        source = sources[number]
        most = max(max_slots - counted, free_slots[number])
        if not source.num_rows or source.num_rows > most * block_rows:
            continue
        needed = num_resident_blocks(source.unit_rows, block_rows)
        if needed <= most:
            chosen.add(number)
            slots += needed
            counted += needed if needed > free_slots[number] else 0
    return frozenset(chosen), slots


def _most_blocks_of_batch(
    job: StreamJob,
    stage: StageJob,
    sources: Sequence[SourceIndex],
    block_rows: int,
    resident: frozenset[int] = frozenset(),
) -> int:
    """Returns in how many blocks of sources that are not resident the rows of one batch may lie.

    Rows of a source that leave the shuffle one after the other span R rows of the line, and about as many as they are:
    keys are as dense as rows. Twice as many, and 64, are allowed for.
    """
    spread = beside = 0
    for number, source in enumerate(sources):
        if number not in resident and source.num_rows:
            lane_rows = _lane_rows(job, stage, source)
            stretch = min(GROUP_BLOCKS * block_rows, lane_rows) if stage.infinite else GROUP_BLOCKS * block_rows
            reach = min(stage.buffer_rows + 64, lane_rows) if stage.buffer_rows > 1 else 1
            usual, unusual = _usual_unit(source)
            more = 2 * stage.batch_size
            spread += _most_blocks_of_span(reach, source.num_rows, usual, unusual, block_rows) + reach // stretch
            beside_here = _most_blocks_of_span(more, source.num_rows, usual, unusual, block_rows) + more // stretch
            beside = max(beside, beside_here)
    return min(stage.batch_size, spread + beside)


def _usual_unit(source: SourceIndex) -> tuple[int, int]:
    """Returns the rows of the units that most rows lie in, and how many units have another number of rows."""
    sizes, counts = np.unique(source.unit_rows[source.unit_rows > 0], return_counts=True)
    usual = int(np.argmax(sizes * counts))
    return int(sizes[usual]), int(counts.sum() - counts[usual])


def _most_blocks_of_span(span_rows: int, rows: int, usual_rows: int, unusual: int, block_rows: int) -> int:
    """Returns how many blocks `span_rows` rows of a stretch of a line may touch, of a source of `rows` rows.

    Two neighbours hold more than a block's rows. Units of the usual size fill blocks as well as they can; each other
    one may cost a block more. Of those three times their share, and one, are allowed for.
    """
    met = min(unusual, 3 * span_rows * unusual // rows + 1)
    filled = -(-span_rows // block_fill_rows(block_rows, usual_rows)) + met
    return min(filled, 2 * span_rows // (block_rows + 1) + 1) + 1
