"""Handles that a network file system lost: opened again, wherever local shards are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import record_writer
from o41td.errors import ChangedDataError, StorageError
from o41td.fields import FieldPlan
from o41td.workers import footer
from o41td.workers.footer import read_footer
from o41td.workers.lost_handles import LocalFile
from o41td.workers.record_count import count_records
from o41td.workers.record_reader import RecordReader
from o41td.workers.row_values import values_of_rows

ID = FieldPlan(name="id", source="id", dtype="i64")
NUM_ROWS = 5000
RECORDS = [{"id": row, "text": "x" * (row % 97)} for row in range(NUM_ROWS)]


class Server:
    """A file server for `os.readv`: counts reads over all handles, and loses the handle of some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.lost_at: set[int] = set()
        self.on_loss: Callable[[], object] = lambda: None
        self._readv = os.readv
        monkeypatch.setattr(os, "readv", self._read)

    def _read(self, *arguments: Any) -> int:
        self.reads += 1
        if self.reads in self.lost_at:
            self.on_loss()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._readv(*arguments)

    def after(self, *lost_at: int) -> None:
        """Counts anew, and loses the handles of these reads."""
        self.reads, self.lost_at = 0, set(lost_at)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server of all that a test reads."""
    return Server(monkeypatch)


@pytest.fixture(params=["jsonl.gz", "msgpack.zstf"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A shard of NUM_ROWS records, and its encoding."""
    path = tmp_path / f"a.{request.param}"
    if request.param == "jsonl.gz":
        text = "".join(f'{{"id": {row["id"]}, "text": "{row["text"]}"}}\n' for row in RECORDS)
        record_writer.write_lines(path, text.encode())
    else:
        record_writer.write_frames(path, RECORDS)
    return str(path), request.param


def ids_of(path: str, encoding: str) -> list[int]:
    """The ids of all records, read in three slices."""
    reader = RecordReader(path, [ID], encoding=encoding, source="s")
    try:
        found = []
        for start, stop in ((0, 100), (100, 4000), (4000, NUM_ROWS)):
            rows = reader.read_rows(0, start, stop)
            out = {"id": pa.array([0] * (stop - start)).to_numpy(zero_copy_only=False).copy()}
            reader.projector.write(rows, out, row_offset_in_shard=start, shard=path, source="s")
            found += out["id"].tolist()
        return found
    finally:
        reader.close()


def test_records_are_read_and_counted_on(server: Server, shard: tuple[str, str]) -> None:
    """Each read in turn is the one whose handle is lost: the same records; two in a row are an error with the path."""
    for read in (lambda: ids_of(*shard), lambda: count_records(*shard, [ID])):
        server.after()
        whole = read()
        assert server.reads > 1
        for lost in range(1, server.reads + 1):
            server.after(lost)
            assert read() == whole
        server.after(2, 3)
        with pytest.raises(StorageError, match=f"Stale file handle.*{shard[0]}"):
            read()
    assert ids_of(*shard) == list(range(NUM_ROWS))


def test_another_file_of_the_name_is_refused(server: Server, shard: tuple[str, str]) -> None:
    """Opened anew it has to be the file that was begun; a row is never read out of two."""
    path, encoding = shard

    def replace() -> None:
        Path(f"{path}.new").write_bytes(Path(path).read_bytes() + b"\0" * 100)
        os.replace(f"{path}.new", path)

    server.on_loss = replace
    server.after(3)
    with pytest.raises(ChangedDataError, match=path):
        count_records(path, encoding, [ID])


def test_a_footer_is_read_on(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of a footer in turn, and of a row that `trace --show` shows, is the one whose handle is lost."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": list(range(100))}), path, row_group_size=40)
    monkeypatch.setattr(footer, "open_shard_file", lambda name: pa.PythonFile(Remembered(server, name), mode="r"))
    for read in (
        lambda: (read_footer(None, path, [ID]).version, read_footer(None, path, [ID]).rows.tolist()),
        lambda: values_of_rows([(path, "parquet", 1, 7)], [("id", None)], None),
    ):
        server.after()
        whole = read()
        num_reads = server.reads
        assert num_reads > 1
        for lost in range(1, num_reads + 1):
            server.after(lost)
            assert read() == whole
    server.after(1, 2)
    with pytest.raises(StorageError, match=f"Stale file handle.*{path}"):
        read_footer(None, path, [ID])


class Remembered:
    """A file that keeps its first handle, as Arrow's own does, and never opens it anew."""

    closed = False

    def __init__(self, server: Server, path: str) -> None:
        self._server = server
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed as Arrow closes it

    def read(self, size: int = -1) -> bytes:
        """Reads on, past the server's count."""
        buffer = bytearray(size if size >= 0 else os.fstat(self._file.fileno()).st_size - self._file.tell())
        count = os.readv(self._file.fileno(), [buffer])
        return bytes(buffer[:count])

    def seek(self, offset: int, whence: int = 0) -> int:
        """Goes to a place."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The place."""
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self.closed = True
        self._file.close()


def test_a_local_file_is_a_file(tmp_path: Path) -> None:
    """It reads, seeks from either end, and closes its descriptor once."""
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    with LocalFile(str(path)) as file:
        assert (file.read(3), file.tell(), file.seek(-2, 2), file.read(), file.read()) == (b"\0\1\2", 3, 98, b"bc", b"")
        assert (file.seek(10), file.seek(5, 1), file.read(1)) == (10, 15, b"\x0f")
    file.close()
    with pytest.raises(FileNotFoundError):
        LocalFile(str(tmp_path / "absent"))
