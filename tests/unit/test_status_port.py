"""The status port: the one socket of a loader that other processes reach."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from o41td import runtime_folder
from o41td.coordinator.status_port import StatusPort
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.message_codec import encode_message
from o41td.workers.messages import JoinLoader, StatsReply, StatsRequest, WorkerReady


class Port:
    """A status port in a selector loop that the test turns by hand."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.asked = 0
        self.port = StatusPort(self.selector, "mine", self._figures)
        (entry,) = folder.glob("*.sock")
        self.path = str(entry)

    def _figures(self) -> dict[str, object]:
        self.asked += 1
        return {"asked": self.asked}

    def turn(self) -> None:
        """Deals with what has happened, until nothing has."""
        while ready := self.selector.select(0):
            for key, mask in ready:
                if key.fd in self.selector.get_map():
                    key.data(key.fd, mask)

    def client(self) -> socket.socket:
        """A new connection, accepted."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self.path)
        self.turn()
        return connection


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    """A port in a folder of the test's own."""
    folder = tmp_path / "o41td"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(runtime_folder, "runtime_folder", lambda *, create: folder)
    port = Port(folder)
    yield port
    port.port.close()
    port.selector.close()


def _is_answered(port: Port, client: socket.socket) -> bool:
    channel = Channel(client, blocking=True)
    try:
        channel.send(StatsRequest(7))
        port.turn()
        reply = channel.receive(5.0)
    except ChannelClosed:
        return False
    return isinstance(reply, StatsReply) and reply.request_id == 7


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 65) + bytes(65),
        struct.pack("<I", 2) + b"\x91\xff",
        struct.pack("<I", 3) + encode_message(WorkerReady(1)),
        struct.pack("<I", 3) + encode_message(JoinLoader(1)),
        (struct.pack("<I", 3) + encode_message(StatsRequest(1))) * 100,
    ],
    ids=[
        "http",
        "4 GiB announced",
        "a byte too long",
        "no message",
        "another message",
        "a rank",
        "a hundred questions at once",
    ],
)
def test_a_client_that_does_not_ask_properly_is_hung_up_on(port: Port, content: bytes) -> None:
    """It hears the end of the connection; the next one is answered; at most a few figures were made for it."""
    with port.client() as client:
        client.settimeout(5)
        client.sendall(content)
        port.turn()
        assert port.asked <= 4
        received = b""
        try:
            while data := client.recv(4096):
                received += data
        except ConnectionResetError:
            pass
        assert b"Traceback" not in received
    with port.client() as client:
        assert _is_answered(port, client)


def test_a_served_loaders_port_hands_ranks_over(port: Port) -> None:
    """The channel comes with the rank, is watched no longer, and others still get their figures; its entry says so."""
    port.port.close()
    joined: list[tuple[int, Channel]] = []
    port.port = StatusPort(
        port.selector, "ours", dict, on_join=lambda rank, channel: joined.append((rank, channel)), num_ranks=2
    )
    (entry,) = runtime_folder.listed_loaders()
    assert (entry.name, entry.is_served) == ("ours", True)
    port.path = entry.socket_path
    with port.client() as trainer, port.client() as asker:
        Channel(trainer, blocking=True).send(JoinLoader(3))
        port.turn()
        ((rank, channel),) = joined
        assert (rank, channel.peer_pid) == (3, os.getpid())
        assert channel.fileno() not in port.selector.get_map()
        assert _is_answered(port, asker)
        port.port.close()
        channel.queue(StatsReply(5, {}))
        channel.flush()
        assert Channel(trainer, blocking=True).receive(5) == StatsReply(5, {})
        channel.close()


def test_silent_clients_do_not_keep_others_out(port: Port) -> None:
    """However many connect and say nothing, or half a frame, whoever asks is answered; few connections stay open."""
    before = len(os.listdir("/proc/self/fd"))
    silent = [port.client() for _ in range(40)]
    for client in silent[-3:]:
        client.sendall(b"\x03\x00")
    port.turn()
    assert len(os.listdir("/proc/self/fd")) <= before + 40 + 8
    with port.client() as client:
        assert _is_answered(port, client)
    for client in silent:
        client.close()


def test_a_client_that_reads_nothing_is_let_go(port: Port) -> None:
    """Answers that nobody takes are not kept: the client is dropped once its socket is full."""
    with port.client() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        question = struct.pack("<I", 3) + encode_message(StatsRequest(1))
        asked = 0
        with contextlib.suppress(OSError):
            while asked < 100_000:
                client.sendall(question)
                asked += 1
                port.turn()
        assert asked < 100_000


def test_descriptors_sent_to_it_are_closed(port: Port) -> None:
    """A client cannot fill the coordinator's table of open files."""
    with port.client() as client, open(os.devnull) as null:
        before = len(os.listdir("/proc/self/fd"))
        question = struct.pack("<I", 3) + encode_message(StatsRequest(1))
        for _ in range(20):
            socket.send_fds(client, [question], [null.fileno()] * 8)
            port.turn()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_inside_an_open_folder(port: Port, tmp_path: Path) -> None:
    """With the folder's mode out of the way, the kernel's word on who connects still keeps others out."""
    path = Path(port.path)
    open_to_all = Path("/tmp") / f"o41td-test-{os.getpid()}"  # pytest's own folders are closed to others
    open_to_all.mkdir(mode=0o755)
    try:
        reachable = open_to_all / "s"
        os.link(path, reachable)
        reachable.chmod(0o777)
        code = (
            "import os, socket, sys\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); print('in', flush=True)\n"
            f"s.sendall({struct.pack('<I', 3) + encode_message(StatsRequest(1))!r}); print(s.recv(100))"
        )
        stranger = subprocess.Popen(
            [sys.executable, "-c", code, str(reachable)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "in\n"
        port.turn()
        told, _ = stranger.communicate(timeout=30)
        assert told in ("", "b''\n")
        assert port.asked == 0
    finally:
        (open_to_all / "s").unlink(missing_ok=True)
        open_to_all.rmdir()
