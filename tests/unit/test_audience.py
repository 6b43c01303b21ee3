"""The consumers of a loader: who has which rank, and who is hung up on."""

from __future__ import annotations

import os

import pytest

from o41td.coordinator.audience import Audience
from o41td.coordinator.peer_loop import PeerLoop
from o41td.errors import ConnectError
from o41td.workers.channel import Channel, ChannelClosed, channel_pair
from o41td.workers.messages import LoaderNotice, StatsReply, StatsRequest


class Hall:
    """An audience of ranks 0 and 1 in a loop that the test turns, and the consumers' ends."""

    def __init__(self) -> None:
        self.loop = PeerLoop()
        self.heard: list[tuple[int, object]] = []
        self.lost: list[int] = []
        self.ends: list[Channel] = []
        self.audience = Audience(
            self.loop,
            ranks=(0, 1),
            max_unsent_bytes=1 << 20,
            on_message=lambda consumer, message: self.heard.append((consumer.rank, message)),
            on_loss=lambda consumer: self.lost.append(consumer.rank),
        )

    def join(self, rank: int) -> Channel:
        """A consumer's end."""
        ours, theirs = channel_pair()
        seat, end = Channel(ours, blocking=False), Channel(theirs, blocking=True)
        self.ends += [seat, end]
        self.audience.join(rank, seat)
        return end

    def turn(self) -> None:
        """Deals with what has happened."""
        for _ in range(4):
            self.loop.turn(0)


@pytest.fixture
def hall():
    """An audience, closed behind the test."""
    hall = Hall()
    yield hall
    hall.audience.close()
    hall.loop.selector.close()
    for channel in hall.ends:
        channel.close()


def test_consumers_are_heard_and_told_by_their_rank(hall):
    """Each message comes with the rank of its channel, and goes to one rank or to all."""
    first, second = hall.join(0), hall.join(1)
    second.send(StatsRequest(7))
    hall.turn()
    assert hall.heard == [(1, StatsRequest(7))]
    hall.audience.tell(1, StatsReply(7, {}))
    hall.audience.tell_all(LoaderNotice("both"))
    assert first.receive(5) == LoaderNotice("both", False)
    assert [second.receive(5), second.receive(5)] == [StatsReply(7, {}), LoaderNotice("both", False)]


def test_a_rank_has_one_consumer_at_a_time(hall):
    """A second one is told the first's pid; when the first is gone, heard of or not, its rank is free."""
    first = hall.join(0)
    with pytest.raises(ConnectError, match=f"rank 0 is taken by process {os.getpid()}"):
        hall.join(0)
    with pytest.raises(ConnectError, match="rank 2 is not served here, ranks 0, 1 are"):
        hall.join(2)
    assert hall.lost == []
    first.close()
    second = hall.join(0)
    assert hall.lost == [0]
    second.send(StatsRequest(1))
    hall.turn()
    second.close()
    hall.turn()
    assert (hall.heard, hall.lost) == ([(0, StatsRequest(1))], [0, 0])
    assert list(hall.audience) == []


def test_one_that_does_not_read_is_hung_up_on(hall):
    """Behind the socket's buffer at most 1 MiB waits; a consumer that reads gets everything meanwhile."""
    hall.join(0)
    reader = hall.join(1)
    notice = LoaderNotice("x" * 100_000)
    for _ in range(64):
        hall.audience.tell_all(notice)
        hall.turn()
        assert reader.receive(5) == notice
    assert hall.lost == [0]
    assert [consumer.rank for consumer in hall.audience] == [1]


def test_a_dismissed_consumer_is_neither_heard_nor_told(hall):
    """What it sent before is passed over, and its own end finds the conversation closed."""
    end = hall.join(0)
    end.send(StatsRequest(1))
    (consumer,) = hall.audience
    hall.audience.dismiss(consumer)
    hall.audience.tell(0, LoaderNotice("too late"))
    hall.turn()
    assert (hall.heard, hall.lost) == ([], [0])
    with pytest.raises(ChannelClosed):
        end.receive(5)
