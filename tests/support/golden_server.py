"""A served loader of golden frames: it can be found by its name, says what it is told, and compares what it hears."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from golden_frames import FRAMES
from o41td.runtime_folder import LoaderEntry, publish_loader, withdraw_loader
from o41td.workers.messages import PROTOCOL
from served_loader import DEADLINE_S, unused_name

__all__ = ["GoldenServer", "golden_server"]

ARENA_BYTES = 4096


class GoldenServer:
    """One conversation at a time with whoever connects."""

    def __init__(self, name: str, protocol: str) -> None:
        """The arena's rows hold 100, 101, and so on to 107."""
        self.name = name
        self._protocol = protocol
        self._listed: tuple[LoaderEntry, socket.socket] | None = None
        self._peer: socket.socket | None = None
        self._arena = os.memfd_create("o41td-golden")
        os.ftruncate(self._arena, ARENA_BYTES)
        os.pwrite(self._arena, array("q", range(100, 108)).tobytes(), 0)

    def enlist(self) -> None:
        """Can be found from now on."""
        self._listed = publish_loader(self.name, protocol=self._protocol, is_served=True)
        assert self._listed is not None, "there is no runtime folder"
        self._listed[1].settimeout(DEADLINE_S)

    def withdraw(self) -> None:
        """Can be found no more; whoever is there stays."""
        if self._listed is not None:
            entry, listener = self._listed
            self._listed = None
            withdraw_loader(entry)
            listener.close()

    def accept(self) -> None:
        """Waits for the next that joins as the golden rank; the one before is hung up on.

        Others may come meanwhile, that list this user's loaders, and ask for figures.
        """
        assert self._listed is not None
        join = FRAMES["JoinLoader"][1]
        self.hang_up()
        heard = b""
        while heard != join:
            self.hang_up()
            self._peer, _address = self._listed[1].accept()
            self._peer.settimeout(DEADLINE_S)
            heard = self._peer.recv(len(join), socket.MSG_WAITALL)

    def hear(self, length: int) -> bytes:
        """The next bytes that the consumer sends."""
        assert self._peer is not None
        heard = b""
        while len(heard) < length:
            more = self._peer.recv(length - len(heard))
            assert more, f"the consumer left behind {heard!r}"
            heard += more
        return heard

    def expect(self, name: str) -> None:
        """Compares what the consumer says with a golden frame."""
        _sender, frame = FRAMES[name]
        assert self.hear(len(frame)) == frame, name

    def say(self, name: str) -> None:
        """Sends a golden frame, and with an opening the arena."""
        self.send(FRAMES[name][1], with_arena=name == "LoaderOpened")

    def send(self, data: bytes, *, with_arena: bool = False) -> None:
        """Sends any bytes."""
        assert self._peer is not None
        if with_arena:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [self._arena]))]
            sent = self._peer.sendmsg([data], rights)
            assert sent == len(data)
        else:
            self._peer.sendall(data)

    def open(self) -> None:
        """Lets the next consumer in, to where it has asked for its batches."""
        self.accept()
        self.say("LoaderJoined")
        self.say("LoaderOpened")
        self.hear(len(FRAMES["ServeFrom"][1]))

    def hang_up(self) -> None:
        """Ends the conversation."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def close(self) -> None:
        """Ends the conversation, and takes no other."""
        self.hang_up()
        self.withdraw()
        os.close(self._arena)


@contextmanager
def golden_server(*, protocol: str = PROTOCOL) -> Iterator[GoldenServer]:
    """Yields a server that can be found, until the end of the block."""
    server = GoldenServer(unused_name(), protocol)
    try:
        server.enlist()
        yield server
    finally:
        server.close()
