"""An `Outline`: everything that a config or a checkpoint says of a stream, with its index. Nothing is streamed.

What `plan`, `trace` and `verify` have in common. Footers are read by a coordinator's workers, as at an open.

A stream's global batches are numbered through its stages in the order in which they are taken, which a trainer decides.
So an outline walks them as `o41td run` does: a checkpoint's history, then each stage from the current one on to its
end, for `world_size` ranks. An infinite stage ends the walk: only the trainer knows when it goes on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from o41td.checkpoint import Checkpoint, is_checkpoint_file, refuse_order_version
from o41td.checkpointing import cursor_of
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import Progress
from o41td.cursor import Cursor, Run
from o41td.index import SourceIndex
from o41td.job import StreamJob, job_of
from o41td.opening import refuse_other_config, refuse_other_storage
from o41td.order_lookup import OrderLookup
from o41td.path_argument import path_text
from o41td.service import plan_loader
from o41td.stream_opening import request_of, request_to_resume

__all__ = ["Outline", "read_outline"]

_NO_LIMIT_BYTES = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Outline:
    """A stream on paper.

    Attributes:
        config: What is streamed.
        job: The same, resolved.
        lookup: The orders and the index.
        cursor: Where the stream stands: a checkpoint's cursor, or the beginning.
        world_size: The ranks that take its batches from there on.
        bound: The memory bound's record.
        notices: What the coordinator had to say.
        is_checkpoint: Whether it was read from a checkpoint.
    """

    config: BatchStreamConfig
    job: StreamJob
    lookup: OrderLookup
    cursor: Cursor
    world_size: int
    bound: dict[str, Any]
    notices: tuple[str, ...]
    is_checkpoint: bool

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The stages' names."""
        return tuple(stage.name for stage in self.job.stages)

    @cached_property
    def walk(self) -> Cursor:
        """The cursor at the end of the walk; an infinite stage has no end, and the walk stops where it begins."""
        cursor = self.cursor
        for stage in range(cursor.stage, len(self.job.stages)):
            cursor = cursor.advanced(stage)
            rounds = self.rounds_at(cursor)
            if rounds is None:
                break
            end = self.job.excluded.after(cursor.batches, rounds * self.world_size)
            cursor = cursor.moved(end - cursor.batches)
        return cursor

    @property
    def has_end(self) -> bool:
        """Whether the walk ends."""
        return self.lookup.order(self.walk.stage).num_batches is not None

    def rounds_at(self, cursor: Cursor) -> int | None:
        """Rounds that are left of a cursor's current stage."""
        position = cursor.stage_position(cursor.stage)
        excluded = self.job.excluded.shifted(cursor.batches - position)
        return self.lookup.order(cursor.stage).rounds(position, self.world_size, excluded)

    def global_batch_of(self, stage: int, number: int) -> int | None:
        """Returns the global batch that batch `number` of a stage is on the walk; None if the walk passes it by."""
        batch = self.walk.global_batch_of(stage, number)
        return None if batch is not None and self.has_end and batch >= self.walk.batches else batch

    def stage_run(self, stage: int) -> Run | None:
        """Returns the last run of a stage on the walk."""
        return next((run for run in reversed(self.walk.runs()) if run.stage == stage), None)

    def sources_of(self, stage: int) -> tuple[SourceIndex, ...]:
        """Returns the sources of a stage."""
        return self.lookup.sources[stage]


def read_outline(
    given: BatchStreamConfig | Checkpoint | str | os.PathLike[str],
    *,
    rank: int = 0,
    world_size: int = 1,
    storage: StorageConfig | None = None,
    progress: Progress | None = None,
    whatever_the_memory: bool = True,
) -> Outline:
    """Reads the index of a config or checkpoint, or of a file of either.

    Args:
        given: The config, the checkpoint, or a path.
        rank: Whose memory bound is told.
        world_size: How many ranks there are; the lanes, where neither config nor checkpoint says.
        storage: As for `open_batch_stream`.
        progress: As for `open_batch_stream`.
        whatever_the_memory: Whether a stream that would not fit into this host's memory is none the worse.

    Blocks: until every footer is read.

    Raises:
        O41Error: As `open_batch_stream` and `resume_batch_stream`.
    """
    refuse_other_storage(storage)
    if isinstance(given, str | os.PathLike):
        path = path_text(given)
        given = Checkpoint.load(path) if is_checkpoint_file(path) else BatchStreamConfig.load(path)
    if isinstance(given, Checkpoint):
        refuse_order_version(given)
        config, cursor = BatchStreamConfig.from_document(given.config), cursor_of(given)
        request = request_to_resume(given, config, rank, world_size, storage)
    else:
        refuse_other_config(given)
        config, cursor = given, Cursor()
        request = request_of(job_of(config, lanes=config.lanes or world_size), rank, world_size, storage)
    job = request.job
    if whatever_the_memory:
        request = replace(request, job=replace(job, memory_limit_bytes=_NO_LIMIT_BYTES))
    planned = plan_loader(request, progress=progress)
    return Outline(
        config=config,
        job=job,
        lookup=OrderLookup(job, planned.sources),
        cursor=cursor,
        world_size=world_size,
        bound=planned.bound,
        notices=planned.notices,
        is_checkpoint=isinstance(given, Checkpoint),
    )
