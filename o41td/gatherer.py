"""The gatherer: a thread of the training process that talks to the coordinator and has batches assembled.

It alone touches the coordinator's channel. What it and the stream's thread tell each other are single attributes, each
written by one of the two, and deques; two doorbells end sleeps. There are no locks: the stream's thread may be
interrupted at any instruction (Ctrl-C), and a lock would be left as it stood.

A coordinator that dies is replaced here: everything gathered so far is kept, a new coordinator is started with the
index that is already known, and it serves from the first batch that was not gathered. The order is a function of the
position, so the bytes are the same. Two deaths without a batch between them are an error. Where the loader is served to
several ranks, its server is waited for instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.assembler import GIVE_UP_ON_LOOP_S, AnnouncedBatch, Assembler
from o41td.batch_buffers import BatchBuffers
from o41td.doorbell import Doorbell
from o41td.error_records import error_from_record
from o41td.errors import CoordinatorError, O41Error
from o41td.exclusions import NOTHING_EXCLUDED, Exclusions
from o41td.joining import JoinedLoader
from o41td.lent_batches import LentBatches
from o41td.named_tuples import of_columns
from o41td.service import Loader
from o41td.stream_log import StreamLog
from o41td.workers.channel import ChannelClosed
from o41td.workers.messages import (
    BatchesGathered,
    BatchesReady,
    LoaderFailed,
    LoaderNotice,
    MayHoldSlots,
    Message,
    ServeFrom,
    SlotsHeld,
    StatsReply,
    StatsRequest,
    StreamEnded,
    StreamFailed,
)

__all__ = ["AnyLoader", "Gatherer", "Place", "Restart", "arena_rows_of"]

AnyLoader = Loader | JoinedLoader
Restart = Callable[[Callable[[], bool]], AnyLoader]
_ACKNOWLEDGE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream is, by the next round's first batch.

    `position` is its number in the stage, `global_batch` its number among all stages' batches, of which those
    `excluded` are passed over.
    """

    stage: int
    position: int
    global_batch: int
    excluded: Exclusions = NOTHING_EXCLUDED

    def moved(self, num_taken: int) -> Place:
        """Returns the place behind so many more batches of all ranks."""
        global_batch = self.excluded.after(self.global_batch, num_taken)
        return replace(self, position=self.position + global_batch - self.global_batch, global_batch=global_batch)


class Gatherer:
    """The thread's side of a feed.

    The stream's thread writes `batches_handed_out`, `rows_handed_out`, `wait_s`, `stats_wanted`, `closing` and
    `is_awaited`, and adds to `requested`. The gatherer writes all others. Both use `assembler`.
    """

    def __init__(
        self,
        loader: AnyLoader,
        *,
        restart: Restart,
        buffers: Callable[[int], BatchBuffers],
        prefetch_batches: int,
        rank: int,
        world_size: int,
        stall_timeout_s: float,
    ) -> None:
        """`restart` makes a new loader in place of a dead one; `buffers(stage)` owns the memory of its batches.

        `restart` is given what tells whether its result is still wanted.
        """
        self.requested: deque[tuple[int, Place]] = deque()
        self.batches_handed_out = 0  # and rows: of all places that were served
        self.rows_handed_out = 0
        self.wait_s = 0.0
        self.stats_wanted = 0
        self.closing = False
        self.is_awaited = False
        self.bell = Doorbell()  # ends the gatherer's sleep
        self.assembler = Assembler(buffers=buffers, prefetch_batches=prefetch_batches)
        self.outcome: tuple[int, int | O41Error] | None = None  # (serve, dropped rows or failure) behind what is ready
        self.fatal: O41Error | None = None
        self.stats: tuple[int, dict[str, Any]] = (0, {})
        self.is_asleep = False
        self.num_sleeps = 0
        self.is_replacing = False  # the coordinator, which is dead
        self.has_ended = False  # the last thing that the thread sets
        self.coordinator_restarts = 0
        self.arrived = Doorbell()  # ends the sleep of the stream's thread
        self.gone = Doorbell()  # ends the sleep of whoever closes the stream
        self.loader: AnyLoader = loader
        self._restart = restart
        self._rank = rank
        self._world_size = world_size
        self._log = StreamLog(rank, world_size)
        self._serve = 0
        self._place: Place | None = None
        self._is_told = True  # whether the coordinator knows the place
        self._generation = 0
        self._num_announced = 0  # batches of this generation
        self._announced_outcome: int | O41Error | None = None
        self._gathered_before = 0  # batches of this serve under coordinators that died
        self._acknowledged = 0  # of this generation
        self._stats_asked = 0
        self._stall_timeout_s = stall_timeout_s
        self._is_pinged = False
        self._heard_s = self._acknowledged_s = time.monotonic()
        self._deaths_without_progress = 0
        self._assembled_at_death = 0
        self._lent: LentBatches | None = None
        self._assemble_from(loader)

    def run(self) -> None:
        """Gathers until `closing`, or until nothing can go on any more; ends the loader then.

        Blocks: for as long. Called by: the gatherer's thread.
        """
        stop = threading.Event()
        populating: threading.Thread | None = None
        try:
            populating = self._populate_ahead(stop)
            while not self.closing:
                try:
                    self._step()
                except ChannelClosed:
                    stop.set()
                    if populating is not None:
                        populating.join()
                    if self._is_closing():
                        return
                    self.is_replacing = True
                    self._replace_loader()
                    self.is_replacing = False
                    stop = threading.Event()
                    populating = self._populate_ahead(stop)
        except O41Error as error:
            self._die(error)
        except BaseException as error:
            self._die(CoordinatorError(f"the gathering thread failed: {type(error).__name__}: {error}"))
            raise
        finally:
            stop.set()
            if populating is not None:
                populating.join()
            self._end_loader()
            self.has_ended = True
            self.arrived.ring()
            self.gone.ring()

    def _end_loader(self) -> str:
        """Ends it, and keeps of its arena what batches hold; returns its last words."""
        self.assembler.begin(regions={})
        lent, self._lent = self._lent, None
        words = self.loader.end()
        if lent is not None:
            lent.retire()
        return words

    def _is_closing(self) -> bool:
        return self.closing  # which the other thread may have set since the last look

    def _die(self, error: O41Error) -> None:
        self.fatal = error
        self.arrived.ring()

    def _populate_ahead(self, stop: threading.Event) -> threading.Thread | None:
        """Touches the arena's pages in the background: a first touch costs many times what a later one does."""
        return self.loader.arena.populate_in_background(stop)

    def _step(self) -> None:
        """Does the next thing there is to do, or sleeps."""
        if self.requested:
            self._begin_serve()
        if not self._is_told:
            self._tell_place()
        if self.stats_wanted > self._stats_asked:
            self._stats_asked = self.stats_wanted
            if self._acknowledged < self._gathered:
                self._acknowledge()
            self.loader.channel.send(StatsRequest(self._stats_asked))
        if self._is_word_due:
            self._acknowledge()
        assembler = self.assembler
        if assembler.announced and assembler.has_room:
            if not assembler.is_left_to_loop:
                self._assemble()
                return
            self._tell_arrival()
        if not assembler.announced and self._announced_outcome is not None and self.outcome is None:
            self.outcome = (self._serve, self._announced_outcome)
            self._tell_arrival()
        if self.is_word_overdue or (self.outcome is not None and self._acknowledged < self._gathered):
            self._acknowledge()
        self._sleep_or_receive()

    def _assemble(self) -> None:
        if self.assembler.assemble_ahead():
            self._tell_arrival()
        if self.loader.is_lost:
            raise ChannelClosed("hung up on while a batch was gathered")

    def _tell_arrival(self) -> None:
        if self.is_awaited:
            self.arrived.ring()

    @property
    def _gathered(self) -> int:
        """Batches of this generation that are out of the arena."""
        return self.assembler.num_assembled - self._gathered_before

    @property
    def is_wanted(self) -> bool:
        """Whether it is worth waking the gatherer, which costs about as much as gathering a small batch."""
        return self.assembler.is_thread_wanted or self._is_word_due

    @property
    def _is_word_due(self) -> bool:
        """Whether the coordinator waits for word of batches, or of a slot."""
        lent = self._lent  # once: the loop asks too, while a loader is replaced
        is_slot_back = lent is not None and lent.is_return_due
        return is_slot_back or self.assembler.is_word_due(is_awaited=self.is_awaited)

    @property
    def is_word_overdue(self) -> bool:
        """Whether the coordinator should hear what it did not ask for: `status` would show figures from long ago."""
        return self._acknowledged < self._gathered and time.monotonic() - self._acknowledged_s > _ACKNOWLEDGE_EVERY_S

    # ---- serving -----------------------------------------------------------------------------------------------------

    def _begin_serve(self) -> None:
        while self.requested:
            self._serve, self._place = self.requested.popleft()
        self.outcome = self._announced_outcome = None
        self._forgive_deaths_after_progress()
        self.assembler.begin_serve()
        self._num_announced = self._gathered_before = self._acknowledged = self._assembled_at_death = 0
        self._generation += 1
        self._is_told = False

    def _tell_place(self) -> None:
        place = self._place
        assert place is not None
        self._is_told = True
        self.loader.channel.send(
            *self._news_of_slots(),
            ServeFrom(
                generation=self._generation,
                rank=self._rank,
                world_size=self._world_size,
                stage=place.stage,
                position=place.position,
                global_batch=place.global_batch,
            ),
        )

    def _acknowledge(self) -> None:
        self.assembler.note_word()
        self._acknowledged = self._gathered
        self._acknowledged_s = time.monotonic()
        outcome = self.outcome
        dropped_rows = outcome[1] if outcome is not None and isinstance(outcome[1], int) else 0
        self.loader.channel.send(
            *self._news_of_slots(),  # of batches that are counted, and perhaps of later ones
            BatchesGathered(
                generation=self._generation,
                gathered=self._acknowledged,
                delivered=max(0, self.assembler.handed_out + 1 - self._gathered_before),
                batches=self.batches_handed_out,
                rows=self.rows_handed_out,
                wait_s=self.wait_s,
                dropped_rows=dropped_rows,
            ),
        )

    def _news_of_slots(self) -> list[SlotsHeld]:
        """Returns word of the slots in which batches lie that were lent, where they are others than was told."""
        lent = self._lent
        if lent is None:
            return []
        held = lent.held_slots()
        if held == lent.told:
            return []
        lent.told = held
        return [SlotsHeld(sorted(held))]

    # ---- receiving ---------------------------------------------------------------------------------------------------

    def _sleep_or_receive(self) -> None:
        self.num_sleeps += 1
        self.is_asleep = True
        # What came in before the flag was up rang no bell, so it is looked for once more.
        is_needed = bool(self.requested) or self.closing or self.stats_wanted > self._stats_asked
        assembler = self.assembler
        has_work = bool(assembler.announced) and assembler.has_room
        if is_needed or self._is_word_due or (has_work and not assembler.is_left_to_loop):
            self.is_asleep = False
            return
        channel = self.loader.channel
        timeout_s = GIVE_UP_ON_LOOP_S if has_work else self._stall_timeout_s / 4
        if assembler.announced and not has_work:
            timeout_s = min(timeout_s, assembler.begin_nap() or timeout_s)
        can_receive = self.bell.wait(timeout_s, also=channel.fileno())
        assembler.end_nap()
        self.is_asleep = False
        if can_receive:
            self._heard_s = time.monotonic()
            self._is_pinged = False
            self._take_message(channel.receive())
            for message in channel.received():
                self._take_message(message)
        else:
            self._look_for_stall()

    def _look_for_stall(self) -> None:
        """Asks a silent coordinator for a sign of life; one that gives none is killed, and so replaced."""
        silent_s = time.monotonic() - self._heard_s
        if not self.is_awaited:
            self._heard_s = time.monotonic()
        elif silent_s > self._stall_timeout_s and self._is_pinged:
            self._log.info("the loader's coordinator has been silent for %.0f s and is given up", silent_s)
            self.loader.kill()
        elif silent_s > self._stall_timeout_s / 2 and not self._is_pinged:
            self._is_pinged = True
            self._heard_s = time.monotonic() - self._stall_timeout_s / 2  # it has the other half for an answer
            self.loader.channel.send(StatsRequest(0))

    def _take_message(self, message: Message) -> None:
        match message:
            case BatchesReady():
                if message.generation == self._generation:
                    self._note_batches(message)
            case StreamEnded():
                if message.generation == self._generation:
                    self._announced_outcome = message.dropped_rows
            case StreamFailed():
                if message.generation == self._generation:
                    self._announced_outcome = error_from_record(message.error)
            case MayHoldSlots():
                if self._lent is not None:
                    self._lent.most_slots = message.of_stages
            case LoaderNotice():
                self._log.log(logging.WARNING if message.is_warning else logging.INFO, "%s", message.text)
            case LoaderFailed():
                raise error_from_record(message.error)
            case StatsReply():
                self.stats = (max(message.request_id, self.stats[0]), message.stats)
                self._tell_arrival()
            case _:
                raise ChannelClosed(f"unexpected message {type(message).__name__}")

    def _note_batches(self, message: BatchesReady) -> None:
        first_ordinal = self._gathered_before + self._num_announced
        self.assembler.announced.extend(
            of_columns(
                AnnouncedBatch,
                repeat(self._serve),
                count(first_ordinal),
                repeat(message.stage),
                message.numbers,
                message.digests,
                message.releases,
                message.num_rows,
                arena_rows_of(message),
            )
        )
        self._num_announced += len(message.numbers)

    # ---- coordinator's death -----------------------------------------------------------------------------------------

    def _replace_loader(self) -> None:
        """Starts a new loader, which is to serve from behind what is gathered.

        Raises:
            O41Error: It is the second death without progress, or no loader can be started.
        """
        self._forgive_deaths_after_progress()
        self._deaths_without_progress += 1
        words = self._end_loader()
        self._assembled_at_death = self.assembler.num_assembled
        if self._deaths_without_progress > self.loader.max_deaths_without_progress:
            often = "twice" if self._deaths_without_progress == 2 else f"{self._deaths_without_progress} times"
            raise CoordinatorError(f"the loader's coordinator died {often} without progress", log_tail=words)
        self._announced_outcome = None
        self.loader = self._restart(self._is_closing)
        self._heard_s = time.monotonic()
        self._is_pinged = False
        self._assemble_from(self.loader)
        self.coordinator_restarts += 1
        self._stats_asked = self.stats[0]
        self._log.info("the loader's coordinator is replaced: %s", words)
        if self._place is not None:
            self._place = self._place.moved(self._gathered * self._world_size)
            self._gathered_before += self._gathered
            self._num_announced = self._acknowledged = 0
            self._generation += 1
            self._is_told = False

    def _forgive_deaths_after_progress(self) -> None:
        if self.assembler.num_assembled != self._assembled_at_death:
            self._deaths_without_progress = 0

    def _assemble_from(self, loader: AnyLoader) -> None:
        regions = {region.name: loader.arena.region(region.name) for region in loader.layout.fields}
        if isinstance(loader, Loader):
            self._lent = LentBatches(loader.arena)
            self.assembler.begin(regions=regions, lent=self._lent)
        else:
            self.assembler.begin(regions=regions, is_lost=lambda: loader.is_lost)


def arena_rows_of(message: BatchesReady) -> list[NDArray[np.int64] | slice]:
    """Returns the arena rows of each batch that a message tells of, a slice where they follow each other."""
    listed, of_batch = np.frombuffer(message.rows, np.int64), message.num_rows
    if of_batch and of_batch == of_batch[:1] * len(of_batch) and len(listed) == sum(of_batch):
        return list(listed.reshape(len(of_batch), of_batch[0]))
    rows: list[NDArray[np.int64] | slice] = []
    for num_rows, first in zip(of_batch, message.first_rows, strict=True):
        if first < 0:
            rows.append(listed[:num_rows])
            listed = listed[num_rows:]
        else:
            rows.append(slice(first, first + num_rows))
    return rows
