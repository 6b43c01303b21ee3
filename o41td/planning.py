"""`plan`: what a stream will be, from row counts alone. Footers are read, rows are not, and no loader is started."""

from __future__ import annotations

from typing import Any

from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import Progress
from o41td.curriculum import epoch_batches, last_batch_of, mix_error_rows
from o41td.exclusions import NOTHING_EXCLUDED
from o41td.index import SourceIndex
from o41td.order.stage import StageOrder
from o41td.outline import Outline, read_outline
from o41td.rank_info import check_rank

__all__ = ["plan", "plan_of"]


def plan(
    config: BatchStreamConfig,
    rank: int = 0,
    world_size: int = 1,
    storage: StorageConfig | None = None,
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns what `o41td plan --json` prints: stages with steps, rows and dropped rows, sources, the memory bound.

    Args:
        config: The stream.
        rank: Whose dropped rows are told.
        world_size: How many ranks share the stream.
        storage: As for `open_batch_stream`.
        progress: As for `open_batch_stream`.

    Blocks: until every footer is read.

    Raises:
        O41Error: As `open_batch_stream`; a plan succeeds where an open would, but for shared memory.
    """
    rank, world_size = check_rank(rank, world_size)
    outline = read_outline(
        config, rank=rank, world_size=world_size, storage=storage, progress=progress, whatever_the_memory=False
    )
    return plan_of(outline, rank)


def plan_of(outline: Outline, rank: int) -> dict[str, Any]:
    """Returns the plan of an outline whose stream is at its beginning."""
    return {
        "rank": rank,
        "world_size": outline.world_size,
        "lanes": outline.job.lanes,
        "seed": outline.job.seed,
        "exclude": [list(excluded) for excluded in outline.job.excluded.ranges],
        "steps": _steps(outline),
        "stages": [_stage_plan(outline, stage, rank) for stage in range(len(outline.job.stages))],
        "memory": {key: outline.bound[key] for key in ("bound_bytes", "limit_bytes", "terms")},
        "memory_table": outline.bound["table"],
        "notices": list(outline.notices),
    }


def _steps(outline: Outline) -> int | None:
    """Steps of each rank over all stages, None if there is no end."""
    if not outline.has_end:
        return None
    end = outline.walk.batches
    return (end - outline.job.excluded.count(0, end)) // outline.world_size


def _stage_plan(outline: Outline, stage: int, rank: int) -> dict[str, Any]:
    job, order, world_size = outline.job.stages[stage], outline.lookup.order(stage), outline.world_size
    run = outline.stage_run(stage)
    first_batch = None if run is None else run.global_batch - run.position
    excluded = NOTHING_EXCLUDED if first_batch is None else outline.job.excluded.shifted(first_batch)
    rounds = order.rounds(0, world_size, excluded)
    batches = order.num_batches
    dropped_all = None
    if rounds is not None and batches is not None:
        end = excluded.after(0, rounds * world_size)
        delivered = order.rows_before(end) - order.excluded_rows(0, end, excluded)
        dropped_all = order.total_rows - delivered - order.excluded_rows(0, batches, excluded)
    total_weight = sum(source.weight for source in job.sources)
    sources = outline.sources_of(stage)
    return {
        "name": job.name,
        "batch_size": job.batch_size,
        "shuffle_buffer_rows": job.buffer_rows,
        "infinite": job.infinite,
        "drop_last": job.drop_last,
        "first_batch": first_batch,
        "rows": order.total_rows,
        "batches": batches,
        "excluded_batches": None if batches is None else excluded.count(0, batches),
        "steps_per_rank": rounds,
        "dropped_rows": order.dropped_rows(0, rank, world_size, excluded),
        "dropped_rows_all_ranks": dropped_all,
        "mix_error_rows": round(mix_error_rows(order), 3),
        "sources": [_source_plan(outline, order, source, total_weight) for source in sources],
    }


def _source_plan(outline: Outline, order: StageOrder, source: SourceIndex, total_weight: float) -> dict[str, Any]:
    job = outline.job.stages[source.stage].sources[source.source]
    columns = {field.source for field in job.fields}
    epoch = epoch_batches(order, source.source)
    return {
        "name": source.name,
        "weight": job.weight,
        "share": job.weight / total_weight,
        "share_of_rows": source.num_rows / order.total_rows,
        "shards": len(source.shards),
        "row_groups": len(source.unit_rows),
        "rows": source.num_rows,
        "epochs": None if order.infinite else 1,
        "epoch_batches": None if epoch is None else round(epoch, 2),
        "last_batch": last_batch_of(order, source.source),
        "requests": len(source.shards) + len(source.unit_rows) * len(columns),
        "stored_bytes": int(source.unit_compressed_bytes.sum()),
        "decoded_bytes": int(source.unit_decoded_bytes.sum()),
    }
