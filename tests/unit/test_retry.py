"""How long a request goes on asking, by kind of failure; clock and chance are the test's."""

from __future__ import annotations

import pytest

from o41td.workers.object_store import ObjectInfo, check_content_range, fault_of_status
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, Patience, StoreFault


def patience(give_up_after_s: float = 900.0, draw: float = 0.999999) -> Patience:
    """One that draws the same number always, from time 0 on."""
    return Patience(give_up_after_s, now_s=0.0, draw=lambda: draw)


def test_pauses_grow_to_a_cap_and_begin_small_after_a_byte():
    """0.2, 0.4, … up to 20 s at most; a byte starts them anew; half the draw is half the pause."""
    waiting = patience()
    pauses = [waiting.pause_s(FaultKind.BUSY, 0.0) for _ in range(12)]
    expected = [min(20.0, 0.1 * 2**n) for n in range(1, 13)]
    assert pauses == pytest.approx(expected, rel=1e-4)
    waiting.note_progress(1.0)
    assert waiting.pause_s(FaultKind.BROKEN, 1.0) == pytest.approx(0.2, rel=1e-4)
    assert patience(draw=0.5).pause_s(FaultKind.BUSY, 0.0) == pytest.approx(0.1)
    assert patience(draw=0.0).pause_s(FaultKind.BUSY, 0.0) == 0.0


def test_it_gives_up_after_the_stated_time_without_a_byte():
    """The last pause is cut to what is left; a byte in between grants all of the time again."""
    waiting = patience(10.0)
    for _ in range(10):
        waiting.pause_s(FaultKind.BUSY, 0.0)
    assert waiting.pause_s(FaultKind.BUSY, 8.0) == pytest.approx(2.0)
    assert waiting.pause_s(FaultKind.BUSY, 10.0) is None
    waiting.note_progress(10.0)
    assert waiting.pause_s(FaultKind.BUSY, 19.0) is not None
    assert waiting.pause_s(FaultKind.BUSY, 20.0) is None


@pytest.mark.parametrize(
    "kind", [FaultKind.MISSING, FaultKind.CHANGED, FaultKind.REFUSED, FaultKind.DENIED, FaultKind.EXPIRED]
)
def test_what_will_not_pass_is_not_waited_for(kind):
    """There is no second attempt; credentials may be read anew once."""
    waiting = patience()
    assert waiting.pause_s(kind, 0.0) is None
    assert [waiting.may_renew() for _ in range(3)] == [True, False, False]


def test_ignored_ranges_are_borne_twice():
    """A server that sends all of an object may have had a bad moment, but not three."""
    waiting = patience()
    assert [waiting.pause_s(FaultKind.WHOLE, 0.0) is None for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FaultKind.REFUSED),
        (401, FaultKind.DENIED),
        (403, FaultKind.DENIED),
        (404, FaultKind.MISSING),
        (408, FaultKind.BROKEN),
        (410, FaultKind.MISSING),
        (412, FaultKind.CHANGED),
        (416, FaultKind.CHANGED),
        (429, FaultKind.BUSY),
        (500, FaultKind.BROKEN),
        (503, FaultKind.BUSY),
        (504, FaultKind.BROKEN),
    ],
)
def test_statuses_have_their_kinds(status, kind):
    """By what the HTTP standard says of them."""
    fault = fault_of_status(status, "two\n  words")
    assert (fault.kind, fault.answer) == (kind, f"{status} two words")


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("bytes 10-19/100", None),
        ("bytes 10-12/100", None),  # less than was asked for: the rest is asked for again
        ("bytes 10-19/*", None),
        ("bytes 10-19/99", FaultKind.CHANGED),
        ("bytes 9-19/100", FaultKind.REFUSED),
        ("bytes 10-20/100", FaultKind.REFUSED),
        ("rows 10-19/100", FaultKind.REFUSED),
        ("bytes */100", FaultKind.REFUSED),
        ("", FaultKind.REFUSED),
        (None, FaultKind.REFUSED),
    ],
)
def test_a_content_range_is_compared_with_what_was_asked_for(header, kind):
    """Another place is nothing that can be used, another size another object."""
    arguments = (header, ByteRange(10, 20), ObjectInfo(100, None))
    if kind is None:
        check_content_range(*arguments)
        return
    with pytest.raises(StoreFault) as caught:
        check_content_range(*arguments)
    assert caught.value.kind is kind
