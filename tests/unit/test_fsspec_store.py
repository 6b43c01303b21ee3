"""Objects of protocols that fsspec knows: file systems are made as the StorageConfig says, and watched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from memory_objects import memory_objects
from o41td import StorageConfig
from o41td.errors import ChangedDataError, MissingShardError, StorageError
from o41td.workers import fsspec_store
from o41td.workers.object_store import StorageSettings
from o41td.workers.ranges import ByteRange
from o41td.workers.remote_objects import RemoteObjects
from o41td.workers.storage import Storage

DATA = os.urandom(50_000)
WANTED = ByteRange(1000, 40_000)
SECRET = "hunter2-hunter2"


@contextlib.contextmanager
def reaching(**filesystems: dict[str, object]) -> Iterator[RemoteObjects]:
    """What a worker reads with, in this process."""
    config = StorageConfig(filesystems=filesystems, give_up_after_s=2.0)
    storage = Storage(StorageSettings.from_record(config.secret_record()))
    try:
        yield RemoteObjects(storage)
    finally:
        storage.close()


def check_reading(objects: RemoteObjects, folder: str, name: str = "a.parquet") -> None:
    """Looks at an object, reads several ranges of it at once, lists its folder, and misses another."""
    uri = f"{folder}/{name}"
    info = objects.stat(uri)
    assert info.size_bytes == len(DATA)
    assert info.etag is not None
    begun = [objects.begin(uri, ByteRange(start, start + 5000), info) for start in range(0, 45_000, 5000)]
    for place, data in begun:
        assert bytes(data.result()) == DATA[place.start : place.stop]
    storage = objects.storage
    assert storage.result_of(storage.start(storage.listed(f"{folder}/"))) == [(uri, info)]
    with pytest.raises(MissingShardError, match=re.escape(f"{folder}/none")):
        objects.stat(f"{folder}/none")


class HereFileSystem(MemoryFileSystem):
    """The same objects as fsspec's own in memory, under other protocols."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.partition("://")[2] or path)


class ThreadBoundFileSystem(HereFileSystem):
    """One that, like a connection, is of the thread that made it, and is made with a password."""

    protocol = "bound"
    cachable = False

    def __init__(self, password: str, **keys: object) -> None:
        super().__init__(**keys)
        assert password == SECRET
        self.thread = threading.get_ident()

    def cat_file(self, path: str, **keys: object) -> bytes:
        assert threading.get_ident() == self.thread
        return super().cat_file(path, **keys)


class WholeFileSystem(HereFileSystem):
    """One whose server ignores ranges."""

    protocol = "whole"

    def cat_file(self, path: str, **_keys: object) -> bytes:
        return super().cat_file(path)


class BusyFileSystem(HereFileSystem):
    """One whose library tells statuses in its own way."""

    protocol = "busy"
    statuses: tuple[int, ...] = ()

    def cat_file(self, path: str, **keys: object) -> bytes:
        if BusyFileSystem.statuses:
            error = RuntimeError("the library's own words")
            error.status_code, *rest = BusyFileSystem.statuses
            BusyFileSystem.statuses = tuple(rest)
            raise error
        return super().cat_file(path, **keys)


@pytest.fixture
def memory():
    """An object in this process's memory, under every protocol of this file."""
    for kind in (ThreadBoundFileSystem, WholeFileSystem, BusyFileSystem):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    with memory_objects({"memory://fsspec-store/a.parquet": DATA}) as objects:
        yield objects


def test_arguments_come_from_the_config(memory):
    """A file system is made with what the config says, one for each thread that calls one."""
    with reaching(bound={"password": SECRET}) as objects:
        check_reading(objects, "bound://fsspec-store")


def test_without_arguments_nothing_is_looked_for(memory):
    """A protocol that would ask its surroundings for credentials is refused, with what to do; so are chains."""
    with reaching() as objects:
        with pytest.raises(StorageError, match=r"ambient_credentials.*filesystems.*'bound'"):
            objects.stat("bound://fsspec-store/a.parquet")
        with pytest.raises(StorageError, match="one over the other"):
            objects.stat("simplecache::memory://fsspec-store/a.parquet")
    with reaching(bound={"passwort": SECRET}) as objects, pytest.raises(StorageError, match="password"):
        objects.stat("bound://fsspec-store/a.parquet")


def test_more_than_was_asked_for_is_no_range(memory):
    """Bytes from a store that ignores ranges are never taken for those that were wanted."""
    with reaching(whole={}) as objects:
        info = objects.stat("whole://fsspec-store/a.parquet")
        with pytest.raises(StorageError, match="no ranges"):
            objects.read("whole://fsspec-store/a.parquet", WANTED, info)


@pytest.mark.parametrize(
    ("statuses", "error"),
    [((503, 429), None), ((404,), MissingShardError), ((412,), ChangedDataError), ((400,), StorageError)],
    ids=["busy", "missing", "changed", "refused"],
)
def test_statuses_of_libraries_are_understood(memory, statuses, error):
    """An exception that tells an HTTP status means what the status means."""
    BusyFileSystem.statuses = statuses
    with reaching(busy={}) as objects:
        info = objects.stat("busy://fsspec-store/a.parquet")
        with pytest.raises(error) if error is not None else contextlib.nullcontext():
            assert (
                bytes(objects.read("busy://fsspec-store/a.parquet", WANTED, info)) == DATA[WANTED.start : WANTED.stop]
            )


def test_an_object_that_is_replaced_in_mid_run_is_refused(memory, monkeypatch):
    """Though its store tells nothing with an answer, the next look at it does."""
    monkeypatch.setattr(fsspec_store, "_LOOK_EVERY_S", 0.0)
    uri = "memory://fsspec-store/a.parquet"
    info = memory.stat(uri)
    assert bytes(memory.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
    fsspec.filesystem("memory").pipe_file(uri, DATA[::-1])
    with pytest.raises(ChangedDataError, match="changed after it was indexed"):
        memory.read(uri, WANTED, info)


def test_archives(tmp_path):
    """A zip:// file system over a local archive."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/a.parquet", DATA)
    with reaching(zip={"fo": str(tmp_path / "all.zip")}) as objects:
        check_reading(objects, "zip://data")


@pytest.mark.filterwarnings("ignore:The async(ore|hat) module")  # which pyftpdlib takes its own of, or the old
def test_ftp(tmp_path):
    """A server that lets nobody in without a password, and carries one conversation a connection."""
    pytest.importorskip("pyftpdlib")
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.parquet").write_bytes(DATA)
    users = DummyAuthorizer()
    users.add_user("me", SECRET, str(tmp_path), perm="elr")
    server = ThreadedFTPServer(("127.0.0.1", 0), type("Handler", (FTPHandler,), {"authorizer": users}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        given = {"host": "127.0.0.1", "port": server.socket.getsockname()[1], "username": "me"}
        with reaching(ftp={**given, "password": SECRET}) as objects:
            check_reading(objects, "ftp://127.0.0.1/data")
        with reaching(ftp={**given, "password": "another"}) as objects:
            with pytest.raises(StorageError, match="access is denied") as caught:
                objects.stat("ftp://127.0.0.1/data/a.parquet")
            assert "another" not in str(caught.value)
    finally:
        server.close_all()


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as reading the dataset `who/what` takes."""

    folder: Path

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Answers who knows the token."""
        path = self.path.partition("?")[0]
        entries = re.fullmatch("/api/datasets/who/what/tree/main/(.*)", path)
        file = re.fullmatch("/datasets/who/what/resolve/main/(.*)", path)
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            self.reply(401, b"{}")
        elif path == "/api/datasets/who/what":
            self.reply(200, json.dumps({"id": "who/what", "sha": "0" * 40}).encode())
        elif entries and (self.folder / entries[1]).is_dir():
            found = [
                {
                    "type": "file",
                    "path": each.relative_to(self.folder).as_posix(),
                    "size": each.stat().st_size,
                    "oid": hashlib.sha1(each.read_bytes(), usedforsecurity=False).hexdigest(),
                }
                for each in sorted((self.folder / entries[1]).iterdir())
            ]
            self.reply(200, json.dumps(found).encode())
        elif file and (self.folder / file[1]).is_file():
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self.reply(206, (self.folder / file[1]).read_bytes()[first : last + 1])
        else:
            self.reply(404, b"{}")

    def reply(self, status: int, body: bytes) -> None:
        """Sends an answer."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_hub(tmp_path):
    """A dataset of the Hugging Face Hub, by a token of the config; a file that is replaced is seen to be another."""
    pytest.importorskip("huggingface_hub")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.parquet").write_bytes(DATA)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Hub,), {"folder": tmp_path}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        given = {"endpoint": f"http://127.0.0.1:{server.server_port}", "token": SECRET}
        with reaching(hf=given) as objects:
            check_reading(objects, "hf://datasets/who/what/data")
            before = objects.stat("hf://datasets/who/what/data/a.parquet")
            (tmp_path / "data/a.parquet").write_bytes(DATA[::-1])
            assert objects.stat("hf://datasets/who/what/data/a.parquet").etag != before.etag
        with reaching(hf={**given, "token": False}) as objects, pytest.raises((StorageError, MissingShardError)):
            objects.stat("hf://datasets/who/what/data/a.parquet")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
