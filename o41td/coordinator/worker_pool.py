"""The coordinator's worker processes: one per worker number, replaced when it dies."""

from __future__ import annotations

from dataclasses import dataclass

from o41td.workers.channel import Channel
from o41td.workers.supervisor import ChildLog, ChildProcess, start_child

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
        process = start_child(
            "o41td.workers", ["--worker", str(number), "--owner", str(self._owner_pid)], log=self._log
        )
        worker = PooledWorker(
            number=number,
            process=process,
            channel=Channel(process.connection, blocking=False),
            restarts=0 if before is None else before.restarts + 1,
        )
        self.workers[number] = worker
        return worker

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
