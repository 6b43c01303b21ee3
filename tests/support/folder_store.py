"""A small object store over a folder, as far away as one likes: so long to each answer, so many bytes a second.

It speaks plain HTTP, and enough of S3 for reading (list, HEAD, ranges) by a StorageConfig whose `endpoint_url` it is.
It checks no signature and costs little CPU: what is measured before it is the client.

    with serving(folder, latency_s=0.05, bytes_per_s=125e6) as url: ...
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["serving"]

_CHUNK_BYTES = 128 << 10


class FolderStore:
    """Serves the files below a folder, each as `/folder/name`."""

    def __init__(self, root: Path, *, latency_s: float, bytes_per_s: float | None) -> None:
        self._root = root
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._pipe_free_s = 0.0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection, one after the other."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _version = head.partition("\r\n")[0].split(" ")
                headers = {key.lower(): value for key, value in re.findall(r"(?m)^([\w-]+): *(.*?)\r?$", head)}
                await asyncio.sleep(self._latency_s)
                await self._answer_one(method, target, headers, writer)
        writer.close()

    async def _answer_one(
        self, method: str, target: str, headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        url = urlsplit(target)
        query = parse_qs(url.query)
        if "list-type" in query:
            body = self._listed(unquote(url.path).strip("/"), query.get("prefix", [""])[0]).encode()
            writer.write(_head(HTTPStatus.OK, len(body), "Content-Type: application/xml") + body)
            return
        path = self._root / unquote(url.path).lstrip("/")
        if not path.is_file():
            writer.write(_head(HTTPStatus.NOT_FOUND, 0))
            return
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        start, stop = (int(asked[1]), min(size, int(asked[2]) + 1)) if asked else (0, size)
        status = HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK
        span = [f"Content-Range: bytes {start}-{stop - 1}/{size}"] if asked else []
        writer.write(_head(status, stop - start, f"ETag: {_etag_of(path)}", *span))
        if method == "GET":
            await self._send(path, start, stop, writer)

    async def _send(self, path: Path, start: int, stop: int, writer: asyncio.StreamWriter) -> None:
        await writer.drain()
        loop = asyncio.get_running_loop()
        with path.open("rb") as file:
            for at in range(start, stop, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, stop - at)
                await self._carry(count)
                if writer.transport.is_closing():
                    raise ConnectionResetError
                await loop.sendfile(writer.transport, file, at, count)

    async def _carry(self, num_bytes: int) -> None:
        """Waits until the one pipe that all answers share has carried so many bytes."""
        if self._bytes_per_s is not None:
            now_s = time.monotonic()
            self._pipe_free_s = max(now_s, self._pipe_free_s) + num_bytes / self._bytes_per_s
            await asyncio.sleep(self._pipe_free_s - now_s)

    def _listed(self, bucket: str, prefix: str) -> str:
        root = self._root / bucket
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{escape(_etag_of(path))}</ETag></Contents>"
            for path in sorted(root.rglob("*"))
            if path.is_file() and (key := path.relative_to(root).as_posix()).startswith(prefix)
        )
        return (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        )


def _etag_of(path: Path) -> str:
    return f'"{path.stat().st_mtime_ns:x}"'


def _head(status: HTTPStatus, length: int, *lines: str) -> bytes:
    told = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Length: {length}", *lines]
    return ("\r\n".join(told) + "\r\n\r\n").encode("latin-1")


@contextlib.contextmanager
def serving(folder: Path, *, latency_s: float = 0.0, bytes_per_s: float | None = None) -> Iterator[str]:
    """Runs a store over a folder in a process of its own; its URL."""
    command = [sys.executable, "-P", __file__, str(folder), str(latency_s), str(bytes_per_s or 0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def _serve(store: FolderStore) -> None:
    server = await asyncio.start_server(store.answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("latency_s", type=float)
    parser.add_argument("bytes_per_s", type=float, help="0 for as many as go")
    arguments = parser.parse_args()
    store = FolderStore(arguments.folder, latency_s=arguments.latency_s, bytes_per_s=arguments.bytes_per_s or None)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(store))


if __name__ == "__main__":
    main()
