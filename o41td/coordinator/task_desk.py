"""Desks: what workers have to find out before a stream opens, which of them does, and what its death over it means.

Two of a kind: the sources whose shards have to be listed in a store, then the footers of all shards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from o41td.coordinator.opening import IndexReading
from o41td.encodings import holds_records
from o41td.error_records import error_from_record
from o41td.errors import CorruptDataError, O41Error, StorageError
from o41td.job import SourceJob
from o41td.listing import is_local
from o41td.source_shards import SourceShards
from o41td.workers.messages import (
    FooterFailed,
    FooterRead,
    Message,
    ReadFooter,
    ResolveFailed,
    ResolveSource,
    SourceResolved,
)

__all__ = ["FooterDesk", "SourceDesk", "TaskDesk"]

_MAX_ATTEMPTS = 3
_REMOTE_AT_ONCE = 32
"""Footers of remote shards that one worker has at once: it asks for all of them side by side."""

T = TypeVar("T", ReadFooter, ResolveSource)


class TaskDesk(ABC, Generic[T]):
    """Hands out tasks; a worker that has several deals with them in the order in which it got them."""

    doing: ClassVar[str]
    """What a worker does that has a task."""

    def __init__(self, tasks: Iterable[T]) -> None:
        """All tasks are open."""
        self._open: deque[tuple[T, int]] = deque((task, 0) for task in tasks)
        self._given: dict[int, deque[tuple[T, int]]] = {}
        self._told_slow: set[int] = set()

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether everything is known, or known not to be had."""

    @abstractmethod
    def take(self, worker: int, answer: Message) -> None:
        """Takes a worker's answer."""

    @abstractmethod
    def _failed(self, task: T, error: O41Error) -> None:
        """A task cannot be done."""

    @abstractmethod
    def _crash_error(self, task: T, cause: str) -> O41Error:
        """The error of a task that ends whoever does it."""

    @abstractmethod
    def _place_of(self, task: T) -> str:
        """What a task is about."""

    def _may_join(self, task: T, others: Iterable[T]) -> bool:  # noqa: ARG002 - footers look at them
        """Whether a worker may have a task beside others."""
        return False

    def newly_slow(self, worker: int, waited_s: float, *, limit_s: float) -> str | None:
        """Returns what a worker has done for longer than the limit, once for each task."""
        given = self._given.get(worker)
        if not given or waited_s < limit_s or given[0][0].task_id in self._told_slow:
            return None
        self._told_slow.add(given[0][0].task_id)
        return f"{self.doing} of {self._place_of(given[0][0])}"

    def awaits(self, worker: int, task_id: int) -> bool:
        """Whether a worker has this task."""
        return any(task.task_id == task_id for task, _attempts in self._given.get(worker, ()))

    def is_busy(self, worker: int) -> bool:
        """Whether a worker has any task."""
        return bool(self._given.get(worker))

    def next_for(self, worker: int) -> T | None:
        """Returns what a worker shall do next, None if nothing is open or it has enough."""
        if not self._open:
            return None
        given = self._given.setdefault(worker, deque())
        if given and not self._may_join(self._open[0][0], (task for task, _attempts in given)):
            return None
        given.append(self._open.popleft())
        return given[-1][0]

    def worker_lost(self, worker: int, cause: str, *, was_slow: bool) -> None:
        """A worker died, or was killed as too slow; what it was at is given to others, then it is to blame."""
        given = self._given.pop(worker, None)
        if not given:
            return
        task, attempts = given.popleft()
        self._open.extendleft(reversed(given))
        if attempts + 1 < _MAX_ATTEMPTS:
            self._open.append((task, attempts + 1))
        elif was_slow:
            advice = "Does its disk, mount or store answer? Raise stall_timeout_s if it needs longer"
            error = StorageError(f"{self.doing} hangs: {cause}", uri=self._place_of(task), advice=advice)
            self._failed(task, error)
        else:
            self._failed(task, self._crash_error(task, cause))

    def _settle(self, worker: int, task_id: int) -> T:
        """Takes a task off a worker's hands."""
        given = self._given[worker]
        place = next(place for place, (task, _attempts) in enumerate(given) if task.task_id == task_id)
        task, _attempts = given[place]
        del given[place]
        return task


class FooterDesk(TaskDesk[ReadFooter]):
    """Hands out the footers of one `IndexReading`."""

    doing = "reading the footer"

    def __init__(self, reading: IndexReading) -> None:
        """All of the reading's tasks are open."""
        super().__init__(reading.tasks())
        self._reading = reading

    @property
    def is_done(self) -> bool:
        """Whether every footer is known, or known to be bad."""
        return self._reading.num_done == self._reading.num_shards

    def take(self, worker: int, answer: Message) -> None:
        """Takes a footer, or why there is none."""
        assert isinstance(answer, FooterRead | FooterFailed)
        task = self._settle(worker, answer.task_id)
        if isinstance(answer, FooterRead):
            self._reading.footer_read(answer)
        else:
            self._failed(task, error_from_record(answer.error))

    def _may_join(self, task: ReadFooter, others: Iterable[ReadFooter]) -> bool:
        every = (task, *others)
        return len(every) <= _REMOTE_AT_ONCE and all(
            not is_local(each.uri) and not holds_records(each.encoding) for each in every
        )

    def _failed(self, task: ReadFooter, error: O41Error) -> None:
        self._reading.footer_failed(task.task_id, error)

    def _crash_error(self, task: ReadFooter, cause: str) -> O41Error:
        if task.chain:
            return CorruptDataError(
                f"running the source's nodes on its first rows ends the process that does it: {cause}",
                source=task.source,
                shard=task.uri,
                advice="Run them by themselves, chain.forward(Span(0, 16)), to see what in them ends a process",
            )
        detail = f"reading the footer ends the process that reads it: {cause}; an encrypted column is a known cause"
        return CorruptDataError(detail, source=task.source, shard=task.uri)

    def _place_of(self, task: ReadFooter) -> str:
        return task.uri


class SourceDesk(TaskDesk[ResolveSource]):
    """Hands out the sources that name something remote."""

    doing = "listing the shards"

    def __init__(self, tasks: Iterable[ResolveSource]) -> None:
        """All are open."""
        listed = list(tasks)
        super().__init__(listed)
        self._num_left = len(listed)
        self._resolved: dict[int, SourceShards] = {}
        self._error: O41Error | None = None

    @property
    def is_done(self) -> bool:
        """Whether every source is resolved, or one cannot be."""
        return self._num_left == 0 or self._error is not None

    def resolved(self) -> dict[int, SourceShards]:
        """Returns the shards of each source by the number of its task.

        Raises:
            O41Error: A source cannot be resolved.
        """
        if self._error is not None:
            raise self._error
        return self._resolved

    def take(self, worker: int, answer: Message) -> None:
        """Takes a source's shards, or why there are none."""
        assert isinstance(answer, SourceResolved | ResolveFailed)
        task = self._settle(worker, answer.task_id)
        if isinstance(answer, ResolveFailed):
            self._failed(task, error_from_record(answer.error))
            return
        self._resolved[task.task_id] = SourceShards.from_record(answer.shards)
        self._num_left -= 1

    def _failed(self, task: ResolveSource, error: O41Error) -> None:  # noqa: ARG002 - the first error is told
        self._error = self._error or error

    def _crash_error(self, task: ResolveSource, cause: str) -> O41Error:
        detail = f"{self.doing} ends the process that does it: {cause}"
        return StorageError(detail, uri=self._place_of(task))

    def _place_of(self, task: ResolveSource) -> str:
        return f"source {SourceJob.from_record(task.source).name!r}"
