"""HTTP answers as they come out of sockets: bytes land in the range's memory, and everything else is told apart."""

from __future__ import annotations

import pytest

from o41td.workers.object_store import fault_of_status
from o41td.workers.range_answer import Head, NotPlainError, RangeAnswer, StaleConnectionError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

BODY = bytes(range(256)) * 8
RANGE = ByteRange(100, 100 + len(BODY))
HEAD = f'HTTP/1.1 206 Partial Content\r\ncontent-length: {len(BODY)}\r\nETag: "e"\r\n\r\n'.encode()


def answer_into(buffer: RangeBuffer, seen: list[Head] | None = None) -> RangeAnswer:
    """An answer that takes what comes; heads go to `seen`."""

    def refuse(head: Head, text: str) -> StoreFault:
        return fault_of_status(head.status, f"{head.reason} {text}")

    return RangeAnswer(buffer, accept=(seen if seen is not None else []).append, refuse=refuse)


def feed(answer: RangeAnswer, data: bytes, step: int) -> int:
    """Has some bytes come, at most `step` at once, as a socket gives them; how many were taken."""
    at = 0
    while at < len(data) and not answer.is_over:
        room = answer.buffer()
        count = min(step, len(room), len(data) - at)
        assert count > 0
        room[:count] = data[at : at + count]
        at += count
        answer.advance(count)
    return at


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"], ids=["", "1xx"])
def test_a_body_lands_in_the_range(step, before):
    """However the bytes are cut, the range holds the body, and nothing behind it is taken."""
    buffer, seen = RangeBuffer(RANGE), []
    answer = answer_into(buffer, seen)
    feed(answer, before + HEAD + BODY, step)
    assert answer.is_over
    assert answer.keeps_open
    assert bytes(buffer.data) == BODY
    assert buffer.rest.num_bytes == 0
    assert (seen[0].status, seen[0].get("Etag"), seen[0].get("none")) == (206, '"e"', None)


def test_a_second_answer_goes_on_behind_the_first():
    """After a connection that broke, what is lacking lands behind what has come."""
    buffer = RangeBuffer(RANGE)
    first = answer_into(buffer)
    feed(first, HEAD + BODY[:1000], 300)
    with pytest.raises(StoreFault, match="in the midst") as caught:
        first.end()
    assert caught.value.kind is FaultKind.BROKEN
    assert buffer.rest == ByteRange(1100, RANGE.stop)
    second = answer_into(buffer)
    feed(second, f"HTTP/1.1 206 x\r\nContent-Length: {len(BODY) - 1000}\r\n\r\n".encode() + BODY[1000:], 300)
    assert bytes(buffer.data) == BODY


@pytest.mark.parametrize("head", ["HTTP/1.0 206 x", "HTTP/1.1 206 x\r\nConnection: close"])
def test_connections_that_end_are_not_kept(head):
    """A server that says it closes the connection is believed."""
    answer = answer_into(RangeBuffer(RANGE))
    feed(answer, f"{head}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY, 9999)
    assert answer.is_over
    assert not answer.keeps_open


@pytest.mark.parametrize(
    ("said", "ends", "kept"),
    [
        ("Content-Length: 14\r\n\r\nslow down, man", False, True),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nslow \r\n9\r\ndown, man\r\n0\r\n\r\n", False, True),
        ("Content-Length: 14\r\n\r\nslow down", True, False),
        ("\r\nslow down, man", True, False),
        ("Content-Length: 0\r\n\r\n", False, True),
    ],
    ids=["length", "chunked", "cut", "until it ends", "nothing"],
)
def test_refusals_are_told_with_their_text(said, ends, kept):
    """Status and text make the fault; the connection is kept where all of the text has come."""
    answer = answer_into(RangeBuffer(RANGE))
    data = f"HTTP/1.1 503 Busy\r\n{said}".encode()
    if ends:
        feed(answer, data, 11)
    with pytest.raises(StoreFault, match="503 Busy") as caught:
        answer.end() if ends else feed(answer, data, 11)
    assert caught.value.kind is FaultKind.BUSY
    assert ("slow down" in caught.value.answer) == ("slow" in said)
    assert answer.is_over
    assert answer.keeps_open == kept


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0",
        "HTTP/1.1 206 x\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 206 x\r\nContent-Encoding: gzip\r\nContent-Length: 9",
        "HTTP/1.1 200 x",
    ],
    ids=["redirect", "chunked", "gzip", "no length"],
)
def test_what_takes_a_library_is_left_to_one(head):
    """Nothing of such an answer lands in the range."""
    buffer = RangeBuffer(RANGE)
    with pytest.raises(NotPlainError):
        feed(answer_into(buffer), f"{head}\r\n\r\nsomething".encode(), 9999)
    assert buffer.num_received == 0


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", FaultKind.BROKEN),
        (b"HTTP/1.1 206 x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", FaultKind.BROKEN),
        (b"HTTP/1.1 206 x\r\nContent-Length: -5\r\n\r\n", FaultKind.BROKEN),
        (b"HTTP/1.1 206 x\r\nContent-Length: 2\r\n\r\nabc", FaultKind.BROKEN),
        (b"HTTP/1.1 206 x\r\nX: " + b"x" * (70 << 10), FaultKind.BROKEN),
        (b"HTTP/1.1 206 x\r\nContent-Length: 999999\r\n\r\n", FaultKind.REFUSED),
    ],
    ids=["ssh", "two lengths", "negative", "behind the end", "endless", "too long"],
)
def test_answers_that_make_no_sense_are_faults(said, kind):
    """Whatever a server says, what comes of it is a StoreFault of a stated kind."""
    buffer = RangeBuffer(RANGE)
    with pytest.raises(StoreFault) as caught:
        feed(answer_into(buffer), said, 100_000)
    assert caught.value.kind is kind
    assert buffer.num_received == 0


def test_a_connection_that_ends_before_an_answer_is_stale():
    """Nothing was said, so nothing is known of the request: it can be made anew."""
    with pytest.raises(StaleConnectionError):
        answer_into(RangeBuffer(RANGE)).end()
