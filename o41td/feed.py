"""The feed: the stream's side of the gathering thread. Nothing here holds a lock, so Ctrl-C may come anywhere.

For the same reason the thread is never asked whether it lives, nor joined while it has work: CPython 3.11's
`Thread.is_alive` takes and releases a lock of its own, and interrupted in between it marks a running thread as ended
(bpo-45274).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from o41td.assembler import AssembledBatch
from o41td.errors import CoordinatorError, StreamClosedError
from o41td.gatherer import Gatherer, Place
from o41td.stream_log import StreamLog
from o41td.watchdog import WaitWatchdog

__all__ = ["BatchFeed"]

_LIVENESS_S = 1.0


class BatchFeed:
    """Batches of one rank from a place on, gathered ahead.

    Called by: the stream's thread (every method), one thread at a time; `close` also by a garbage collection anywhere.
    """

    def __init__(self, gatherer: Gatherer, log: StreamLog, *, stall_timeout_s: float) -> None:
        """Starts the gatherer's thread; what is to be said of waits goes into `log`.

        Raises:
            CoordinatorError: This process may not begin another thread; the loader is ended.
        """
        self._log = log
        self._gatherer = gatherer
        self._stall_timeout_s = stall_timeout_s
        self._serve = 0
        self._rung_in_sleep = 0  # the gatherer's sleep that was rung at last
        self._is_inside = False  # whether the stream's thread is in `take` or `stats`
        self._is_closed = False
        self._bells_lock = threading.Lock()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=gatherer.run, name="o41td-gatherer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            gatherer.loader.end()
            self._close_bells()
            raise CoordinatorError(
                f"the stream's thread cannot be started: {error}",
                where=f"pid {self._pid}",
                advice="Look at the limits of processes and threads (`ulimit -u`, the container's, as `--pids-limit`)",
            ) from error

    @property
    def wait_s(self) -> float:
        """Seconds that `take` has waited."""
        return self._gatherer.wait_s

    @property
    def gather_s(self) -> tuple[float, float]:
        """Seconds spent copying batches out of the arena: by the gatherer's thread, and by `take` while it waited."""
        assembler = self._gatherer.assembler
        return assembler.gather_ahead_s, assembler.gather_now_s

    @property
    def coordinator_restarts(self) -> int:
        """How often the coordinator was replaced."""
        return self._gatherer.coordinator_restarts

    def serve_from(self, place: Place) -> None:
        """Drops what is ahead and goes on from `place`; ordinals begin at 0 there."""
        gatherer = self._gatherer
        self._serve += 1
        gatherer.assembler.handed_out = -1
        gatherer.assembler.ready.clear()
        gatherer.requested.append((self._serve, place))
        gatherer.bell.ring()

    def take(self, ordinal: int) -> AssembledBatch | int:
        """Returns batch `ordinal` since `serve_from`, or this rank's dropped rows where the stage is over.

        The batch stays at the head until a later one is asked for: a KeyboardInterrupt on the way to the caller loses
        nothing, the same ordinal gives the same batch.

        Blocks: until the batch is gathered; a dead coordinator or thread ends the wait.

        Raises:
            O41Error: The stream cannot go on; asking again raises the same.
        """
        gatherer = self._gatherer
        assembler = gatherer.assembler
        self._is_inside = True
        try:
            assembler.note_visit()
            found = self._look(ordinal)
            if found is None:
                found = self._wait(ordinal)
            if isinstance(found, AssembledBatch):
                if assembler.handed_out < ordinal:
                    gatherer.batches_handed_out += 1
                    gatherer.rows_handed_out += found.num_rows
                    assembler.handed_out = ordinal
                if gatherer.is_asleep and gatherer.is_wanted:
                    self._wake_gatherer()
            return found
        finally:
            assembler.note_leaving()
            self._leave()

    def _wake_gatherer(self) -> None:
        """Rings once a sleep: until the thread has the interpreter, it looks asleep, and to ring is a system call."""
        sleep = self._gatherer.num_sleeps
        if self._rung_in_sleep != sleep:
            self._gatherer.bell.ring()
            self._rung_in_sleep = sleep  # behind the ring: a Ctrl-C in between costs a second one, and not the only one

    def _wait(self, ordinal: int) -> AssembledBatch | int:
        """Assembles what is announced, or sleeps, until there is what `take` returns."""
        gatherer = self._gatherer
        start = time.perf_counter()
        watchdog: WaitWatchdog | None = None
        found = None
        while found is None:
            if self._can_assemble():
                gatherer.assembler.assemble_now()
            else:
                watchdog = watchdog or WaitWatchdog(gatherer, self._log, stall_timeout_s=self._stall_timeout_s)
                self._await_arrival(lambda: self._can_assemble() or self._look(ordinal) is not None)
            found = self._look(ordinal)
            if found is None and watchdog is not None:
                watchdog.look(ordinal)
        gatherer.wait_s += time.perf_counter() - start
        return found

    def _can_assemble(self) -> bool:
        return self._gatherer.assembler.can_loop_assemble(self._serve)

    def _leave(self) -> None:
        """Ends a visit; whoever closed the stream meanwhile has left its bells to the visitor, who may stand at one."""
        self._is_inside = False
        if self._is_closed:
            self._close_bells()

    def _close_bells(self) -> None:
        with self._bells_lock:
            for bell in (self._gatherer.bell, self._gatherer.arrived, self._gatherer.gone):
                bell.close()

    def _look(self, ordinal: int) -> AssembledBatch | int | None:
        """Returns what `take` returns, None where it is not there yet."""
        gatherer = self._gatherer
        ready = gatherer.assembler.ready
        while ready:
            head = ready[0]
            if head.serve == self._serve and head.ordinal >= ordinal:
                assert head.ordinal == ordinal
                return head
            ready.popleft()
        if gatherer.closing:
            raise StreamClosedError
        outcome = gatherer.outcome
        if outcome is not None and outcome[0] == self._serve and not ready:
            if isinstance(outcome[1], int):
                return outcome[1]
            raise outcome[1].with_traceback(None)
        if gatherer.fatal is not None:
            raise gatherer.fatal.with_traceback(None)
        if gatherer.has_ended:
            raise CoordinatorError("the gathering thread is gone; please report this")
        return None

    def _await_arrival(self, is_there: Callable[[], bool], timeout_s: float = _LIVENESS_S) -> None:
        """Sleeps until the gatherer has something new, if `is_there` says that it is not there yet."""
        gatherer = self._gatherer
        gatherer.is_awaited = True
        try:
            if not is_there():
                if gatherer.is_asleep and (gatherer.is_wanted or gatherer.is_word_overdue):
                    self._wake_gatherer()
                gatherer.arrived.wait(timeout_s)
        finally:
            gatherer.is_awaited = False

    def stats(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """Returns the coordinator's live figures.

        Blocks: until it answers, at most `timeout_s`; where it is being replaced, until another answers.

        Raises:
            CoordinatorError: It does not answer.
        """
        gatherer = self._gatherer
        self._is_inside = True
        try:
            deadline_s = time.monotonic() + timeout_s
            gatherer.stats_wanted += 1
            wanted = gatherer.stats_wanted
            gatherer.bell.ring()
            while gatherer.stats[0] < wanted:
                if gatherer.fatal is not None:
                    raise gatherer.fatal.with_traceback(None)
                if gatherer.is_replacing:
                    deadline_s = time.monotonic() + timeout_s
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or gatherer.has_ended:
                    raise CoordinatorError("the loader's coordinator does not answer")
                self._await_arrival(lambda: gatherer.stats[0] >= wanted, min(left_s, _LIVENESS_S))
            return gatherer.stats[1]
        finally:
            self._leave()

    def close(self) -> None:
        """Ends the thread and the loader. Idempotent.

        Blocks: until both are gone, milliseconds.
        """
        if os.getpid() != self._pid:
            return
        gatherer = self._gatherer
        gatherer.closing = True
        gatherer.assembler.ready.clear()
        if self._is_closed:
            return
        gatherer.bell.ring()
        if threading.current_thread() is not self._thread:
            while not gatherer.has_ended:
                gatherer.gone.wait(_LIVENESS_S)
            self._thread.join()  # it has nothing left to do, so to take it for ended a moment early is no harm
            self._is_closed = True
            if not self._is_inside:
                self._close_bells()

    def close_after_fork(self) -> None:
        """Lets go of descriptors in a child that a fork made, where the thread does not exist."""
        self._gatherer.closing = True
        self._gatherer.loader.close_after_fork()
        for bell in (self._gatherer.bell, self._gatherer.arrived, self._gatherer.gone):
            bell.close()  # not under the lock, which the other process's thread may have held
