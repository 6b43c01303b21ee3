"""The coordinator's care of its workers: each number is manned, whoever dies, stalls or cannot be started.

A worker that dies while it starts is started anew at once the first time, and after growing pauses then: what kills
workers at their start (a host out of memory, a broken install) is not helped by starting them as fast as one can.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Collection, Iterator

from o41td.coordinator.patience import StartFailures
from o41td.coordinator.peer_loop import PeerLoop
from o41td.coordinator.worker_pool import PooledWorker, WorkerPool
from o41td.errors import CoordinatorError
from o41td.workers.channel import ChannelClosed, NotOurProtocol
from o41td.workers.messages import BlockDecoded, BlockFailed, FooterFailed, FooterRead, Message, WorkerReady
from o41td.workers.supervisor import ChildLog, describe_exit

__all__ = ["WorkerCrew"]

_START_PATIENCE_S = 60.0
_RETRY_S = 0.5
"""How soon to try again after the system had no room for another process."""
_PROGRESS = (BlockDecoded, BlockFailed, FooterRead, FooterFailed)


class WorkerCrew:
    """Hears, kills, reaps and starts workers; what they say and that they died goes to whoever leads them.

    `on_message(worker, message)` is called for each message, `on_loss(worker, cause, exit_code)` once for each death,
    behind the dead worker's last message; whoever hears of a loss has to `start` the number again.
    """

    def __init__(
        self,
        pool: WorkerPool,
        loop: PeerLoop,
        log: ChildLog,
        *,
        on_message: Callable[[PooledWorker, Message], None],
        on_loss: Callable[[PooledWorker, str, int], None],
    ) -> None:
        """Takes over the pool's workers, which are starting."""
        self._pool = pool
        self._loop = loop
        self._log = log
        self._on_message = on_message
        self._on_loss = on_loss
        self._number_of: dict[int, int] = {}  # by descriptor
        self._due_s: dict[int, float] = {}  # when a worker that is not there will be started
        self._failures = StartFailures(len(pool.workers))
        self._start_patience_s = _START_PATIENCE_S
        self._greeting: tuple[Message, int] | None = None
        for worker in pool.workers.values():
            self._watch(worker)

    @property
    def workers(self) -> Collection[PooledWorker]:
        """Every worker, dead ones that are yet to be replaced among them."""
        return self._pool.workers.values()

    @property
    def is_waiting_to_start(self) -> bool:
        """Whether `look` is wanted soon."""
        return bool(self._due_s)

    def be_patient(self, stall_timeout_s: float) -> None:
        """Gives workers that start no less time than they have for a block."""
        self._start_patience_s = max(stall_timeout_s, _START_PATIENCE_S)
        for worker in self.workers:
            if not worker.ready:
                self._expect_start(worker)

    def greet_with(self, message: Message, descriptor: int) -> None:
        """Sends a message to every worker, and first of all to each that is started from now on."""
        self._greeting = (message, descriptor)
        for worker in self.workers:
            if worker.number not in self._due_s:
                self._loop.send(worker.channel, message, descriptor)

    def give(self, number: int, order: Message) -> None:
        """Sends a worker an order."""
        self._loop.send(self._pool.workers[number].channel, order)

    def expect(self, number: int, within_s: float | None) -> None:
        """Kills a worker that has given no word of `expect` again within so long; None expects nothing."""
        worker = self._pool.workers[number]
        worker.patience_s = within_s
        worker.deadline_s = None if within_s is None else self._loop.now_s + within_s

    def waits(self) -> Iterator[tuple[int, float]]:
        """Yields each worker of which something is expected, and how many seconds ago it was asked for it."""
        for worker in self.workers:
            if worker.deadline_s is not None and worker.patience_s is not None:
                yield worker.number, self._loop.now_s - worker.deadline_s + worker.patience_s

    def kill(self, number: int, because: str) -> None:
        """Kills a worker; that it died is heard later, with `because` as the cause."""
        worker = self._pool.workers[number]
        worker.killed_because = because
        worker.process.kill()

    def start(self, number: int) -> None:
        """Starts a worker in the place of a dead one, now or after a pause.

        Raises:
            CoordinatorError: It has failed so often that it is hopeless.
        """
        pause_s = self._failures.pause_s(number)
        if pause_s:
            self._due_s[number] = self._loop.now_s + pause_s
        else:
            self._start_now(number)

    def look(self) -> None:
        """Kills who is over its deadline, and starts whose pause is over.

        Raises:
            CoordinatorError: As `start`.
        """
        now_s = self._loop.now_s
        for worker in self.workers:
            if worker.deadline_s is not None and worker.deadline_s < now_s and worker.killed_because is None:
                self.kill(worker.number, f"it made no progress for {worker.patience_s:g} s")
        for number in [number for number, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[number]
            self._start_now(number)

    def _start_now(self, number: int) -> None:
        try:
            worker = self._pool.start(number)
        except OSError as error:  # no room for one more process or descriptor, which may pass
            self._note_failure(number, str(error), left_by_itself=False)
            self._due_s[number] = self._loop.now_s + max(_RETRY_S, self._failures.pause_s(number))
            return
        self._watch(worker)
        if self._greeting is not None:
            self._loop.send(worker.channel, *self._greeting)

    def _note_failure(self, number: int, cause: str, *, left_by_itself: bool) -> None:
        self._failures.note_failure(number, self._loop.now_s)
        if any(worker.ready for worker in self.workers):
            return
        if self._failures.are_hopeless(self._loop.now_s, left_by_itself=left_by_itself):
            raise CoordinatorError(f"workers cannot be started: {cause}", log_tail=self._log.tail())

    def _expect_start(self, worker: PooledWorker) -> None:
        self.expect(worker.number, self._start_patience_s)

    # ---- hearing ---------------------------------------------------------------------------------------------------

    def _watch(self, worker: PooledWorker) -> None:
        self._number_of[worker.channel.fileno()] = self._number_of[worker.process.sentinel] = worker.number
        self._loop.watch(worker.channel.fileno(), self._hear)
        self._loop.watch(worker.process.sentinel, self._reap)
        self._expect_start(worker)

    def _hear(self, fd: int, mask: int) -> None:
        worker = self._pool.workers[self._number_of[fd]]
        if mask & selectors.EVENT_WRITE:
            self._loop.flush(worker.channel)
        if not mask & selectors.EVENT_READ:
            return
        try:
            self._take_available(worker, fully=False)
        except ChannelClosed as closed:
            if isinstance(closed, NotOurProtocol):
                worker.killed_because = f"it sent what is no message: {closed}"
            # Its death is told by the sentinel; a worker that closed its socket and lives on is of no use.
            self._loop.forget(fd)
            worker.process.kill()

    def _take_available(self, worker: PooledWorker, *, fully: bool) -> None:
        for message in worker.channel.receive_available(fully=fully):
            if isinstance(message, WorkerReady):
                if worker.ready:
                    self.kill(worker.number, "it said twice that it is ready")
                    return
                worker.ready = True
                self.expect(worker.number, None)
                self._failures.note_ready(worker.number)
            elif isinstance(message, _PROGRESS):
                self._failures.note_progress()
            self._on_message(worker, message)

    def _reap(self, fd: int, _mask: int) -> None:
        """A worker is dead: what it finished before counts, then it is replaced."""
        worker = self._pool.workers[self._number_of[fd]]
        exit_code = worker.process.wait()
        assert exit_code is not None, "the sentinel says that it is dead"
        with contextlib.suppress(ChannelClosed):
            self._take_available(worker, fully=True)
        for descriptor in (worker.channel.fileno(), worker.process.sentinel):
            self._loop.forget(descriptor)
            self._number_of.pop(descriptor, None)
        worker.channel.close()
        worker.process.close()
        worker.deadline_s = None
        cause = worker.killed_because or describe_exit(exit_code)
        if worker.ready:
            worker.ready = False
        else:
            self._note_failure(worker.number, cause, left_by_itself=exit_code >= 0)
        self._on_loss(worker, cause, exit_code)
