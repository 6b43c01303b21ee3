"""Who listens to a loader: for each rank that is there one consumer, heard and told by its rank.

A private loader has one, its owner, from its start to its end. Those of a served loader come and go: each has a rank
as long as its connection lasts, and whoever comes for a rank that is taken is told who has it. Nobody waits for a
consumer: one that does not read what it asked for, or sends what makes no sense, is hung up on.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from o41td.coordinator.peer_loop import PeerLoop
from o41td.errors import ConnectError
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import Message, ServeFrom

__all__ = ["Audience", "Consumer"]


@dataclass(slots=True, eq=False)
class Consumer:
    """The process that takes a rank's batches; `served` is what it asked for last."""

    rank: int
    pid: int
    channel: Channel
    served: ServeFrom | None = None
    is_dismissed: bool = False


class Audience:
    """The consumers of a loader.

    `on_message(consumer, message)` is called for each message, `on_loss(consumer)` once when its connection is over, no
    matter who ended it; by then its rank is free.
    """

    def __init__(
        self,
        loop: PeerLoop,
        *,
        ranks: Sequence[int],
        max_unsent_bytes: int,
        on_message: Callable[[Consumer, Message], None],
        on_loss: Callable[[Consumer], None],
    ) -> None:
        """Has a seat for each of `ranks`; one for whom more than `max_unsent_bytes` wait does not read."""
        self._loop = loop
        self._ranks = frozenset(ranks)
        self.max_unsent_bytes = max_unsent_bytes
        self._on_message = on_message
        self._on_loss = on_loss
        self._by_rank: dict[int, Consumer] = {}

    def __iter__(self) -> Iterator[Consumer]:
        return iter(list(self._by_rank.values()))

    def join(self, rank: int, channel: Channel) -> Consumer:
        """Takes over a channel as that of a rank's consumer.

        Raises:
            ConnectError: The rank is not among those served, or taken.
        """
        if rank not in self._ranks:
            served = ", ".join(map(str, sorted(self._ranks)))
            raise ConnectError(f"rank {rank} is not served here, ranks {served} are", advice="Ask for one of these")
        holder = self._by_rank.get(rank)
        if holder is not None and holder.channel.is_hung_up:
            self._lose(holder)  # it is dead, and nobody has heard of it yet
        elif holder is not None:
            raise ConnectError(
                f"rank {rank} is taken by process {holder.pid}",
                advice="Close its stream or end that process, or ask for another rank",
            )
        consumer = self._by_rank[rank] = Consumer(rank, channel.peer_pid, channel)
        self._loop.watch(channel.fileno(), lambda _fd, mask: self._hear(consumer, mask))
        return consumer

    def tell(self, rank: int, message: Message, descriptor: int | None = None) -> None:
        """Sends a message to a rank's consumer; what it does not take now it is sent later."""
        consumer = self._by_rank[rank]
        if consumer.is_dismissed:
            return
        self._loop.send(consumer.channel, message, descriptor)
        if consumer.channel.wants_write and consumer.channel.unsent_bytes > self.max_unsent_bytes:
            self.dismiss(consumer)

    def tell_all(self, message: Message, descriptor: int | None = None) -> None:
        """Sends a message to every consumer."""
        for consumer in self:
            self.tell(consumer.rank, message, descriptor)

    def dismiss(self, consumer: Consumer) -> None:
        """Hangs up on a consumer; that it is gone is heard later."""
        consumer.is_dismissed = True
        consumer.channel.hang_up()

    def close(self) -> None:
        """Hangs up on everybody, without a word to `on_loss`; idempotent."""
        for consumer in self:
            self._loop.forget(consumer.channel.fileno())
            consumer.channel.close()
        self._by_rank.clear()

    def _hear(self, consumer: Consumer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._loop.flush(consumer.channel)
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in consumer.channel.receive_available():
                if not consumer.is_dismissed:
                    self._on_message(consumer, message)
        except ChannelClosed:
            self._lose(consumer)

    def _lose(self, consumer: Consumer) -> None:
        del self._by_rank[consumer.rank]
        self._loop.forget(consumer.channel.fileno())
        consumer.channel.close()
        self._on_loss(consumer)
