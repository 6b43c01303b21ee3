"""The status port: a listening socket in the runtime folder at which this user's `status` asks for figures."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Callable
from typing import Any

from o41td.runtime_folder import LoaderEntry, publish_loader, withdraw_loader
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import StatsReply, StatsRequest

__all__ = ["StatusPort"]

_MAX_CLIENTS = 8


class StatusPort:
    """Answers `StatsRequest`s inside the server's selector loop; a client that asks anything else is hung up on."""

    def __init__(self, selector: selectors.BaseSelector, name: str, figures: Callable[[], dict[str, Any]]) -> None:
        """Makes the loader findable under `name`, where this host has a runtime folder; else there is no port."""
        self._selector = selector
        self._figures = figures
        self._clients: dict[int, Channel] = {}
        published = publish_loader(name)
        self._entry: LoaderEntry | None = None
        self._listener: socket.socket | None = None
        if published is not None:
            self._entry, self._listener = published
            selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Withdraws the entry and hangs up; idempotent."""
        if self._entry is not None:
            withdraw_loader(self._entry)
        if self._listener is not None:
            self._listener.close()
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _accept(self, _fd: int, _mask: int) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            if _peer_uid(connection) != os.getuid() or len(self._clients) >= _MAX_CLIENTS:
                connection.close()
                return
            client = Channel(connection, blocking=False)
            self._clients[client.fileno()] = client
            self._selector.register(client.fileno(), selectors.EVENT_READ, self._hear)

    def _hear(self, fd: int, _mask: int) -> None:
        client = self._clients[fd]
        is_gone = False
        try:
            for message in client.receive_available():
                if not isinstance(message, StatsRequest):
                    is_gone = True
                    break
                client.queue(StatsReply(message.request_id, self._figures()))
            client.flush()
        except ChannelClosed:
            is_gone = True
        # An answer fits into the socket's buffer; a client that does not read is no reason to wait.
        if is_gone or client.wants_write:
            self._selector.unregister(fd)
            del self._clients[fd]
            client.close()


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", credentials)
    return int(uid)
