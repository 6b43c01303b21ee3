"""An HTTP proxy before an object store, which is slow, breaks and lies on order, and writes down what it was asked for.

client ──► FaultyProxy ──► store          proxy.log: method, path, range, status, bytes sent
           │
           └ faults: for the next requests that fit, something else than the plain answer
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

_CHUNK_BYTES = 64 << 10
_HOP = {"connection", "keep-alive", "transfer-encoding", "host"}


@dataclass
class Asked:
    """A request and what came of it; `start` and `stop` are the range that was asked for."""

    method: str
    path: str
    headers: dict[str, str]
    start: int | None = None
    stop: int | None = None
    status: int = 0
    sent_bytes: int = 0
    began_s: float = 0.0

    @property
    def range_bytes(self) -> int:
        """Bytes of the range."""
        return 0 if self.start is None or self.stop is None else self.stop - self.start

    @property
    def key_id(self) -> str:
        """Whose signature it bears, in a header or in the link."""
        signed = self.headers.get("Authorization", "") + unquote(self.path)
        return signed.partition("Credential=")[2].partition("/")[0]


Answer = Callable[["_Handler", Asked], None]


@dataclass
class _Fault:
    answer: Answer
    fits: Callable[[Asked], bool]
    times: int


@dataclass
class FaultyProxy:
    """A proxy in a thread; settings may be changed at any time."""

    upstream: tuple[str, int]
    signature: dict[str, str] = field(default_factory=dict)  # for requests that have none
    latency_s: float = 0.0
    bytes_per_s: float | None = None
    log: list[Asked] = field(default_factory=list)
    most_in_flight: int = 0
    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _in_flight: int = 0
    _pipe_free_s: float = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        """Serves while the block runs."""
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def fail(
        self,
        answer: Answer,
        *,
        times: int = 1,
        method: str = "GET",
        path: str = "",
        ranged: bool = False,
        least_bytes: int = 0,
    ) -> None:
        """Gives the next requests that fit this answer.

        They are of a method, with a path that holds `path`, perhaps of a range, which has `least_bytes`.
        """

        def fits(asked: Asked) -> bool:
            is_of_object = asked.method == method and path in asked.path
            return is_of_object and (asked.start is not None or not ranged) and asked.range_bytes >= least_bytes

        with self._lock:
            self._faults.append(_Fault(answer, fits, times))

    def heal(self) -> None:
        """Forgets all faults that were ordered."""
        with self._lock:
            self._faults.clear()

    def gets(self, path: str = "") -> list[Asked]:
        """The GETs of objects with a range, so far."""
        return [asked for asked in self.log if asked.method == "GET" and path in asked.path and asked.start is not None]

    def begin(self, asked: Asked) -> Answer | None:
        """Notes a request, and says what to answer; None for the plain answer."""
        with self._lock:
            self.log.append(asked)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            for fault in self._faults:
                if fault.times and fault.fits(asked):
                    fault.times -= 1
                    return fault.answer
        return None

    def end(self) -> None:
        """Notes that a request is answered."""
        with self._lock:
            self._in_flight -= 1

    def throttle(self, num_bytes: int) -> None:
        """Waits until the one pipe that all answers share has carried so many bytes."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            self._pipe_free_s = max(time.monotonic(), self._pipe_free_s) + num_bytes / self.bytes_per_s
            wait_s = self._pipe_free_s - time.monotonic()
        time.sleep(max(0.0, wait_s))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Says nothing: connections break on order."""


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = Asked(self.command, self.path, dict(self.headers.items()), began_s=time.monotonic())
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found:
            asked.start, asked.stop = int(found[1]), int(found[2]) + 1
        answer = self.proxy.begin(asked)
        try:
            time.sleep(self.proxy.latency_s)
            if answer is None:
                status, headers, data = self.forwarded(body=body)
                self.reply(asked, status, headers, data)
            else:
                answer(self, asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.proxy.end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - the names that http.server calls

    def forwarded(self, *, body: bytes = b"", leave_out: str = "") -> tuple[int, list[tuple[str, str]], bytes]:
        """The store's own answer, to the request without one of its headers."""
        upstream = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in (*_HOP, leave_out.lower())}
        headers = {**self.proxy.signature, **headers}
        try:
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def reply(
        self,
        asked: Asked,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        *,
        stop_after: int | None = None,
        claim: int | None = None,
    ) -> None:
        """Sends an answer; `stop_after` bytes of it at most, under a Content-Length of `claim` or of all of it."""
        asked.status = status
        self.send_response(status)
        lengths = [value for key, value in headers if key.lower() == "content-length"]
        for key, value in headers:
            if key.lower() not in (*_HOP, "content-length", "date", "server"):
                self.send_header(key, value)
        length = len(data) if claim is None else claim
        self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        for start in range(0, len(data) if stop_after is None else stop_after, _CHUNK_BYTES):
            stop = min(start + _CHUNK_BYTES, len(data) if stop_after is None else stop_after)
            self.proxy.throttle(stop - start)
            self.wfile.write(data[start:stop])
            asked.sent_bytes += stop - start
        self.wfile.flush()

    def reset(self) -> None:
        """Breaks the connection with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


# ---- what may be answered instead ----------------------------------------------------------------------------------


def status(code: int, error: str = "", message: str = "a fault on order") -> Answer:
    """An error of S3's: a status, and a body that names it."""

    def answer(handler: _Handler, asked: Asked) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{error}</Code><Message>{message}</Message></Error>".encode()
        handler.reply(asked, code, [("Content-Type", "application/xml")], body if error else b"")

    return answer


def reset_after(share: float) -> Answer:
    """A reset in the middle of the body."""

    def answer(handler: _Handler, asked: Asked) -> None:
        code, headers, data = handler.forwarded()
        handler.reply(asked, code, headers, data, stop_after=int(share * len(data)))
        time.sleep(0.05)
        handler.reset()

    return answer


def cut_short(share: float) -> Answer:
    """A body that ends early, under the Content-Length of all of it."""

    def answer(handler: _Handler, asked: Asked) -> None:
        code, headers, data = handler.forwarded()
        handler.reply(asked, code, headers, data, stop_after=int(share * len(data)))
        handler.close_connection = True

    return answer


def fewer_bytes(share: float) -> Answer:
    """A body that is short, and says so, though its Content-Range does not."""

    def answer(handler: _Handler, asked: Asked) -> None:
        code, headers, data = handler.forwarded()
        handler.reply(asked, code, headers, data[: int(share * len(data))])

    return answer


def without_range() -> Answer:
    """All of the object, whatever range was asked for."""

    def answer(handler: _Handler, asked: Asked) -> None:
        handler.reply(asked, *handler.forwarded(leave_out="Range"))

    return answer


def after(delay_s: float) -> Answer:
    """The right answer, late."""

    def answer(handler: _Handler, asked: Asked) -> None:
        time.sleep(delay_s)
        handler.reply(asked, *handler.forwarded())

    return answer


def behind(barrier: threading.Barrier, *, timeout_s: float) -> Answer:
    """The right answer, once as many requests wait for theirs as the barrier has parties, or after so long."""

    def answer(handler: _Handler, asked: Asked) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(timeout_s)
        handler.reply(asked, *handler.forwarded())

    return answer


def refused_connection() -> Answer:
    """A reset before any answer."""

    def answer(handler: _Handler, asked: Asked) -> None:
        handler.reset()

    return answer
