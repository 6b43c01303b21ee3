"""Starting a loader: what is asked of its coordinator, and the mapping of its arena.

Called by: the training process, from `open_batch_stream` and, after a coordinator's death, from the feed's thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

from o41td.coordinator_process import CoordinatorProcess, Progress
from o41td.index import SourceIndex
from o41td.job import StreamJob
from o41td.shm.layout import ArenaLayout
from o41td.shm.segment import MappedArena, map_arena
from o41td.workers.channel import Channel
from o41td.workers.messages import LoaderOpened, LoaderPlanned, OpenLoader

__all__ = ["Loader", "LoaderRequest", "PlannedLoader", "plan_loader", "start_loader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRequest:
    """What a loader is asked for; `expected_sources`, `known_sources` and `config` as in `OpenLoader`."""

    job: StreamJob
    ranks: tuple[int, ...]
    world_size: int
    name: str
    storage: dict[str, Any] | None = field(default=None, repr=False)
    known_sources: list[dict[str, Any]] | None = None
    expected_sources: list[dict[str, Any]] | None = None
    config: dict[str, Any] | None = None

    def message(self, *, plan_only: bool) -> OpenLoader:
        """What the coordinator is told."""
        return OpenLoader(
            job=self.job.to_record(),
            storage=self.storage,
            ranks=list(self.ranks),
            world_size=self.world_size,
            known_sources=self.known_sources,
            expected_sources=self.expected_sources,
            plan_only=plan_only,
            name=self.name,
            config=self.config,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLoader:
    """What a loader would be: its index, and its memory bound record."""

    sources: tuple[SourceIndex, ...]
    bound: dict[str, Any]
    notices: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Loader:
    """A running coordinator and this process's mapping of its arena."""

    max_deaths_without_progress: ClassVar[int] = 1

    process: CoordinatorProcess
    arena: MappedArena
    layout: ArenaLayout
    sources: tuple[SourceIndex, ...]
    bound: dict[str, Any]
    notices: tuple[str, ...]

    @property
    def coordinator_pid(self) -> int:
        """The coordinator's process id."""
        return self.process.pid

    @property
    def channel(self) -> Channel:
        """What the coordinator is talked to by."""
        return self.process.channel

    @property
    def is_lost(self) -> bool:
        """Whether our rows in the arena may have been given to others: never, nobody else reads or writes there."""
        return False

    def kill(self) -> None:
        """Kills the coordinator, which is heard of as its death."""
        self.process.kill()

    def end(self) -> str:
        """Ends the coordinator (its workers end with it) and returns how it had ended, with what it wrote to its log.

        Blocks: until the coordinator is dead, a few milliseconds; a stopped one is killed after 1 s. Idempotent.
        """
        words = self.process.end()
        self.arena.close()
        return words

    def close_after_fork(self) -> None:
        """Closes this process's copies of the descriptors, in a child that a fork made."""
        self.process.close_after_fork()


def start_loader(
    request: LoaderRequest, *, progress: Progress | None = None, process: CoordinatorProcess | None = None
) -> Loader:
    """Starts a loader and waits until it is open; `process` is its coordinator, where that is started already.

    Blocks: until every footer is read and the arena is reserved; `progress` hears how far it is.

    Raises:
        O41Error: What the coordinator found wrong with the request, or `CoordinatorError` if it died.
    """
    process = process or CoordinatorProcess(request.job.threads)
    try:
        opened = process.ask(
            request.message(plan_only=False), LoaderOpened, progress, stall_timeout_s=request.job.stall_timeout_s
        )
        descriptor = process.channel.take_descriptor()
        try:
            layout = ArenaLayout.from_record(opened.layout)
            arena = map_arena(descriptor, layout, writable=True)  # batches are lent out of it
        finally:
            os.close(descriptor)
    except BaseException:
        process.end()
        raise
    return Loader(
        process=process,
        arena=arena,
        layout=layout,
        sources=tuple(SourceIndex.from_record(record) for record in opened.sources),
        bound=opened.bound,
        notices=tuple(opened.notices),
    )


def plan_loader(request: LoaderRequest, *, progress: Progress | None = None) -> PlannedLoader:
    """Reads the index and works out what a loader would take, and starts none.

    Blocks: until every footer is read.

    Raises:
        O41Error: As `start_loader`.
    """
    process = CoordinatorProcess(request.job.threads)
    try:
        planned = process.ask(
            request.message(plan_only=True), LoaderPlanned, progress, stall_timeout_s=request.job.stall_timeout_s
        )
    finally:
        process.end()
    return PlannedLoader(
        sources=tuple(SourceIndex.from_record(record) for record in planned.sources),
        bound=planned.bound,
        notices=tuple(planned.notices),
    )
