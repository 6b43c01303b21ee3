"""The coordinator's worker processes: one per worker number, replaced when it dies."""

from __future__ import annotations

from dataclasses import dataclass

from o41td.workers.channel import Channel
from o41td.workers.supervisor import ChildLog, ChildProcess, start_child

__all__ = ["PooledWorker", "WorkerPool"]


@dataclass(slots=True)
class PooledWorker:
    """A live worker: its process and channel, whether it has said that it is ready, and its figures."""

    number: int
    process: ChildProcess
    channel: Channel
    started_s: float
    ready: bool = False
    killed_because: str | None = None
    restarts: int = 0


class WorkerPool:
    """Starts, kills and reaps workers; the server's selector watches their channels and sentinels."""

    def __init__(self, log: ChildLog) -> None:
        """Workers write to `log` what they write to standard error."""
        self._log = log
        self.workers: dict[int, PooledWorker] = {}

    def start(self, number: int, *, now_s: float) -> PooledWorker:
        """Starts worker `number`, which must not be running."""
        before = self.workers.get(number)
        process = start_child("o41td.workers", ["--worker", str(number)], log=self._log)
        worker = PooledWorker(
            number=number,
            process=process,
            channel=Channel(process.connection, blocking=False),
            started_s=now_s,
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
