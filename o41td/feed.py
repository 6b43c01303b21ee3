"""The feed: a thread of the training process that gathers batches out of the arena, a few ahead of the loop.

It alone touches the coordinator's channel and the arena. The stream talks to it through a deque of finished batches,
under one condition, and an eventfd that ends its sleep.

A coordinator that dies is replaced here: everything gathered so far is kept, a new coordinator is started with the
index that is already known, and it serves from the first batch that was not gathered. The order is a function of the
position, so the bytes are the same. Two deaths without a batch between them are an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.batch_buffers import BatchBuffers
from o41td.errors import CoordinatorError, O41Error, StreamClosedError, error_from_record
from o41td.service import Loader, wait_readable
from o41td.workers.channel import ChannelClosed
from o41td.workers.messages import (
    BatchesGathered,
    BatchesReady,
    LoaderFailed,
    LoaderNotice,
    Message,
    ServeFrom,
    StatsReply,
    StatsRequest,
    StreamEnded,
    StreamFailed,
)

__all__ = ["BatchFeed", "GatheredBatch", "Place"]

_LOGGER = logging.getLogger("o41td")
_ACKNOWLEDGE_EVERY = 16
_LIVENESS_S = 1.0
_MAX_DEATHS_WITHOUT_PROGRESS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is, by the next round's first batch.

    `position` is its number in the stage, `global_batch` its number among all stages' batches.
    """

    stage: int
    position: int
    global_batch: int


@dataclass(slots=True)
class GatheredBatch:
    """A batch that owns its memory.

    `ordinal` counts the batches since the feed was told where to begin, `number` is the batch's number in its stage,
    `digest` its share of the order digest.
    """

    ordinal: int
    arrays: dict[str, NDArray[Any]]
    num_rows: int
    stage: int
    number: int
    digest: int


@dataclass(slots=True)
class _Announced:
    stage: int
    number: int
    digest: int
    release: bool
    rows: NDArray[np.int64]


def _regions_of(loader: Loader) -> dict[str, NDArray[Any]]:
    return {region.name: loader.arena.region(region.name) for region in loader.layout.fields}


class BatchFeed:
    """Batches of one rank from a place on, gathered ahead.

    Called by: the stream's thread (every public method), one thread at a time.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        restart: Callable[[], Loader],
        buffers: Callable[[int], BatchBuffers],
        prefetch_batches: int,
        rank: int,
        world_size: int,
    ) -> None:
        """`restart` makes a new loader in place of a dead one; `buffers(stage)` owns the memory of its batches."""
        self._loader = loader
        self._regions = _regions_of(loader)
        self._restart = restart
        self._buffers = buffers
        self._prefetch = prefetch_batches
        self._rank = rank
        self._world_size = world_size
        self._condition = threading.Condition()
        self._ready: deque[GatheredBatch] = deque()
        self._handed_out = -1  # ordinal of the last batch that was
        self._announced: deque[_Announced] = deque()
        self._place: Place | None = None
        self._requested: Place | None = None
        self._unserved = False  # the coordinator was not told of the place yet
        self._generation = 0
        self._gathered = 0  # batches of this generation
        self._gathered_before = 0  # batches since `serve_from` under coordinators that died
        self._acknowledged = 0
        self._deaths_without_progress = 0
        self._ended: int | None = None  # dropped rows, once the end is known
        self._end_announced: int | None = None
        self._failure: O41Error | None = None
        self._failure_announced: O41Error | None = None
        self._stats: tuple[int, dict[str, Any]] | None = None
        self._stats_wanted = 0
        self._closing = False
        self._sleeping = False
        self._pid = os.getpid()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_lock = threading.Lock()
        self.coordinator_restarts = 0
        self.wait_s = 0.0
        self._thread = threading.Thread(target=self._run, name="o41td-feed", daemon=True)
        self._thread.start()

    @property
    def loader(self) -> Loader:
        """The loader that serves now."""
        return self._loader

    # ---- the stream's side -------------------------------------------------------------------------------------------

    def serve_from(self, place: Place) -> None:
        """Drops what is ahead and goes on from `place`; ordinals begin at 0 there."""
        with self._condition:
            self._requested = place
            self._ready.clear()
            self._handed_out = -1
            self._ended = None
            if self._thread.is_alive():
                self._failure = None
            self._condition.notify_all()
        self._rouse()

    def take(self, ordinal: int) -> GatheredBatch | int:
        """Returns batch `ordinal` since `serve_from`, or this rank's dropped rows where the stage is over.

        The batch stays at the head until a later one is asked for: a KeyboardInterrupt on the way to the caller loses
        nothing, the same ordinal gives the same batch.

        Blocks: until the batch is gathered; a dead coordinator or feed thread ends the wait.

        Raises:
            O41Error: The stream cannot go on; asking again raises the same.
        """
        with self._condition:
            while self._ready and self._ready[0].ordinal < ordinal:
                self._ready.popleft()
            if not self._ready:
                self._wait_for_batch()
            if not self._ready:
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
                assert self._ended is not None
                return self._ended
            batch = self._ready[0]
            assert batch.ordinal == ordinal
            self._handed_out = ordinal
            rouse = self._sleeping
        if rouse:
            self._rouse()
        return batch

    def _wait_for_batch(self) -> None:
        start = time.perf_counter()
        while not self._ready and self._failure is None and (self._ended is None or self._requested is not None):
            if self._sleeping:
                self._rouse()  # the last batch handed out may have made room
            if self._closing:
                raise StreamClosedError
            if not self._thread.is_alive():
                raise CoordinatorError("the feed thread is gone; please report this")
            self._condition.wait(_LIVENESS_S)
        self.wait_s += time.perf_counter() - start

    def stats(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """Returns the coordinator's live figures.

        Blocks: until it answers, at most `timeout_s`.

        Raises:
            CoordinatorError: It does not answer.
        """
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._stats_wanted += 1
            wanted = self._stats_wanted
        self._rouse()
        with self._condition:
            while self._stats is None or self._stats[0] < wanted:
                left = deadline - time.monotonic()
                if not self._thread.is_alive() and self._failure is not None:
                    raise self._failure.with_traceback(None)
                if left <= 0 or not self._thread.is_alive():
                    raise CoordinatorError("the loader's coordinator does not answer")
                self._condition.wait(min(left, _LIVENESS_S))
            return self._stats[1]

    def close(self) -> None:
        """Ends the thread and the loader. Idempotent.

        Blocks: until both are gone, milliseconds. Called by: any thread; a garbage collection may call it in the feed's
        own.
        """
        if os.getpid() != self._pid:
            return
        with self._condition:
            self._closing = True
            self._ready.clear()
            self._condition.notify_all()
        self._rouse()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_after_fork(self) -> None:
        """Lets go of descriptors in a child that a fork made, where the thread does not exist and locks may be held."""
        self._closing = True
        wake, self._wake = self._wake, -1
        if wake >= 0:
            self._loader.close_after_fork()
            os.close(wake)

    def _rouse(self) -> None:
        with contextlib.suppress(BlockingIOError), self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    @property
    def _has_room(self) -> bool:
        """Whether fewer batches than wanted wait behind the one that was handed out."""
        ready = self._ready
        return len(ready) - (1 if ready and ready[0].ordinal <= self._handed_out else 0) < self._prefetch

    # ---- the thread's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        populate_stop = threading.Event()
        populating = self._populate_ahead(populate_stop)
        stats_sent = 0
        try:
            while not self._closing:
                try:
                    if self._requested is not None:
                        self._begin_generation()
                    if self._unserved:
                        self._send_serve()
                    if self._stats_wanted > stats_sent:
                        stats_sent = self._stats_wanted
                        self._loader.channel.send(StatsRequest(stats_sent))
                    if self._announced and self._has_room:
                        self._gather_next()
                        continue
                    self._conclude()
                    if self._acknowledged < self._gathered:
                        self._acknowledge()
                    self._sleep_or_receive()
                except ChannelClosed:
                    populate_stop.set()
                    populating.join()
                    if not self._replace_loader():
                        return
                    populate_stop = threading.Event()
                    populating = self._populate_ahead(populate_stop)
        except O41Error as error:
            self._fail(error)
        except BaseException as error:
            self._fail(CoordinatorError(f"the feed thread failed: {type(error).__name__}: {error}"))
            raise
        finally:
            populate_stop.set()
            populating.join()
            with self._wake_lock:
                if self._wake >= 0:
                    os.close(self._wake)
                    self._wake = -1
            self._regions = {}
            self._loader.end()

    def _populate_ahead(self, stop: threading.Event) -> threading.Thread:
        """Touches the arena's pages in the background: a first touch costs many times what a later one does."""
        arena = self._loader.arena
        thread = threading.Thread(target=arena.populate, args=(stop,), name="o41td-populate", daemon=True)
        thread.start()
        return thread

    def _begin_generation(self) -> None:
        with self._condition:
            place, self._requested = self._requested, None
            assert place is not None
            self._place = place
            self._ready.clear()
            self._announced.clear()
            self._end_announced = self._failure_announced = None
            self._gathered = self._gathered_before = self._acknowledged = 0
            self._generation += 1
            self._unserved = True

    def _send_serve(self) -> None:
        place = self._place
        assert place is not None
        self._unserved = False
        self._loader.channel.send(
            ServeFrom(
                generation=self._generation,
                rank=self._rank,
                world_size=self._world_size,
                stage=place.stage,
                position=place.position,
                global_batch=place.global_batch,
            )
        )

    def _gather_next(self) -> None:
        announced = self._announced.popleft()
        num_rows = len(announced.rows)
        buffers = self._buffers(announced.stage).acquire()
        arrays: dict[str, NDArray[Any]] = {}
        for name, array in buffers.items():
            part = array[:num_rows] if num_rows < len(array) else array
            # "clip" writes into `out` directly; the default mode would go through a buffer of its own.
            self._regions[name].take(announced.rows, 0, part, "clip")
            arrays[name] = part
        batch = GatheredBatch(
            self._gathered_before + self._gathered,
            arrays,
            num_rows,
            announced.stage,
            announced.number,
            announced.digest,
        )
        self._gathered += 1
        self._deaths_without_progress = 0
        with self._condition:
            if self._requested is None:
                self._ready.append(batch)
                self._condition.notify_all()
        if announced.release or self._gathered - self._acknowledged >= _ACKNOWLEDGE_EVERY:
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._acknowledged = self._gathered
        self._loader.channel.send(
            BatchesGathered(
                generation=self._generation,
                count=self._gathered,
                delivered=max(0, self._handed_out + 1),
                wait_s=self.wait_s,
                dropped_rows=self._ended or 0,
            )
        )

    def _conclude(self) -> None:
        """Tells the stream of an end or a failure, once everything before it is gathered."""
        if self._announced or (self._end_announced is None and self._failure_announced is None):
            return
        with self._condition:
            if self._requested is None and (self._ended is None and self._failure is None):
                self._ended, self._failure = self._end_announced, self._failure_announced
                self._condition.notify_all()

    def _sleep_or_receive(self) -> None:
        with self._condition:
            if self._requested is not None or self._closing:
                return
            self._sleeping = True
            if self._announced and self._has_room:
                self._sleeping = False
                return
        channel = self._loader.channel
        ready = wait_readable([channel.fileno(), self._wake], None)
        self._sleeping = False
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        if channel.fileno() in ready:
            self._take_message(channel.receive())
            for message in channel.received():
                self._take_message(message)

    def _take_message(self, message: Message) -> None:
        match message:
            case BatchesReady():
                if message.generation == self._generation:
                    self._note_batches(message)
            case StreamEnded():
                if message.generation == self._generation:
                    self._end_announced = message.dropped_rows
            case StreamFailed():
                if message.generation == self._generation:
                    self._failure_announced = error_from_record(message.error)
            case LoaderNotice():
                _LOGGER.info("%s", message.text)
            case LoaderFailed():
                self._failure_announced = error_from_record(message.error)
            case StatsReply():
                with self._condition:
                    self._stats = (message.request_id, message.stats)
                    self._condition.notify_all()
            case _:
                raise ChannelClosed(f"unexpected message {type(message).__name__}")

    def _note_batches(self, message: BatchesReady) -> None:
        rows = np.frombuffer(message.rows, np.int64)
        first = 0
        for number, num_rows, digest, release in zip(
            message.numbers, message.num_rows, message.digests, message.releases, strict=True
        ):
            self._announced.append(_Announced(message.stage, number, digest, release, rows[first : first + num_rows]))
            first += num_rows

    # ---- coordinator's death -----------------------------------------------------------------------------------------

    def _replace_loader(self) -> bool:
        """Starts a new loader behind what is gathered; returns False where that is given up or not wanted."""
        if self._closing:
            return False
        self._deaths_without_progress += 1
        self._regions = {}
        words = self._loader.end()
        if self._deaths_without_progress >= _MAX_DEATHS_WITHOUT_PROGRESS:
            self._fail(CoordinatorError("the loader's coordinator died twice without progress", log_tail=words))
            return False
        self._announced.clear()
        self._end_announced = self._failure_announced = None
        try:
            self._loader = self._restart()
            self._regions = _regions_of(self._loader)
        except O41Error as error:
            self._fail(error)
            return False
        self.coordinator_restarts += 1
        _LOGGER.info("the loader's coordinator is replaced: %s", words)
        if self._place is not None:
            moved = self._gathered * self._world_size
            self._place = replace(
                self._place,
                position=self._place.position + moved,
                global_batch=self._place.global_batch + moved,
            )
            self._gathered_before += self._gathered
            self._gathered = self._acknowledged = 0
            self._generation += 1
            self._unserved = True
        return True

    def _fail(self, error: O41Error) -> None:
        with self._condition:
            self._failure = error
            self._condition.notify_all()
