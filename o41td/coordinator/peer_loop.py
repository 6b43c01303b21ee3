"""The loop that the coordinator's shell turns: every peer's socket and every child's sentinel under one selector.

Nothing here waits for a single peer: what a socket does not take now is kept, and sent when it takes more.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from o41td.coordinator.patience import PatientClock
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import Message

__all__ = ["PeerLoop"]


class PeerLoop:
    """A selector, what is called when a descriptor can be read, and the loop's own time.

    Callbacks are given the descriptor and the selector's mask.
    """

    def __init__(self) -> None:
        """Watches nothing yet."""
        self.selector = selectors.DefaultSelector()
        self._clock = PatientClock(time.monotonic())

    @property
    def now_s(self) -> float:
        """Patient time (see `PatientClock`), as of the last turn: what deadlines are measured by."""
        return self._clock.now_s

    def watch(self, descriptor: int, callback: Callable[[int, int], None]) -> None:
        """Calls `callback` when `descriptor` can be read, until it is forgotten."""
        self.selector.register(descriptor, selectors.EVENT_READ, callback)

    def forget(self, descriptor: int) -> None:
        """Watches a descriptor no longer; harmless if it is not watched, or closed."""
        if self._is_watched(descriptor):
            self.selector.unregister(descriptor)

    def send(self, channel: Channel, message: Message, descriptor: int | None = None) -> None:
        """Sends a message to a watched peer, or as much of it as its socket takes now and the rest later."""
        channel.queue(message, descriptor)
        self.flush(channel)

    def flush(self, channel: Channel) -> None:
        """Sends what can be sent, and asks to be told when more can; a peer that is gone is told by its reading."""
        if not self._is_watched(channel.fileno()):
            return
        try:
            channel.flush()
        except ChannelClosed:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
        key = self.selector.get_key(channel.fileno())
        if key.events != events:
            self.selector.modify(channel.fileno(), events, key.data)

    def turn(self, timeout_s: float) -> None:
        """Waits for whatever happens next, and has it dealt with.

        Blocks: at most `timeout_s`.
        """
        happened = self.selector.select(timeout_s)
        self._clock.tick(time.monotonic())
        for key, mask in happened:
            if self._is_watched(key.fd):  # an earlier callback may have closed it
                callback: Callable[[int, int], None] = key.data
                callback(key.fd, mask)

    def _is_watched(self, descriptor: int) -> bool:
        return descriptor >= 0 and descriptor in self.selector.get_map()
