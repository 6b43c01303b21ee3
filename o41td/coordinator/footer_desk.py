"""The footer desk: which footers are still to be read, by which worker, and what a worker's death over one means."""

from __future__ import annotations

from collections import deque

from o41td.coordinator.opening import IndexReading
from o41td.errors import CorruptDataError, O41Error, StorageError, error_from_record
from o41td.workers.messages import FooterFailed, FooterRead, ReadFooter

__all__ = ["FooterDesk"]

_MAX_ATTEMPTS = 3


class FooterDesk:
    """Hands out the footers of one `IndexReading`, one at a time to a worker."""

    def __init__(self, reading: IndexReading) -> None:
        """All of the reading's tasks are open."""
        self._reading = reading
        self._open = deque((task, 0) for task in reading.tasks())
        self._given: dict[int, tuple[ReadFooter, int]] = {}
        self._told_slow: set[int] = set()

    @property
    def is_done(self) -> bool:
        """Whether every footer is known, or known to be bad."""
        return self._reading.num_done == self._reading.num_shards

    def newly_slow(self, worker: int, waited_s: float, *, limit_s: float) -> ReadFooter | None:
        """Returns the footer that a worker has had for longer than the limit, once for each footer."""
        given = self._given.get(worker)
        if given is None or waited_s < limit_s or given[0].task_id in self._told_slow:
            return None
        self._told_slow.add(given[0].task_id)
        return given[0]

    def awaits(self, worker: int, task_id: int) -> bool:
        """Whether a worker has this footer to read."""
        return worker in self._given and self._given[worker][0].task_id == task_id

    def next_for(self, worker: int) -> ReadFooter | None:
        """Returns what an idle worker shall read, None if nothing is open."""
        if not self._open or worker in self._given:
            return None
        self._given[worker] = self._open.popleft()
        return self._given[worker][0]

    def take(self, worker: int, answer: FooterRead | FooterFailed) -> None:
        """Takes a worker's answer."""
        self._given.pop(worker, None)
        if isinstance(answer, FooterRead):
            self._reading.footer_read(answer)
        else:
            self._reading.footer_failed(answer.task_id, error_from_record(answer.error))

    def worker_lost(self, worker: int, cause: str, *, was_slow: bool) -> None:
        """A worker died, or was killed as too slow; its footer is given to others, then it is to blame."""
        given = self._given.pop(worker, None)
        if given is None:
            return
        task, attempts = given
        if attempts + 1 < _MAX_ATTEMPTS:
            self._open.append((task, attempts + 1))
            return
        self._reading.footer_failed(task.task_id, _error_of(task, cause, was_slow=was_slow))


def _error_of(task: ReadFooter, cause: str, *, was_slow: bool) -> O41Error:
    if was_slow:
        advice = "Does its disk or mount answer? Raise stall_timeout_s if it needs longer"
        return StorageError(f"reading the footer hangs: {cause}", uri=task.uri, advice=advice)
    detail = f"reading the footer ends the process that reads it: {cause}; an encrypted column is a known cause"
    return CorruptDataError(detail, source=task.source, shard=task.uri)
