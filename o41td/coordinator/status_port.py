"""The status port: a listening socket in the runtime folder, at which this user's `status` asks for figures.

The one socket of a loader that another process can reach. Whoever asks is this user, by the folder's mode and by the
kernel's word; takes no memory, descriptors or time beyond the figures asked for; and is hung up on for anything else.
At a served loader's port trainers come in too: who says which rank it is, is handed over with its connection.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from typing import Any

from o41td.runtime_folder import LoaderEntry, publish_loader, withdraw_loader
from o41td.workers.channel import Channel, ChannelClosed, peer_uid
from o41td.workers.messages import PROTOCOL, JoinLoader, StatsReply, StatsRequest

__all__ = ["StatusPort"]

_MAX_CLIENTS = 8
_MAX_QUESTION_BYTES = 64
_MAX_QUESTIONS_AT_ONCE = 4


class StatusPort:
    """Answers `StatsRequest`s inside the server's selector loop; a client that asks anything else is hung up on."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        name: str,
        figures: Callable[[], dict[str, Any]],
        *,
        on_join: Callable[[int, Channel], None] | None = None,
        num_ranks: int = 0,
    ) -> None:
        """Makes the loader findable under `name`, where this host has a runtime folder; else there is no port.

        `on_join` takes over the rank and the channel of each trainer; without it none is let in. There is room for as
        many as `num_ranks` that have not said yet who they are, beside those that ask for figures.
        """
        self._selector = selector
        self._figures = figures
        self._on_join = on_join
        self._max_clients = _MAX_CLIENTS + num_ranks
        self._clients: dict[int, Channel] = {}
        published = publish_loader(name, protocol=PROTOCOL, is_served=on_join is not None)
        self._entry: LoaderEntry | None = None
        self._listener: socket.socket | None = None
        if published is not None:
            self._entry, self._listener = published
            selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def is_open(self) -> bool:
        """Whether `status` can find this loader."""
        return self._listener is not None

    def close(self) -> None:
        """Withdraws the entry and hangs up; idempotent."""
        if self._entry is not None:
            withdraw_loader(self._entry)
        listener, self._listener = self._listener, None
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
        for fd in list(self._clients):
            self._hang_up(fd)

    def _accept(self, _fd: int, _mask: int) -> None:
        assert self._listener is not None
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return  # it has gone again, or there is no descriptor left
        if peer_uid(connection) != os.getuid():
            connection.close()
            return
        if len(self._clients) >= self._max_clients:
            self._hang_up(next(iter(self._clients)))  # the oldest: silent ones do not keep out those that ask
        client = Channel(connection, blocking=False, max_frame_bytes=_MAX_QUESTION_BYTES, takes_descriptors=False)
        self._clients[client.fileno()] = client
        self._selector.register(client.fileno(), selectors.EVENT_READ, self._hear)

    def _hear(self, fd: int, _mask: int) -> None:
        client = self._clients[fd]
        is_gone = False
        num_asked = 0
        try:
            for message in client.receive_available():
                num_asked += 1
                if isinstance(message, JoinLoader) and self._on_join is not None:
                    self._selector.unregister(fd)
                    self._on_join(message.rank, self._clients.pop(fd))
                    return
                if not isinstance(message, StatsRequest) or num_asked > _MAX_QUESTIONS_AT_ONCE:
                    is_gone = True
                    break
                client.queue(StatsReply(message.request_id, self._figures()))
            client.flush()
        except ChannelClosed:
            is_gone = True
        # An answer fits into the socket's buffer; a client that does not read is no reason to wait.
        if is_gone or client.wants_write:
            self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._clients.pop(fd).close()
