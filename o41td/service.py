"""Starting a loader: the coordinator process, the conversation that opens it, and the mapping of its arena.

Called by: the training process, from `open_batch_stream` and, after a coordinator's death, from the feed's thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from o41td.errors import CoordinatorError, error_from_record
from o41td.index import SourceIndex
from o41td.job import StreamJob
from o41td.shm.layout import ArenaLayout
from o41td.shm.segment import MappedArena, map_arena
from o41td.workers.channel import Channel, ChannelClosed, NotOurProtocol
from o41td.workers.messages import (
    LoaderFailed,
    LoaderNotice,
    LoaderOpened,
    LoaderPlanned,
    Message,
    OpenLoader,
    OpenProgress,
)
from o41td.workers.supervisor import ChildLog, ChildProcess, describe_exit, reap_orphans, start_child

__all__ = ["Loader", "LoaderRequest", "PlannedLoader", "plan_loader", "start_loader"]

_LOGGER = logging.getLogger("o41td")
Progress = Callable[[int, int], None]
M = TypeVar("M", bound=Message)

_DEATH_S = 5.0
"""How long a coordinator that closed its socket may take to be dead."""
_GOODBYE_S = 1.0
"""How long a coordinator may take to leave when ours is closed. A kill costs no more than a stale entry in the runtime
folder, which the next loader removes: its workers die with it, and the arena is freed with its last user."""
_SILENCE_S = 60.0
"""How long at least a coordinator may be silent while opening; it tells of its progress every half second."""


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

    process: ChildProcess
    channel: Channel
    log: ChildLog
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
        self.channel.close()
        words = _end_process(self.process, self.log)
        self.arena.close()
        return words

    def close_after_fork(self) -> None:
        """Closes this process's copies of the descriptors, in a child that a fork made."""
        self.channel.close()
        self.process.close()
        self.log.close()


def start_loader(request: LoaderRequest, *, progress: Progress | None = None) -> Loader:
    """Starts a loader and waits until it is open.

    Blocks: until every footer is read and the arena is reserved; `progress` hears how far it is.

    Raises:
        O41Error: What the coordinator found wrong with the request, or `CoordinatorError` if it died.
    """
    process, channel, log = _begin(request, plan_only=False)
    try:
        opened = _await(channel, process, log, LoaderOpened, progress, stall_timeout_s=request.job.stall_timeout_s)
        descriptor = channel.take_descriptor()
        try:
            layout = ArenaLayout.from_record(opened.layout)
            arena = map_arena(descriptor, layout, writable=False)
        finally:
            os.close(descriptor)
    except BaseException:
        channel.close()
        _end_process(process, log)
        raise
    return Loader(
        process=process,
        channel=channel,
        log=log,
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
    process, channel, log = _begin(request, plan_only=True)
    try:
        planned = _await(channel, process, log, LoaderPlanned, progress, stall_timeout_s=request.job.stall_timeout_s)
    finally:
        channel.close()
        _end_process(process, log)
    return PlannedLoader(
        sources=tuple(SourceIndex.from_record(record) for record in planned.sources),
        bound=planned.bound,
        notices=tuple(planned.notices),
    )


def _begin(request: LoaderRequest, *, plan_only: bool) -> tuple[ChildProcess, Channel, ChildLog]:
    log = ChildLog()
    try:
        # The number of workers is an argument so that they can start before the coordinator has imported anything.
        process = start_child("o41td.coordinator", ["--workers", str(request.job.threads)], log=log)
    except BaseException:
        log.close()
        raise
    channel = Channel(process.connection, blocking=True)
    try:
        channel.send(
            OpenLoader(
                job=request.job.to_record(),
                storage=request.storage,
                ranks=list(request.ranks),
                world_size=request.world_size,
                known_sources=request.known_sources,
                expected_sources=request.expected_sources,
                plan_only=plan_only,
                name=request.name,
                config=request.config,
            )
        )
    except ChannelClosed:
        channel.close()
        words = _end_process(process, log)
        raise CoordinatorError("the loader's coordinator did not start", log_tail=words) from None
    except BaseException:
        channel.close()
        _end_process(process, log)
        raise
    return process, channel, log


def _await(
    channel: Channel,
    process: ChildProcess,
    log: ChildLog,
    kind: type[M],
    progress: Progress | None,
    *,
    stall_timeout_s: float,
) -> M:
    timeout_s = max(stall_timeout_s, _SILENCE_S)
    while True:
        try:
            message = channel.receive(timeout_s)
        except TimeoutError:
            process.kill()
            raise CoordinatorError(
                f"the loader's coordinator said nothing for {timeout_s:g} s while opening, and was killed",
                log_tail=log.tail(),
                advice="Is it stopped, or the host overloaded? Raise stall_timeout_s if it needs longer",
            ) from None
        except NotOurProtocol as broken:
            process.kill()
            raise CoordinatorError(
                f"the loader's coordinator sent what is no message while opening, and was killed: {broken}",
                log_tail=log.tail(),
                advice="Does something in this environment write to descriptors that it did not open?",
            ) from None
        except ChannelClosed:
            exit_code = process.wait(_DEATH_S)
            raise CoordinatorError(
                f"the loader's coordinator died while opening: {describe_exit(exit_code)}", log_tail=log.tail()
            ) from None
        if isinstance(message, kind):
            return message
        if isinstance(message, LoaderFailed):
            raise error_from_record(message.error)
        if isinstance(message, LoaderNotice):
            _LOGGER.log(logging.WARNING if message.is_warning else logging.INFO, "%s", message.text)
        if isinstance(message, OpenProgress) and progress is not None:
            progress(message.done, message.total)


def _end_process(process: ChildProcess, log: ChildLog) -> str:
    if process.sentinel < 0:
        return ""
    exit_code = process.wait(_GOODBYE_S)
    if exit_code is None:
        process.kill()
        exit_code = process.wait()
    if exit_code:
        reap_orphans()
    words = f"{describe_exit(exit_code)}\n{log.tail()}".strip()
    process.close()
    log.close()
    return words
