"""Batches are copied out of the arena, or lent, here: by one of two threads of the training process.

The gatherer's thread does it ahead of a loop that is busy with the batch before. A loop that comes back at once gains
nothing by that: it would wait for the thread, and to wake a thread costs as much as to copy a small batch. So a loop
that is quick assembles its batches itself, and the thread does it for one that is slow, or has not come for a while.

The loop of a slow one does not wake the thread either, as long as its steps take about as long as the last: a thread
that is woken runs at once, mostly where the loop runs, and the loop would have its batch when the thread is done with
the next ones. The thread knows the loop's pace and wakes by itself in the middle of a step.

Only one of them at a time: each raises a flag of its own and then looks at the other's, and leaves if that is up
(Dekker's rule, in E. W. Dijkstra, Cooperating Sequential Processes, 1965). A lock would not do: the loop may be
interrupted at any instruction (Ctrl-C), and would leave it locked, while a flag that stays up is lowered by its owner's
next visit. A batch counts as assembled once it is in `ready`; whatever an interrupted loop did not get to write down
after that is made good by the next to come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.batch_buffers import BatchBuffers
from o41td.lent_batches import LentBatches

__all__ = ["AnnouncedBatch", "AssembledBatch", "Assembler"]

_QUICK_STEP_S = 1e-4
_SMALL_BATCH_BYTES = 1 << 20
_LOOK_AGAIN_S = 1e-4
_STEP_WORTH_A_NAP_S = 1e-3
_HANDED_OUT_BEFORE_WORD = 2

GIVE_UP_ON_LOOP_S = 5e-3
"""The thread takes over from a quick loop that stays away for so long."""


@dataclass(slots=True)
class AssembledBatch:
    """A batch whose memory is its own, for as long as anybody holds it.

    `serve` is the request that it answers, `ordinal` its number since the place that was asked for, `number` its number
    in the stage, `digest` its share of the order digest.
    """

    serve: int
    ordinal: int
    arrays: dict[str, NDArray[Any]]
    num_rows: int
    stage: int
    number: int
    digest: int


class AnnouncedBatch(NamedTuple):
    """A batch whose rows are all in the arena, a slice of it where they follow each other there.

    `release` asks that the coordinator hears when it is assembled.
    """

    serve: int
    ordinal: int
    stage: int
    number: int
    digest: int
    release: bool
    num_rows: int
    rows: NDArray[np.int64] | slice


class Assembler:
    """Announced batches, assembled batches, and the way from the one to the other.

    The loop's thread writes `handed_out`, `is_loop_inside`, `gather_now_s` and takes from the left of `ready`; the
    gatherer's thread adds to `announced` and `gather_ahead_s`. All else is written by whoever assembles.

    Args:
        buffers: Gives the memory of a stage's batches.
        prefetch_batches: So many batches may wait behind the one that was handed out.
        clock: Seconds, as of `time.monotonic`.
    """

    def __init__(
        self,
        *,
        buffers: Callable[[int], BatchBuffers],
        prefetch_batches: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.announced: deque[AnnouncedBatch] = deque()
        self.ready: deque[AssembledBatch] = deque()
        self.num_assembled = 0  # since the place that is served
        self.handed_out = -1  # ordinal of the last batch that the loop was given
        self.is_release_due = False
        self.lent_release: int | None = None  # ordinal of a lent batch of which the coordinator wants to hear
        self.is_loop_inside = False  # in `BatchFeed.take`
        self.gather_ahead_s = 0.0  # time that the thread has spent at it
        self.gather_now_s = 0.0  # and the loop
        self._is_loop_quick = False
        self._clock = clock
        self._loop_left_s = clock()
        self._step_s = 0.0  # from the loop's last leaving to its next visit
        self._nap_until: int | None = None  # the thread naps until the loop has been given this batch
        self._is_loop_at_it = False
        self._is_thread_at_it = False
        self._buffers = buffers
        self._prefetch = prefetch_batches
        self._regions: Mapping[str, NDArray[Any]] = {}
        self._is_lost: Callable[[], bool] | None = None
        self._lent: LentBatches | None = None
        self._copied_bytes = 0  # of the last batch

    # ---- the loop's visits -------------------------------------------------------------------------------------------

    def note_visit(self) -> None:
        """The loop asks for a batch."""
        self._step_s = self._clock() - self._loop_left_s
        self._is_loop_quick = self._step_s < _QUICK_STEP_S
        self.is_loop_inside = True

    def note_leaving(self) -> None:
        """The loop has what it asked for, or was interrupted."""
        self._loop_left_s = self._clock()
        self.is_loop_inside = False

    @property
    def is_thread_wanted(self) -> bool:
        """Whether it is worth waking the thread for the room there is, which will not wake by itself in time."""
        nap_until = self._nap_until  # once: the thread ends its nap
        if self._is_loop_quick or (nap_until is not None and self.handed_out <= nap_until):
            return False
        return self._is_enough_room(len(self.ready) - 1)

    def _is_enough_room(self, ahead: int) -> bool:
        """Whether the thread should assemble, with so many batches there behind the one in the loop's hands.

        Small batches are made two and more at a time: once half of what may be ahead was handed out.
        """
        return ahead <= 0 or self._copied_bytes > _SMALL_BATCH_BYTES or 2 * ahead < self._prefetch

    def is_word_due(self, *, is_awaited: bool) -> bool:
        """Whether the coordinator shall hear of what is assembled, of which it asked to.

        While a batch that was lent is in the loop's hands, the word frees nothing. Two batches later it is mostly gone,
        and one word does for both; a loop that waits for a batch does not wait for that.
        """
        lent_release = self.lent_release  # once: the other thread may take it back
        if self.is_release_due or lent_release is None:
            return self.is_release_due
        return is_awaited or self.handed_out >= lent_release + _HANDED_OUT_BEFORE_WORD

    def note_word(self) -> None:
        """The coordinator is about to hear of what is assembled."""
        self.is_release_due = False
        self.lent_release = None

    # ---- who ---------------------------------------------------------------------------------------------------------

    @property
    def is_left_to_loop(self) -> bool:
        """Whether the thread shall leave the next batch to the loop."""
        if self._is_loop_at_it:
            return True
        is_near = self.is_loop_inside or self._clock() - self._loop_left_s < GIVE_UP_ON_LOOP_S
        return self._is_loop_quick and is_near

    @property
    def has_room(self) -> bool:
        """Whether fewer batches than wanted wait behind the one that was handed out."""
        return self.num_assembled - (self.handed_out + 1) < self._prefetch

    def can_loop_assemble(self, serve: int) -> bool:
        """Whether a batch of a request is announced and the thread is not at it."""
        try:
            return not self._is_thread_at_it and self.announced[0].serve == serve
        except IndexError:
            return False

    # ---- the thread alone --------------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        regions: Mapping[str, NDArray[Any]],
        is_lost: Callable[[], bool] | None = None,
        lent: LentBatches | None = None,
    ) -> None:
        """What is announced from now on lies in `regions`; what was announced before is forgotten.

        `is_lost` tells, once a batch is copied, whether its rows may have been overwritten meanwhile (None: never).
        `lent` lends batches out of the regions, where it may.
        Blocks: while the loop copies a batch. Called by: the gatherer's thread, as are all below.
        """
        while not self._enter_as_thread():
            time.sleep(_LOOK_AGAIN_S)
        self.announced.clear()
        self._regions = regions
        self._is_lost = is_lost
        self._lent = lent
        self._is_thread_at_it = False

    def begin_serve(self) -> None:
        """Another place is served: as `begin`, and counts anew."""
        self.begin(regions=self._regions, is_lost=self._is_lost, lent=self._lent)
        self.num_assembled = 0
        self.lent_release = None

    def begin_nap(self) -> float | None:
        """All is assembled that there is room for: returns how long the thread may sleep without being woken for room.

        None where the loop's steps are too short for that. The nap ends in the middle of the step in which there will
        be enough room, if the loop takes as long a step as the last time; for one that does not come, naps become
        longer. `end_nap` belongs behind it.
        """
        step_s = self._step_s
        if step_s < _STEP_WORTH_A_NAP_S:
            return None
        handed_out = self.handed_out
        ahead = self.num_assembled - (handed_out + 1)
        num_steps = 1
        while not self._is_enough_room(ahead - num_steps):
            num_steps += 1
        away_s = 0.0 if self.is_loop_inside else self._clock() - self._loop_left_s
        self._nap_until = handed_out + num_steps
        left_s = (num_steps - 0.5) * step_s - away_s
        return left_s if left_s > 0 else away_s / 2

    def end_nap(self) -> None:
        """The thread is awake."""
        self._nap_until = None

    def _enter_as_thread(self) -> bool:
        self._is_thread_at_it = True
        if self._is_loop_at_it:
            self._is_thread_at_it = False
            return False
        return True

    def assemble_ahead(self) -> bool:
        """Assembles the next batch for a loop that is away; returns whether it is worth waking one that waits."""
        if not self._enter_as_thread():
            return True  # the loop may have met our flag, and wait
        began_s = time.perf_counter()
        try:
            self._assemble_next()
        finally:
            self._is_thread_at_it = False
        self.gather_ahead_s += time.perf_counter() - began_s
        # Two small batches for one waking.
        is_last = not self.announced or not self.has_room
        return is_last or len(self.ready) > 1 or self._copied_bytes > _SMALL_BATCH_BYTES

    # ---- the loop alone ----------------------------------------------------------------------------------------------

    def assemble_now(self) -> None:
        """Assembles the next batch in the loop's thread, if one is announced and the gatherer's thread is not at it."""
        began_s = time.perf_counter()
        try:
            self._is_loop_at_it = True
            if not self._is_thread_at_it:
                self._assemble_next()
        finally:
            self._is_loop_at_it = False
        self.gather_now_s += time.perf_counter() - began_s

    # ---- both --------------------------------------------------------------------------------------------------------

    def _assemble_next(self) -> None:
        try:
            announced = self.announced[0]
        except IndexError:
            return
        if announced.ordinal <= self._last_assembled(announced.serve):
            self._pass_over_assembled()
            return
        arrays = self._arrays_of(announced)
        if self._is_lost is not None and self._is_lost():
            return
        self.ready.append(
            AssembledBatch(
                announced.serve,
                announced.ordinal,
                arrays,
                announced.num_rows,
                announced.stage,
                announced.number,
                announced.digest,
            )
        )
        self._pass_over(announced)

    def _arrays_of(self, announced: AnnouncedBatch) -> dict[str, NDArray[Any]]:
        rows, num_rows = announced.rows, announced.num_rows
        if self._lent is not None and isinstance(rows, slice):
            lent = self._lent.lend(announced.stage, rows.start, num_rows)
            if lent is not None:
                self._copied_bytes = 0
                return lent
        buffers = self._buffers(announced.stage)
        self._copied_bytes = buffers.buffer_bytes
        arrays = buffers.acquire()
        if num_rows < buffers.batch_size:
            arrays = {name: array[:num_rows] for name, array in arrays.items()}
        regions = self._regions
        if isinstance(rows, slice):
            for name, array in arrays.items():
                array[...] = regions[name][rows]
        else:
            for name, array in arrays.items():
                # "clip" writes into `out` directly; the default mode would go through a buffer of its own.
                regions[name].take(rows, 0, array, "clip")
        return arrays

    def _pass_over_assembled(self) -> None:
        """Takes from `announced` what is in `ready`, or was and is handed out."""
        announced = self.announced
        while announced:
            head = announced[0]
            if head.ordinal > self._last_assembled(head.serve):
                return
            self._pass_over(head)

    def _pass_over(self, head: AnnouncedBatch) -> None:
        """Takes the head of `announced`, which is assembled."""
        self.num_assembled = head.ordinal + 1
        # Behind the count: whoever lowers these tells of what is counted by then.
        if head.release and self._copied_bytes:
            self.is_release_due = True
        elif head.release:
            self.lent_release = head.ordinal
        self.announced.popleft()

    def _last_assembled(self, serve: int) -> int:
        try:
            last = self.ready[-1]
        except IndexError:  # taken by the loop, and so handed out
            return self.handed_out
        return max(self.handed_out, last.ordinal) if last.serve == serve else self.handed_out
