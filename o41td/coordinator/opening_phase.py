"""The first phase of a loader: workers list what lies in stores and read footers, until the index is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgpack

from o41td.coordinator.audience import Consumer
from o41td.coordinator.figures import opening_record
from o41td.coordinator.host import LoaderHost
from o41td.coordinator.opening import IndexReading
from o41td.coordinator.task_desk import FooterDesk, SourceDesk
from o41td.coordinator.worker_pool import PooledWorker
from o41td.index import SourceIndex
from o41td.source_shards import ManifestShelf, SourceShards
from o41td.workers.messages import (
    BatchesGathered,
    CountGoesOn,
    FooterFailed,
    FooterRead,
    LoaderNotice,
    Message,
    OpenProgress,
    ResolveFailed,
    ResolveSource,
    SourceResolved,
    WorkerReady,
)

__all__ = ["OpeningPhase"]

_PROGRESS_EVERY_S = 0.1
_SLOW_FOOTER_S = 10.0


class OpeningPhase:
    """Has the index of a loader's sources made by its workers."""

    def __init__(self, host: LoaderHost) -> None:
        """Nothing happens before `index`."""
        self._host = host
        self._desk: FooterDesk | SourceDesk | None = None
        self._footers = (0, 0)  # read, of how many
        self._told_s = 0.0

    def index(self) -> list[SourceIndex]:
        """Returns the index of every source, in the order of stages and sources; that which is known as it is.

        Raises:
            OwnerGone: Nobody wants it any more.
            O41Error: A source cannot be had.
        """
        if self._host.request.known_sources is not None:
            return [SourceIndex.from_record(record) for record in self._host.request.known_sources]
        return _laid_down_anew(self._read_index())

    def _read_index(self) -> list[SourceIndex]:
        reading = IndexReading(
            self._host.job,
            storage=self._host.storage_record(),
            expected=self._host.request.expected_sources,
            resolved=self._resolve_remote_sources(),
            on_look_up=self._tell,
        )
        self._work_off(FooterDesk(reading), lambda: self._tell(reading.num_done, reading.num_shards))
        return reading.finish()

    def _resolve_remote_sources(self) -> dict[tuple[int, int], SourceShards]:
        """Returns the shards of every source that names something remote, listed by workers."""
        shelf = ManifestShelf()
        remote = [
            (stage, number, source)
            for stage, stage_job in enumerate(self._host.job.stages)
            for number, source in enumerate(stage_job.sources)
            if shelf.needs_store(source)
        ]
        if not remote:
            return {}
        desk = SourceDesk(
            ResolveSource(task_id, source.to_record(), self._host.storage_record())
            for task_id, (_stage, _number, source) in enumerate(remote)
        )
        self._work_off(desk, lambda: self._tell(0, 0))
        return {remote[task_id][:2]: shards for task_id, shards in desk.resolved().items()}

    def _work_off(self, desk: FooterDesk | SourceDesk, tell: Callable[[], None]) -> None:
        """Has workers do all that lies on a desk; `tell` tells how far it is."""
        self._desk = desk
        self._give_tasks(desk)
        began_s = time.monotonic()
        while not desk.is_done:
            self._host.pump()
            self._tell_slow_tasks(desk)
            tell()
            if time.monotonic() - began_s > _PROGRESS_EVERY_S and not self._host.request.plan_only:
                self._host.open_status_port()
        self._desk = None

    def _tell(self, num_known: int, num_shards: int) -> None:
        """Tells how many shards are known, if it is time to."""
        now_s = time.monotonic()
        if now_s - self._told_s > _PROGRESS_EVERY_S:
            self._told_s = now_s
            self._footers = num_known, num_shards
            self._host.tell_all(OpenProgress(*self._footers))
            self._host.loop.turn(0)  # the owner may be gone

    def _tell_slow_tasks(self, desk: FooterDesk | SourceDesk) -> None:
        for worker, waited_s in self._host.crew.waits():
            limit_s = min(_SLOW_FOOTER_S, self._host.job.stall_timeout_s / 2)
            doing = desk.newly_slow(worker, waited_s, limit_s=limit_s)
            if doing is not None:
                words = f"worker {worker} has been {doing} for {waited_s:.1f} s"
                if self._host.figures.last_storage_error:
                    words += f"; the last that a store said: {self._host.figures.last_storage_error}"
                self._host.tell_all(LoaderNotice(f"opening waits: {words}", is_warning=True))

    def _give_tasks(self, desk: FooterDesk | SourceDesk) -> None:
        """Gives every worker one task more, again and again until none may have another."""
        given = True
        while given:
            given = False
            for worker in self._host.crew.workers:
                task = desk.next_for(worker.number) if worker.ready else None
                if task is not None:
                    if not worker.deadline_s:
                        self._host.crew.expect(worker.number, self._host.job.stall_timeout_s)
                    self._host.crew.give(worker.number, task)
                    given = True

    # ---- what is heard ---------------------------------------------------------------------------------------------

    def take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        """Gives a worker that is ready its tasks, and takes what it found out."""
        desk = self._desk
        match message:
            case WorkerReady():
                if desk is not None:
                    self._give_tasks(desk)
            case CountGoesOn() if isinstance(desk, FooterDesk) and desk.awaits(worker.number, message.task_id):
                self._host.crew.expect(worker.number, self._host.job.stall_timeout_s)
            case FooterRead() | FooterFailed() if isinstance(desk, FooterDesk) and desk.awaits(
                worker.number, message.task_id
            ):
                self._settle(desk, worker, message)
            case SourceResolved() | ResolveFailed() if isinstance(desk, SourceDesk) and desk.awaits(
                worker.number, message.task_id
            ):
                self._settle(desk, worker, message)
            case _:
                self._host.kill_unasked(worker, message)

    def _settle(self, desk: FooterDesk | SourceDesk, worker: PooledWorker, answer: Message) -> None:
        desk.take(worker.number, answer)
        is_busy = desk.is_busy(worker.number)
        self._host.crew.expect(worker.number, self._host.job.stall_timeout_s if is_busy else None)
        self._give_tasks(desk)

    def lose_worker(self, worker: PooledWorker, cause: str, exit_code: int) -> None:  # noqa: ARG002 - of its phase
        """Has another one do what it was at."""
        if self._desk is not None:
            self._desk.worker_lost(worker.number, cause, was_slow=worker.killed_because is not None)
        self._host.crew.start(worker.number)
        if self._desk is not None:
            self._give_tasks(self._desk)

    def bear_with(self, worker: PooledWorker) -> None:
        """Gives a worker that waits for a store as much time again."""
        if self._desk is not None and self._desk.is_busy(worker.number):
            self._host.crew.expect(worker.number, self._host.job.stall_timeout_s)

    def take_from_consumer(self, consumer: Consumer, message: Message) -> None:
        """There is nothing yet to ask for; of what another coordinator sent it, a consumer may still speak."""
        if not isinstance(message, BatchesGathered):
            self._host.audience.dismiss(consumer)

    def welcome(self, consumer: Consumer) -> None:
        """It waits until the loader is open."""

    def lose_consumer(self, consumer: Consumer) -> None:
        """Nothing was claimed for it."""

    def look(self, *, is_tick: bool) -> None:
        """What is slow is told where the work is waited for."""

    def figures_record(self) -> dict[str, Any]:
        """Returns how far the reading is."""
        return opening_record(self._host.request.name, list(self._host.crew.workers), self._footers)


def _laid_down_anew(sources: list[SourceIndex]) -> list[SourceIndex]:
    """Returns the same sources, side by side in memory; takes them out of the list.

    They were made among what is needed to open each shard, several times as much, and would keep nearly all of that
    memory from going back to the system.
    """
    packed = [bytes(msgpack.packb(source.to_record(), unicode_errors="surrogateescape")) for source in sources]
    sources.clear()
    return [SourceIndex.from_record(msgpack.unpackb(record, unicode_errors="surrogateescape")) for record in packed]
