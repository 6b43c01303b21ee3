"""The block cache's folder on disk: finding files, putting new ones in whole, and letting the oldest go.

    cache_dir/o41td-blocks/3f/3f9c…a1.block        a unit's rows, by the digest that is its key
                              3f9c…a1.4711-2.partial   one that is being written, by process 4711

There is no lock and no list: the directory is the only truth, so whoever is killed leaves nothing in disorder, and
nobody waits for a process that is stopped. A file is written under another name and renamed, so it is there whole or
not at all; who has opened one keeps it, though another process removes its name. What several processes write of one
unit is the same, and the last one stays.

Nothing is synced. After the machine crashed a file may hold anything, which its checksums tell; a cache that is lost
costs time only, and syncing would cost it always.

Use is a file's modification time, set at each opening; the least recently used go first. A process looks through the
folder when that may have become too large: after it wrote a sixteenth of what was free at its last look, or a 256th of
the limit where that is more. Then it removes what is above 15/16 of the limit. So what up to 16 processes write
meanwhile is within the limit too. Some of the file system is always left to others, and the cache gives way to them: a
twentieth of it, 8 GiB at most.

Only files of exactly these names are ever removed, so a folder that holds other things, even shards, is safe.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["CacheFolder", "CachedFile", "Evicted", "NotKept"]

FOLDER_NAME = "o41td-blocks"
_BLOCK = re.compile(r"[0-9a-f]{32}\.block")
_PARTIAL = re.compile(r"[0-9a-f]{32}\.\d+-\d+\.partial")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_ABANDONED_S = 900.0
"""A file that has been in the writing for so long will not be finished: its process was killed."""

_DISK_BLOCK_BYTES = 512
_RESERVE_PART = 20
_MOST_RESERVE_BYTES = 8 << 30
_numbers = itertools.count()


class NotKept(Exception):
    """A file is larger than the whole cache may be, or somebody has cleared the cache meanwhile."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache: its size on disk, and when it was used last (ns since the epoch)."""

    path: str
    num_bytes: int
    used_ns: int
    is_partial: bool


@dataclass(frozen=True, slots=True)
class Evicted:
    """What was removed to make room."""

    num_files: int = 0
    num_bytes: int = 0


class CacheFolder:
    """The folder of a cache.

    Args:
        path: `cache_dir`; it need not exist.
        limit_bytes: The most that files in it may take; None is what the disk has to spare.
    """

    def __init__(self, path: str, limit_bytes: int | None = None) -> None:
        self.path = os.path.join(path, FOLDER_NAME)
        self._limit_bytes = limit_bytes
        self._written_bytes = 0  # since the last look
        self._look_after_bytes = -1  # the first look is before the first file
        self._ceiling_bytes = 0

    def open(self, key: str) -> int | None:
        """Opens a file for reading and notes its use; None where there is none that can be read."""
        try:
            descriptor = os.open(self._path_of(key), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        with contextlib.suppress(OSError):  # somebody else's, or on a read-only disk: then its use is not noted
            os.utime(descriptor)
        return descriptor

    def has(self, key: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self._path_of(key))

    def put(self, key: str, write: Callable[[int], int]) -> tuple[int, Evicted]:
        """Puts a file in, whole: `write` fills the descriptor that it is given and returns the bytes.

        Returns:
            The bytes written, and what had to go.

        Raises:
            NotKept: It is larger than the limit, or the cache is being cleared.
            OSError: The folder cannot be written, or the disk is full.
            Exception: What `write` raises.
        """
        path = self._path_of(key)
        partial = f"{path.removesuffix('.block')}.{os.getpid()}-{next(_numbers)}.partial"
        descriptor = self._create(partial)
        try:
            try:
                num_bytes = write(descriptor)
            finally:
                os.close(descriptor)
            evicted = self._make_room(num_bytes)
            try:
                os.rename(partial, path)
            except FileNotFoundError as error:
                raise NotKept from error
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        return num_bytes, evicted

    def discard(self, key: str) -> bool:
        """Removes a file that is damaged; returns whether it is gone."""
        try:
            os.unlink(self._path_of(key))
        except OSError:
            return not self.has(key)
        return True

    def files(self) -> Iterator[CachedFile]:
        """Yields every file of the cache, in no order.

        Blocks: for some microseconds a file.
        """
        for folder in _entries(self.path):
            if not _FAN_OUT.fullmatch(folder.name):
                continue
            for entry in _entries(folder.path):
                is_partial = _PARTIAL.fullmatch(entry.name) is not None
                if is_partial or _BLOCK.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # removed meanwhile
                        found = entry.stat(follow_symlinks=False)
                        num_bytes = max(found.st_size, found.st_blocks * _DISK_BLOCK_BYTES)
                        yield CachedFile(entry.path, num_bytes, found.st_mtime_ns, is_partial)

    def clear(self) -> Evicted:
        """Removes every file of the cache; those in use go when they are closed.

        Raises:
            OSError: One cannot be removed.
        """
        num_files = num_bytes = 0
        for file in self.files():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.path)
                num_files, num_bytes = num_files + 1, num_bytes + file.num_bytes
        for folder in _entries(self.path):
            if _FAN_OUT.fullmatch(folder.name):
                with contextlib.suppress(OSError):
                    os.rmdir(folder.path)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        return Evicted(num_files, num_bytes)

    def _path_of(self, key: str) -> str:
        return os.path.join(self.path, key[:2], f"{key}.block")

    def _create(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o666)

    def _make_room(self, num_bytes: int) -> Evicted:
        """Counts what has been written, and looks through the folder where it is time for that."""
        self._written_bytes += num_bytes
        if self._written_bytes <= self._look_after_bytes and num_bytes <= self._ceiling_bytes:
            return Evicted()
        files = list(self.files())  # the one that is being put in is among them
        total = sum(file.num_bytes for file in files)
        limit = self._limit_now(total)
        self._ceiling_bytes = limit * 15 // 16
        if num_bytes > self._ceiling_bytes:
            if self._limit_bytes is not None and num_bytes > self._limit_bytes * 15 // 16:
                raise NotKept
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        evicted = self._evict(files, total - self._ceiling_bytes)
        left_bytes = self._ceiling_bytes - (total - evicted.num_bytes)
        self._written_bytes, self._look_after_bytes = 0, max(limit // 256, left_bytes // 16)
        return evicted

    def _limit_now(self, total_bytes: int) -> int:
        """The limit, or less where the disk has less to spare."""
        disk = os.statvfs(self.path)
        reserve_bytes = min(_MOST_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _RESERVE_PART)
        spare_bytes = max(0, total_bytes + disk.f_bavail * disk.f_frsize - reserve_bytes)
        return spare_bytes if self._limit_bytes is None else min(self._limit_bytes, spare_bytes)

    def _evict(self, files: list[CachedFile], excess_bytes: int) -> Evicted:
        """Removes the files used least recently, so many bytes or more; and what was never finished."""
        num_files = num_bytes = 0
        abandoned_ns = time.time_ns() - int(_ABANDONED_S * 1e9)
        for file in sorted(files, key=lambda file: file.used_ns):
            if file.is_partial and file.used_ns >= abandoned_ns:
                continue
            if file.is_partial or num_bytes < excess_bytes:
                with contextlib.suppress(OSError):  # another process was quicker
                    os.unlink(file.path)
                num_files, num_bytes = num_files + 1, num_bytes + file.num_bytes
        return Evicted(num_files, num_bytes)


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        yield from entries
