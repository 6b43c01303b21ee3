"""What every view of an object as a file has: a place in it, and reads that are put together out of parts."""

from __future__ import annotations

import io
from abc import abstractmethod

from o41td.workers.object_store import ObjectInfo
from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ObjectFile"]


class ObjectFile(io.RawIOBase):
    """One object, read at a place that moves.

    Called by: the thread that decodes.
    """

    def __init__(self, objects: RemoteObjects, uri: str, info: ObjectInfo) -> None:
        """Stands at the beginning of an object; `info` says what it must be."""
        super().__init__()
        self._objects = objects
        self._uri = uri
        self._info = info
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def _read_parts(self, size: int) -> list[memoryview]:
        """Returns the next `size` bytes (negative: all) in parts, fewer only at the end, and goes behind them.

        Raises:
            O41Error: As `Storage.fetch`.

        Blocks: on the store, for what is not here.
        """
        stop = self._info.size_bytes if size < 0 else min(self._at + size, self._info.size_bytes)
        parts = []
        while self._at < stop:
            part = self._part_at(self._at, stop)
            parts.append(part)
            self._at += len(part)
        return parts

    @abstractmethod
    def _part_at(self, start: int, stop: int) -> memoryview:
        """Returns the bytes from a place on, as many as there are in one piece."""
