"""The index cache: footers read once are not read again, while the file is the same.

One msgpack file per (folder of shards, projected fields) in `~/.cache/o41td/index` of the user (by the password
database; the environment is not asked). An entry is good while the file's size, modification time and inode are what
they were, or a remote object's size and etag. Files are replaced atomically and carry a checksum, so writers may race
(the last one wins, nothing breaks) and a torn file is no file. The cache only ever saves time: whatever is wrong with
it, footers are read instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack

__all__ = ["IndexCache", "default_cache_folder", "file_identity"]

_FORMAT = 3
_MAX_FILES = 256
_CHECKSUM_BYTES = 16

FileIdentity = tuple[int, int, int | str | None]
"""(size, modification time in ns, inode) of a local file; (size, 0, etag or None) of a remote object."""


def default_cache_folder() -> Path:
    """Returns the per-user folder; it need not exist."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "o41td" / "index"


def file_identity(path: str) -> FileIdentity:
    """Returns (size, modification time in ns, inode) of a local file.

    Raises:
        OSError: There is no such file.
    """
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


class IndexCache:
    """Cached footers of shards for one set of projected fields."""

    def __init__(self, folder: Path, fields: Sequence[Mapping[str, Any]]) -> None:
        """`fields` are FieldPlan records; other fields have other entries, since a footer is checked against them."""
        self._folder = folder
        self._signature = hashlib.blake2b(bytes(msgpack.packb([_FORMAT, list(fields)])), digest_size=8).hexdigest()
        self._loaded: dict[str, dict[str, list[Any]]] = {}
        self._new: dict[str, dict[str, list[Any]]] = {}

    def get(self, path: str, identity: FileIdentity) -> list[Any] | None:
        """Returns what was put for this file, or None."""
        parent, name = os.path.split(path)
        entries = self._loaded.get(parent)
        if entries is None:
            entries = self._loaded[parent] = self._read(parent)
        entry = entries.get(name)
        return entry[1] if entry is not None and tuple(entry[0]) == identity else None

    def put(self, path: str, identity: FileIdentity, value: list[Any]) -> None:
        """Remembers a msgpack-able value, once `save` is called."""
        parent, name = os.path.split(path)
        self._new.setdefault(parent, {})[name] = [list(identity), value]

    def save(self) -> None:
        """Writes what is new; a folder that cannot be written is no error."""
        for parent, entries in self._new.items():
            with contextlib.suppress(OSError):
                self._write(parent, {**self._read(parent), **entries})
        if self._new:
            self._prune()
        self._new.clear()

    def _path_of(self, parent: str) -> Path:
        name = hashlib.blake2b(f"{parent}\0{self._signature}".encode("utf-8", "surrogateescape"), digest_size=16)
        return self._folder / f"{name.hexdigest()}.msgpack"

    def _read(self, parent: str) -> dict[str, list[Any]]:
        try:
            data = self._path_of(parent).read_bytes()
        except OSError:
            return {}
        checksum, payload = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest() != checksum:
            return {}
        with contextlib.suppress(ValueError, msgpack.UnpackException, AttributeError, TypeError):
            kept_parent, entries = msgpack.unpackb(payload, unicode_errors="surrogateescape")
            if kept_parent == os.fsencode(parent):
                return dict(entries)
        return {}

    def _write(self, parent: str, entries: dict[str, list[Any]]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path_of(parent)
        payload = bytes(msgpack.packb([os.fsencode(parent), entries], unicode_errors="surrogateescape"))
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_bytes(hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest() + payload)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _prune(self) -> None:
        """Keeps the newest files, so that the cache stays small without anybody's care."""
        with contextlib.suppress(OSError):
            files = sorted(self._folder.glob("*.msgpack"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
            for path in files[_MAX_FILES:]:
                path.unlink(missing_ok=True)
