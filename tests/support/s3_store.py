"""An S3 server for tests, moto's, with one bucket a test behind a `FaultyProxy`."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from faulty_proxy import FaultyProxy
from o41td import StorageConfig

KEY = "the-key-id"
SECRET = "the-secret-key"
_SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"}


@contextlib.contextmanager
def s3_server() -> Iterator[tuple[str, int]]:
    """Runs moto's server; its address."""
    from moto.server import ThreadedMotoServer  # takes a second

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()
    finally:
        server.stop()


@dataclass
class S3Bucket:
    """A bucket of its own for one test."""

    name: str
    proxy: FaultyProxy

    @property
    def storage(self) -> StorageConfig:
        """How to reach it, through the proxy."""
        return self.storage_with()

    def storage_with(self, **keys: Any) -> StorageConfig:
        """The same with other settings."""
        settings = {"region": "us-east-1", "access_key_id": KEY, "secret_access_key": SECRET, **keys}
        return StorageConfig(endpoint_url=self.proxy.url, **settings)

    def uri(self, key: str) -> str:
        """An object's URI."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> str:
        """Writes an object past the proxy; its URI."""
        self._ask("PUT", f"/{self.name}/{quote(key)}", data)
        return self.uri(key)

    def put_files(self, paths: list[Path], prefix: str = "data/") -> list[str]:
        """Writes files as objects below a prefix; their URIs."""
        return [self.put(prefix + path.name, path.read_bytes()) for path in paths]

    def delete(self, key: str) -> None:
        """Removes an object."""
        self._ask("DELETE", f"/{self.name}/{quote(key)}")

    def create(self) -> None:
        """Makes the bucket."""
        self._ask("PUT", f"/{self.name}")

    def _ask(self, method: str, path: str, data: bytes = b"") -> None:
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=60)
        try:
            connection.request(method, path, body=data, headers=_SIGNED)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, (answer.status, text)
        finally:
            connection.close()


@contextlib.contextmanager
def s3_bucket(server: tuple[str, int]) -> Iterator[S3Bucket]:
    """Makes a bucket, and a proxy to reach it through.

    No other has its name, also in another process with a server of its own: footers are kept for the user, by URI, and
    those of one test's shards would take the place of another's.
    """
    with FaultyProxy(server, signature=_SIGNED).running() as proxy:
        bucket = S3Bucket(f"bucket-{os.urandom(6).hex()}", proxy)
        bucket.create()
        yield bucket
