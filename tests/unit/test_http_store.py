"""Web servers as they differ: every way of answering gives the same bytes, or is refused."""

from __future__ import annotations

import base64
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from o41td.errors import StorageError
from o41td.workers.object_store import ObjectInfo, StorageSettings
from o41td.workers.ranges import ByteRange
from o41td.workers.remote_objects import RemoteObjects
from o41td.workers.storage import Storage

DATA = os.urandom(300_000)
WANTED = ByteRange(1000, 250_000)
_LOGIN = "Basic " + base64.b64encode(b"me:pass").decode()


class Server(BaseHTTPRequestHandler):
    """Answers by the first name of a path."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Serves a range of the data, or something like it."""
        way = self.path.split("/")[1]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        body = DATA[first : last + 1]
        head = {"ETag": '"a"', "Content-Range": f"bytes {first}-{last}/{len(DATA)}"}
        if way == "moved":
            self.say(302, b"", Location="/plain/a")
        elif way == "empty":
            self.say(416, b"none", ETag='"a"', **{"Content-Range": "bytes */0"})
        elif way == "whole":
            self.say(200, DATA, ETag='"a"')
        elif way == "login" and self.headers.get("Authorization") != _LOGIN:
            self.say(401, b"who are you?")
        elif way == "chunked":
            chunks = [body[start : start + 70_000] for start in range(0, len(body), 70_000)]
            coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
            self.say(206, coded, **head, **{"Transfer-Encoding": "chunked"})
        else:
            self.say(206, body, **head)

    def say(self, status: int, body: bytes, **headers: str) -> None:
        """Sends an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Transfer-Encoding" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def server():
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def objects():
    """What a worker reads with."""
    storage = Storage(StorageSettings(give_up_after_s=2.0))
    yield RemoteObjects(storage)
    storage.close()


@pytest.mark.parametrize("place", ["{}/plain/a", "{}/moved/a", "{}/chunked/a", "me:pass@{}/login/a"])
def test_the_same_bytes(server, objects, place):
    """Plain, after a redirect, in chunks, or behind a login in the URL."""
    uri = "http://" + place.format(server)
    info = objects.stat(uri)
    assert info == ObjectInfo(len(DATA), "a")
    for _ in range(2):
        assert bytes(objects.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
    assert objects.storage.figures.retries == 0


def test_what_is_told_of_objects(server, objects):
    """An empty object has a size, and so has one whose server ignores ranges; a login that is missing is denied."""
    assert objects.stat(f"http://{server}/empty/a") == ObjectInfo(0, "a")
    info = objects.stat(f"http://{server}/whole/a")
    assert info == ObjectInfo(len(DATA), "a")
    assert bytes(objects.read(f"http://{server}/whole/a", ByteRange(0, len(DATA)), info)) == DATA
    with pytest.raises(StorageError, match="401 Unauthorized who are you"):
        objects.stat(f"http://{server}/login/a")


@pytest.mark.parametrize("uri", ["http:///a", "http://host:port/a"])
def test_no_url(objects, uri):
    """What names no server is refused at once."""
    with pytest.raises(StorageError, match="this"):
        objects.stat(uri)
