"""What a loader has in any phase: its owner, its consumers, its workers, and the loop that hears them all.

The phases are opening (`OpeningPhase`: sources listed, footers read) and serving (`ServingPhase`); each hears what
peers say while it lasts. The loop's turning is `PeerLoop`'s, the care of workers `WorkerCrew`'s, that of consumers
`Audience`'s. The owner's socket closing ends everything in any phase.

A private loader's owner is its one consumer. A served loader's owner only keeps it alive, and hears how it is.
"""

from __future__ import annotations

import contextlib
import selectors
from typing import Any, Protocol

from o41td.coordinator.audience import Audience, Consumer
from o41td.coordinator.figures import LoaderFigures
from o41td.coordinator.peer_loop import PeerLoop
from o41td.coordinator.status_port import StatusPort
from o41td.coordinator.worker_crew import WorkerCrew
from o41td.coordinator.worker_pool import PooledWorker, WorkerPool
from o41td.error_records import error_to_record
from o41td.errors import ConnectError, CoordinatorError
from o41td.job import StreamJob
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import (
    LoaderFailed,
    LoaderJoined,
    LoaderNotice,
    Message,
    OpenLoader,
    StatsReply,
    StatsRequest,
    StorageUsed,
)
from o41td.workers.object_store import StorageSettings
from o41td.workers.supervisor import ChildLog

__all__ = ["LoaderHost", "OwnerGone", "Phase"]

_TICK_S = 0.5
_CLOCK_S = 0.1
_MAX_UNSENT_BYTES = 1 << 26
"""What waits at most for a consumer that does not read, beside four times all the batches announced at once."""


class OwnerGone(Exception):
    """The loader's owner closed its socket, or died."""


class Phase(Protocol):
    """What hears a loader's peers for a while."""

    def take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        """A worker says something, asked for or not."""

    def lose_worker(self, worker: PooledWorker, cause: str, exit_code: int) -> None:
        """A worker is dead; its number wants to be started again."""

    def bear_with(self, worker: PooledWorker) -> None:
        """A worker waits for a store, which is asked again and again: it is not stuck."""

    def take_from_consumer(self, consumer: Consumer, message: Message) -> None:
        """A consumer says something that is not about figures."""

    def welcome(self, consumer: Consumer) -> None:
        """A consumer has come in, and knows what is streamed."""

    def lose_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone."""

    def look(self, *, is_tick: bool) -> None:
        """The loop has turned; now and then it is a tick."""

    def figures_record(self) -> dict[str, Any]:
        """Returns what `status` shows."""


class LoaderHost:
    """A loader's peers, and who hears them."""

    def __init__(self, owner: Channel, pool: WorkerPool, log: ChildLog, request: OpenLoader) -> None:
        """Takes over the owner's channel and the workers; nothing is heard before `enter` and `pump`."""
        self.request = request
        self.job = StreamJob.from_record(request.job)
        self.figures = LoaderFigures()
        self.loop = PeerLoop()
        self.crew = WorkerCrew(pool, self.loop, log, on_message=self._take_from_worker, on_loss=self._lose_worker)
        self.crew.be_patient(self.job.stall_timeout_s)
        self.audience = Audience(
            self.loop,
            ranks=request.ranks,
            max_unsent_bytes=_MAX_UNSENT_BYTES,
            on_message=self._take_from_consumer,
            on_loss=self._lose_consumer,
        )
        self._owner = owner
        self._phase: Phase | None = None
        self._status_port: StatusPort | None = None
        self._ticked_s = 0.0

    @property
    def is_served(self) -> bool:
        """Whether ranks join by name."""
        return self.request.config is not None

    @property
    def phase(self) -> Phase:
        """Who hears."""
        assert self._phase is not None, "nobody hears yet"
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Has `phase` hear from now on."""
        self._phase = phase

    def seat_audience(self) -> None:
        """Makes the owner the one consumer, or lets others in: they may as well wait here until the loader is open.

        Raises:
            CoordinatorError: Nobody could come in.
        """
        if not self.is_served:
            self.audience.join(self.request.ranks[0], self._owner)
            return
        self.loop.watch(self._owner.fileno(), self._hear_owner)
        if not self.open_status_port():
            raise CoordinatorError(
                "a served loader must be found by its name, and no runtime folder is this user's alone",
                advice="Give this user a folder /run/user/UID, or make /tmp/o41td-UID its own, of mode 0700",
            )

    def open_status_port(self) -> bool:
        """Makes the loader findable, when it is open or when opening takes a while; returns whether it is."""
        if self._status_port is None:
            self._status_port = StatusPort(
                self.loop.selector,
                self.request.name,
                self._figures_record,
                on_join=self._admit if self.is_served else None,
                num_ranks=len(self.request.ranks),
            )
        return self._status_port.is_open

    def close_status_port(self) -> None:
        """Lets nobody else in; idempotent."""
        if self._status_port is not None:
            self._status_port.close()

    def let_wait(self, num_bytes: int) -> None:
        """Lets four times what is announced at once wait for a consumer that does not read."""
        self.audience.max_unsent_bytes = _MAX_UNSENT_BYTES + 4 * num_bytes

    def close(self) -> None:
        """Hangs up on everybody but the owner and the workers; idempotent."""
        self.close_status_port()
        self.audience.close()

    # ---- telling ---------------------------------------------------------------------------------------------------

    def tell_owner(self, message: Message) -> None:
        """Sends the owner a message."""
        self.loop.send(self._owner, message)

    def tell_all(self, message: Message, descriptor: int | None = None) -> None:
        """Sends the owner and every consumer a message, the owner once where it is one."""
        self.audience.tell_all(message, descriptor)
        if self.is_served:
            self.loop.send(self._owner, message, descriptor)

    def tell_coming(self, consumer: Consumer) -> None:
        """Tells a served loader's owner that a rank has come."""
        self.tell_owner(LoaderNotice(f"rank {consumer.rank} (pid {consumer.pid}) has come: {self._attendance_text()}"))

    def _attendance_text(self) -> str:
        """How many of the ranks are here: "3 of 8 are here"."""
        return f"{sum(1 for _ in self.audience)} of {len(self.request.ranks)} are here"

    def storage_record(self) -> dict[str, Any]:
        """Returns what a worker needs to reach stores: the user's settings, and its share of the requests in flight."""
        settings = StorageSettings.from_record(self.request.storage)
        share = max(1, settings.max_requests_in_flight // self.job.threads)
        return {**(self.request.storage or {}), "max_requests_in_flight": share}

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Waits for whatever happens next, and has it dealt with."""
        self.loop.turn(_CLOCK_S if self.crew.is_waiting_to_start else _TICK_S)
        is_tick = self.loop.now_s - self._ticked_s >= _CLOCK_S
        if is_tick:
            self._ticked_s = self.loop.now_s
            self.crew.look()
        self.phase.look(is_tick=is_tick)

    def wait_for_owner_to_leave(self) -> None:
        """Sends what is still to be sent, and waits for the owner to hang up.

        Raises:
            OwnerGone: It has.
        """
        while True:
            self.loop.turn(_TICK_S)

    def _hear_owner(self, _fd: int, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self.loop.flush(self._owner)
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in self._owner.receive_available():
                if not isinstance(message, StatsRequest):
                    raise OwnerGone  # not our protocol
                self.tell_owner(StatsReply(message.request_id, self._figures_record()))
        except ChannelClosed as closed:
            raise OwnerGone from closed

    def _figures_record(self) -> dict[str, Any]:
        return self.phase.figures_record()

    def _admit(self, rank: int, channel: Channel) -> None:
        """Lets a trainer in that came to the port, or tells it why not."""
        assert self.request.config is not None
        try:
            consumer = self.audience.join(rank, channel)
        except ConnectError as error:
            channel.queue(LoaderFailed(error_to_record(error)))
            with contextlib.suppress(ChannelClosed):
                channel.flush()
            channel.close()
            return
        self.audience.tell(rank, LoaderJoined(self.request.config, self.request.job, self.request.world_size))
        self.phase.welcome(consumer)

    def _take_from_consumer(self, consumer: Consumer, message: Message) -> None:
        if isinstance(message, StatsRequest):
            self.audience.tell(consumer.rank, StatsReply(message.request_id, self._figures_record()))
        else:
            self.phase.take_from_consumer(consumer, message)

    def _lose_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone: what was claimed for it is not needed any more, until somebody comes for its rank."""
        if consumer.channel is self._owner:
            raise OwnerGone
        why = "was hung up on: it sent what makes no sense, or did not read" if consumer.is_dismissed else "has left"
        words = f"rank {consumer.rank} (pid {consumer.pid}) {why}: {self._attendance_text()}"
        self.tell_owner(LoaderNotice(words))
        self.figures.note_leaving(consumer.rank)
        self.phase.lose_consumer(consumer)

    def _take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        if not isinstance(message, StorageUsed):
            self.phase.take_from_worker(worker, message)
            return
        self.figures.note_storage(worker.number, message)
        if message.waits:
            self.phase.bear_with(worker)

    def _lose_worker(self, worker: PooledWorker, cause: str, exit_code: int) -> None:
        self.tell_owner(LoaderNotice(f"worker {worker.number} (pid {worker.process.pid}) is replaced: {cause}"))
        self.phase.lose_worker(worker, cause, exit_code)

    def kill_unasked(self, worker: PooledWorker, message: Message) -> None:
        """Kills a worker for a message that answers nothing; a damaged one might send anything."""
        self.crew.kill(worker.number, f"it sent {type(message).__name__}, for which it was not asked")
