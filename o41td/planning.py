"""`plan`: what a stream will be, from row counts alone. Footers are read, rows are not, and no loader is started."""

from __future__ import annotations

import os
from typing import Any

from o41td.config import BatchStreamConfig, StorageConfig
from o41td.index import SourceIndex
from o41td.job import StageJob, job_of
from o41td.order.stage import StageOrder
from o41td.order_lookup import order_of
from o41td.rank_info import check_rank
from o41td.service import LoaderRequest, Progress, plan_loader

__all__ = ["plan"]


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
    job = job_of(config, lanes=config.lanes or world_size)
    planned = plan_loader(
        LoaderRequest(
            job=job,
            rank=rank,
            world_size=world_size,
            name=f"plan-{os.getpid()}",
            storage=None if storage is None else storage.secret_record(),
        ),
        progress=progress,
    )
    stages = []
    for number, stage in enumerate(job.stages):
        sources = [source for source in planned.sources if source.stage == number]
        stages.append(_stage_plan(stage, order_of(job, number, sources), sources, rank, world_size))
    return {
        "rank": rank,
        "world_size": world_size,
        "lanes": job.lanes,
        "seed": job.seed,
        "stages": stages,
        "memory": {key: planned.bound[key] for key in ("bound_bytes", "limit_bytes", "terms")},
        "memory_table": planned.bound["table"],
        "notices": list(planned.notices),
    }


def _stage_plan(
    stage: StageJob, order: StageOrder, sources: list[SourceIndex], rank: int, world_size: int
) -> dict[str, Any]:
    rounds = order.rounds(0, world_size)
    total_weight = sum(source.weight for source in stage.sources)
    return {
        "name": stage.name,
        "batch_size": stage.batch_size,
        "shuffle_buffer_rows": stage.buffer_rows,
        "infinite": stage.infinite,
        "drop_last": stage.drop_last,
        "rows": order.total_rows,
        "batches": order.num_batches,
        "steps_per_rank": rounds,
        "dropped_rows": order.dropped_rows(0, rank, world_size),
        "dropped_rows_all_ranks": None if rounds is None else order.total_rows - order.rows_before(rounds * world_size),
        "sources": [
            {
                "name": source.name,
                "weight": stage.sources[source.source].weight,
                "share": stage.sources[source.source].weight / total_weight,
                "shards": len(source.shards),
                "row_groups": len(source.unit_rows),
                "rows": source.num_rows,
                "stored_bytes": int(source.unit_compressed_bytes.sum()),
                "decoded_bytes": int(source.unit_decoded_bytes.sum()),
            }
            for source in sources
        ],
    }
