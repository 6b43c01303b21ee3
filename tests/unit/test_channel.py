"""Messages and the channel that carries them."""

import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from o41td.workers.channel import Channel, ChannelClosed, channel_pair
from o41td.workers.message_codec import carries_descriptor, decode_message, encode_message
from o41td.workers.messages import (
    MESSAGE_TYPES,
    AttachArena,
    BatchesReady,
    BlockDecoded,
    StatsReply,
    StatsRequest,
    WorkerReady,
)

BURST = BatchesReady(3, 0, [1, 2], [4, 4], [2**64 - 1, 0], [True, False], [-1, -1], bytes(64))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a connection, blocking."""
    ours, theirs = channel_pair()
    channels = Channel(ours, blocking=True), Channel(theirs, blocking=True)
    yield channels
    for channel in channels:
        channel.close()


@pytest.mark.parametrize(
    "message",
    [WorkerReady(5), BURST, StatsReply(1, {"a": [1.5, None, "é", "\udcff"], "b": {"c": True}})],
    ids=lambda message: type(message).__name__,
)
def test_a_message_comes_out_equal(message: object) -> None:
    """Encoding keeps every field, 64-bit digests included."""
    assert decode_message(encode_message(message)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x90", b"\x91\xcd\xff\xff", b"\x92\x00\x01\x02", encode_message(BURST)[:-1]]
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    """Garbage, unknown tags, missing fields and cut frames are ValueErrors, nothing else."""
    with pytest.raises(ValueError):
        decode_message(payload)


def test_every_type_has_a_tag() -> None:
    """A message that is not listed could be sent by nobody."""
    assert len(set(MESSAGE_TYPES)) == len(MESSAGE_TYPES)


def test_order_is_kept_and_large_frames_pass(ends: tuple[Channel, Channel]) -> None:
    """A frame larger than any socket buffer arrives whole, behind those sent before."""
    large = StatsReply(9, {"x": "y" * 5_000_000})
    sender = threading.Thread(
        target=lambda: [ends[0].send(message) for message in (StatsRequest(1), large, StatsRequest(2))]
    )
    sender.start()
    assert [ends[1].receive() for _ in range(3)] == [StatsRequest(1), large, StatsRequest(2)]
    sender.join()


def test_messages_sent_together_are_there_together(ends: tuple[Channel, Channel]) -> None:
    """Whoever waits for one is woken once for all of them, in their order; a descriptor is the first one's."""
    ends[0].send(StatsRequest(1), StatsRequest(2), BURST)
    assert ends[1].receive() == StatsRequest(1)
    assert list(ends[1].received()) == [StatsRequest(2), BURST]
    descriptor = os.memfd_create("one")
    attach = AttachArena({}, [], [], [], [], [], 1, 2, None, None, None, [], None)
    ends[0].send(attach, StatsRequest(3), descriptor=descriptor)
    assert [ends[1].receive(), ends[1].receive()] == [attach, StatsRequest(3)]
    with os.fdopen(ends[1].take_descriptor()) as copy:
        assert os.fstat(copy.fileno()).st_ino == os.fstat(descriptor).st_ino
    os.close(descriptor)


def test_descriptors_stay_with_their_messages(ends: tuple[Channel, Channel]) -> None:
    """Each descriptor is taken behind its own message, and is a copy of what was sent."""
    first, second = os.memfd_create("first"), os.memfd_create("second")
    attach = AttachArena({}, [], [], [], [], [], 1, 2, None, None, None, [], None)
    ends[0].send(attach, descriptor=first)
    ends[0].send(StatsRequest(1))
    ends[0].send(attach, descriptor=second)
    for descriptor in (first, second):
        message = ends[1].receive()
        while not carries_descriptor(message):
            message = ends[1].receive()
        copy = ends[1].take_descriptor()
        assert os.fstat(copy).st_ino == os.fstat(descriptor).st_ino
        assert not os.get_inheritable(copy)
        os.close(copy)
        os.close(descriptor)
    with pytest.raises(ChannelClosed, match="ulimit -n"):
        ends[1].take_descriptor()


def test_a_descriptor_is_sent_once_though_a_signal_cuts_the_sending(ends: tuple[Channel, Channel]) -> None:
    """A signal comes while the socket's buffer is full, so a frame goes in two parts: the first has the descriptor."""
    large = StatsReply(9, {"x": "y" * 5_000_000})
    is_cut = threading.Event()
    received = []

    def cut_and_receive() -> None:
        select.select([ends[1]], [], [])  # from now on the sender is in the system call, and is not done
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        is_cut.wait()
        received.append(ends[1].receive())

    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: is_cut.set())
    receiver = threading.Thread(target=cut_and_receive)
    receiver.start()
    with os.fdopen(os.memfd_create("one")) as one:
        ends[0].send(large, descriptor=one.fileno())
    receiver.join()
    signal.signal(signal.SIGUSR1, before)
    assert received == [large]
    os.close(ends[1].take_descriptor())
    with pytest.raises(ChannelClosed):
        ends[1].take_descriptor()


def test_the_dead_are_noticed(ends: tuple[Channel, Channel]) -> None:
    """What was sent before a death still arrives; then both directions say that the peer is gone."""
    ends[0].send(BlockDecoded(1, 2, 3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, [], []))
    ends[0].close()
    assert isinstance(ends[1].receive(), BlockDecoded)
    with pytest.raises(ChannelClosed):
        ends[1].receive()
    with pytest.raises(ChannelClosed):
        ends[1].send(StatsRequest(1))


@pytest.mark.parametrize(
    "garbage", [struct.pack("<I", 2**31), struct.pack("<I", 3) + b"abc", bytes(range(255, 191, -1))]
)
def test_garbage_ends_the_conversation(garbage: bytes) -> None:
    """A peer that does not speak our frames is hung up on; nothing of it is believed or waited for."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(garbage)
        theirs.shutdown(socket.SHUT_WR)
        channel = Channel(ours, blocking=True)
        with pytest.raises(ChannelClosed):
            channel.receive()
        channel.close()


def test_a_slow_peer_does_not_hold_up_the_sender() -> None:
    """Queued frames go out as the socket takes them, in order, and nothing waits."""
    ours, theirs = channel_pair()
    sender, receiver = Channel(ours, blocking=False), Channel(theirs, blocking=False)
    messages = [StatsReply(number, {"x": "y" * 100_000}) for number in range(60)]
    for message in messages:
        sender.queue(message)
    sender.flush()
    assert sender.wants_write
    received = []
    while len(received) < len(messages):
        received.extend(receiver.receive_available())
        sender.flush()
    assert received == messages
    assert not sender.wants_write
    sender.close()
    receiver.close()
