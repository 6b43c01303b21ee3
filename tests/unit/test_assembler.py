"""When the gatherer's thread is woken, and when it wakes by itself: by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from o41td.assembler import AnnouncedBatch, AssembledBatch, Assembler


class Loop:
    """A loop that was given its first batch after a step of `step_s`; all is assembled that there is room for."""

    def __init__(self, *, prefetch_batches: int, step_s: float) -> None:
        self.now_s = 1000.0
        self.assembler = Assembler(
            buffers=lambda _stage: pytest.fail("nothing is copied"),
            prefetch_batches=prefetch_batches,
            clock=lambda: self.now_s,
        )
        self.fill()
        self.take(after_s=step_s)
        self.fill()

    def fill(self) -> None:
        """Lets the thread assemble all that there is room for."""
        assembler = self.assembler
        while assembler.has_room:
            assembler.ready.append(AssembledBatch(0, assembler.num_assembled, {}, 1, 0, assembler.num_assembled, 0))
            assembler.num_assembled += 1

    def take(self, *, after_s: float) -> bool:
        """Takes the next batch so long behind the last one; returns whether the thread would be woken."""
        assembler = self.assembler
        self.now_s += after_s
        assembler.note_visit()
        if assembler.handed_out >= 0:
            assembler.ready.popleft()
        assembler.handed_out += 1
        is_wanted = assembler.is_thread_wanted
        assembler.note_leaving()
        return is_wanted


def test_thread_naps_until_the_middle_of_the_step_with_room() -> None:
    """Of two batches ahead both are handed out before it is worth assembling: a step and a half from now."""
    loop = Loop(prefetch_batches=2, step_s=0.004)
    assert loop.assembler.begin_nap() == pytest.approx(0.006)


def test_nap_is_as_much_shorter_as_the_loop_is_away_already() -> None:
    """A millisecond after the loop has left, a millisecond less is left of the nap."""
    loop = Loop(prefetch_batches=2, step_s=0.004)
    loop.now_s += 0.001
    assert loop.assembler.begin_nap() == pytest.approx(0.005)


def test_more_batches_ahead_make_a_longer_nap() -> None:
    """Of eight ahead, five are handed out before fewer than half are left: four steps and a half."""
    loop = Loop(prefetch_batches=8, step_s=0.010)
    assert loop.assembler.begin_nap() == pytest.approx(0.045)


def test_loop_wakes_nobody_during_a_nap_that_ends_in_time() -> None:
    """Both batches ahead are handed out without a ring; the one behind them, which the nap should have made, rings."""
    loop = Loop(prefetch_batches=2, step_s=0.004)
    loop.assembler.begin_nap()
    assert [loop.take(after_s=0.0002) for _ in range(2)] == [False, False]
    loop.assembler.ready.append(AssembledBatch(0, 3, {}, 1, 0, 3, 0))  # the loop has made it by itself
    loop.assembler.num_assembled += 1
    assert loop.take(after_s=0.0002)


def test_loop_wakes_the_thread_behind_a_nap() -> None:
    """A thread that sleeps without an end of its own is woken once both batches ahead are handed out."""
    loop = Loop(prefetch_batches=2, step_s=0.004)
    loop.assembler.begin_nap()
    loop.assembler.end_nap()
    assert [loop.take(after_s=0.004) for _ in range(2)] == [False, True]


def test_naps_grow_while_the_loop_stays_away() -> None:
    """A loop that is away for ten of its steps, and then for a hundred, is looked for half as long again each time."""
    loop = Loop(prefetch_batches=2, step_s=0.004)
    loop.now_s += 0.040
    assert loop.assembler.begin_nap() == pytest.approx(0.020)
    loop.now_s += 0.360
    assert loop.assembler.begin_nap() == pytest.approx(0.200)


def test_thread_of_a_loop_with_short_steps_does_not_nap() -> None:
    """Half a millisecond a step is too short to wake in the middle of: the loop wakes it."""
    loop = Loop(prefetch_batches=2, step_s=0.0005)
    assert loop.assembler.begin_nap() is None
    assert [loop.take(after_s=0.0005) for _ in range(2)] == [False, True]


def _assembled(*, lent: dict[str, Any] | None) -> Assembler:
    """One batch is assembled of which the coordinator wants to hear: lent as these arrays, or copied."""
    buffers: Any = SimpleNamespace(buffer_bytes=8, batch_size=1, acquire=dict)
    lender: Any = SimpleNamespace(lend=lambda _stage, _first_row, _num_rows: lent)
    assembler = Assembler(buffers=lambda _stage: buffers, prefetch_batches=4)
    assembler.begin(regions={}, lent=lender)
    assembler.announced.append(AnnouncedBatch(0, 0, 0, 0, 0, True, 1, slice(0, 1)))
    assembler.assemble_ahead()
    assert assembler.num_assembled == 1
    return assembler


def test_word_of_a_copied_batch_is_due_at_once() -> None:
    """Its rows are out of the arena; the word is said once."""
    assembler = _assembled(lent=None)
    assert assembler.is_word_due(is_awaited=False)
    assembler.note_word()
    assert not assembler.is_word_due(is_awaited=True)


def test_word_of_a_lent_batch_waits_until_the_loop_is_two_further_or_waits_itself() -> None:
    """Until then the slot is likely held, and the word would free nothing."""
    assembler = _assembled(lent={})
    for handed_out, is_due in ((-1, False), (0, False), (1, False), (2, True), (3, True)):
        assembler.handed_out = handed_out
        assert assembler.is_word_due(is_awaited=False) == is_due
        assert assembler.is_word_due(is_awaited=True)
    assembler.note_word()
    assert not assembler.is_word_due(is_awaited=True)
