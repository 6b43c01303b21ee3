"""The coordinator's worker processes: one per worker number, replaced when it dies."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import partial

from o41td.workers.channel import Channel
from o41td.workers.forking import can_fork, fork_child
from o41td.workers.process_title import show_arguments
from o41td.workers.supervisor import ChildLog, ChildProcess, start_child
from o41td.workers.working import work

__all__ = ["PooledWorker", "WorkerPool"]


@dataclass(slots=True)
class PooledWorker:
    """A worker: its process and channel, whether it has said that it is ready, and what is expected of it.

    By `deadline_s` it must have given a sign, which is `patience_s` after that was asked of it.
    """

    number: int
    process: ChildProcess
    channel: Channel
    ready: bool = False
    patience_s: float | None = None
    deadline_s: float | None = None
    killed_because: str | None = None
    restarts: int = 0


class WorkerPool:
    """Starts workers and ends them all; the crew watches their channels and sentinels."""

    def __init__(self, log: ChildLog, *, owner_pid: int) -> None:
        """Workers write to `log` what they write to standard error, and watch over the loader's owner."""
        self._log = log
        self._owner_pid = owner_pid
        self.workers: dict[int, PooledWorker] = {}

    def start(self, number: int) -> PooledWorker:
        """Starts worker `number`, which must not be running.

        Raises:
            OSError: The system has no room for one more process or descriptor; everything is as before.
        """
        before = self.workers.get(number)
        process = (self._forked(number) if can_fork() else None) or self._started(number)
        worker = PooledWorker(
            number=number,
            process=process,
            channel=Channel(process.connection, blocking=False),
            restarts=0 if before is None else before.restarts + 1,
        )
        self.workers[number] = worker
        return worker

    def _forked(self, number: int) -> ChildProcess | None:
        """A fork; None where the host promises no memory for a copy of this process, which a program does not want."""
        try:
            return fork_child(partial(_work_as, number, self._owner_pid), log=self._log)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            return None

    def _started(self, number: int) -> ChildProcess:
        return start_child("o41td.workers", ["--worker", str(number), "--owner", str(self._owner_pid)], log=self._log)

    def end_all(self) -> None:
        """Kills and reaps every worker.

        Blocks: until all are dead; SIGKILL takes milliseconds.
        """
        for worker in self.workers.values():
            worker.process.kill()
        for worker in self.workers.values():
            worker.process.wait()
            worker.process.close()
            worker.channel.close()
        self.workers.clear()


def _work_as(number: int, owner_pid: int, descriptor: int) -> int:
    show_arguments("o41td.coordinator", ["o41td.workers", "--socket", str(descriptor), "--worker", str(number)])
    return work(descriptor, owner_pid=owner_pid)
