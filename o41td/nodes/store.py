"""A `NodeStore`: results of nodes as Arrow IPC by key, in a folder or under any URL that fsspec knows.

    <root>/<two digits of the key>/<key>.arrow  =  digest of what follows ‖ Arrow IPC stream

A file comes to be under a name of its own and is then given the key's, so several processes may write the same key:
they write the same rows. Whatever is wrong with a file, it is as good as none, and its rows are computed again. A store
that cannot be written keeps nothing, and nothing fails for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import secrets
from pathlib import Path
from typing import Any

from o41td.errors import ConfigError

__all__ = ["NodeStore"]

_DIGEST_BYTES = 16
_SUFFIX = ".arrow"


class NodeStore:
    """Results by key.

    Attributes:
        hits: Results found by this process.
        misses: Results looked for in vain by this process.
        failure: Why the last result could not be kept; None where all could.

    Args:
        root: A folder, or a URL.
        options: What fsspec needs to reach the URL. They travel to the workers, and are shown nowhere.
    """

    def __init__(self, root: str | os.PathLike[str], **options: Any) -> None:
        text = os.fspath(root)
        if not text:
            raise ConfigError(f"a store is {root!r}, not a folder or a URL")
        self.root = text.rstrip("/") if "://" in text else os.path.abspath(text)
        self._options = options
        self._filesystem: Any = None
        self.hits = 0
        self.misses = 0
        self.failure: str | None = None

    @classmethod
    def of(cls, store: NodeStore | str | os.PathLike[str] | None) -> NodeStore:
        """The store that a user names; None is a folder of the user's own (by the password database)."""
        if isinstance(store, NodeStore):
            return store
        if store is None:
            store = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "o41td" / "nodes"
        return cls(store)

    def get(self, key: str) -> Any:
        """Returns the `pyarrow.RecordBatch` kept under a key; None where there is none.

        Blocks: on the store.
        """
        import pyarrow as pa

        try:
            data = self._read(self._path_of(key))
            digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if _digest_of(key, payload) == digest:
                with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
                    batch = reader.read_next_batch()
                self.hits += 1
                return batch
        except (OSError, pa.ArrowException, StopIteration):
            pass
        self.misses += 1
        return None

    def put(self, key: str, batch: Any) -> None:
        """Keeps a `pyarrow.RecordBatch` under a key, if that can be.

        Blocks: on the store.
        """
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        try:
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            payload = sink.getvalue().to_pybytes()
            self._write(self._path_of(key), _digest_of(key, payload) + payload)
        except (OSError, pa.ArrowException) as error:
            self.failure = f"{self.root}: {error}"

    @property
    def _is_remote(self) -> bool:
        return "://" in self.root

    def _path_of(self, key: str) -> str:
        return f"{self.root}/{key[:2]}/{key}{_SUFFIX}"

    def _read(self, path: str) -> bytes:
        if not self._is_remote:
            return Path(path).read_bytes()
        data: bytes = self._remote().cat_file(path)
        return data

    def _write(self, path: str, data: bytes) -> None:
        if self._is_remote:
            self._remote().pipe_file(path, data)  # an object is there whole or not at all
            return
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        partial = f"{folder}/.{secrets.token_hex(8)}.partial"
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)

    def _remote(self) -> Any:
        if self._filesystem is None:
            import fsspec

            self._filesystem, _path = fsspec.core.url_to_fs(self.root, **self._options)
        return self._filesystem

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], **state["options"])  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"NodeStore({self.root!r})"


def _digest_of(key: str, payload: bytes) -> bytes:
    """Of the key as well, so that a file under another name is none."""
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES, key=key.encode("ascii")[:64]).digest()
