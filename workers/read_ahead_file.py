"""A remote shard as a file that is read forwards, with a window ahead of the reader on its way.

Forwards in one run, as records are; or in several side by side, as the column chunks of a row group that is decoded in
slices. Each run has its own window, in parts that travel side by side. Going back, or far ahead, begins a run anew.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence

from o41td.workers.fetched_bytes import FetchedRange
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import ByteRange
from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ReadAheadFile"]

_PARTS = 4


class _Run:
    """One stretch of the object, read forwards."""

    def __init__(self, place: ByteRange) -> None:
        self.place = place
        self.parts: deque[FetchedRange] = deque()
        self.next_start = place.start

    def move_to(self, start: int) -> None:
        """Lets go of what lies behind, and begins anew where what is wanted is neither here nor next."""
        if self.parts and start < self.parts[0].place.start:
            self.restart_at(start)
        while self.parts and self.parts[0].place.stop <= start:
            self.parts.popleft()
        if not self.parts and self.next_start != start:
            self.restart_at(start)

    def restart_at(self, start: int) -> None:
        while self.parts:
            self.parts.pop().data.cancel()
        self.next_start = start


class ReadAheadFile(io.RawIOBase):
    """One object, or some runs of it.

    Called by: the thread that decodes.
    """

    def __init__(
        self, objects: RemoteObjects, uri: str, info: ObjectInfo, *, runs: Sequence[ByteRange], window_bytes: int
    ) -> None:
        """Stands at the beginning; all runs together have about `window_bytes` on their way, or here."""
        super().__init__()
        self._objects = objects
        self._uri = uri
        self._info = info
        self._at = 0
        self._runs = [_Run(place) for place in runs]
        self._part_bytes = max(1, window_bytes // max(1, len(runs)) // _PARTS)

    def read(self, size: int = -1) -> bytes:
        """Reads bytes, fewer only at the end.

        Raises:
            O41Error: As `Storage.fetch`.

        Blocks: on the store, for what has not come yet.
        """
        stop = self._info.size_bytes if size < 0 else min(self._at + size, self._info.size_bytes)
        parts = []
        while self._at < stop:
            part = self._part_at(self._at, stop)
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def readinto(self, buffer: object) -> int:
        """Reads bytes into a buffer."""
        into = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

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

    def close(self) -> None:
        """Lets go of everything; what is still on its way is not waited for."""
        for run in self._runs:
            run.restart_at(run.place.start)
        super().close()

    def _part_at(self, start: int, stop: int) -> memoryview:
        run = next((run for run in self._runs if run.place.start <= start < run.place.stop), None)
        if run is None:
            edge = min([stop, *(run.place.start for run in self._runs if run.place.start > start)])
            return self._objects.read(self._uri, ByteRange(start, edge), self._info)
        run.move_to(start)
        while len(run.parts) < _PARTS and run.next_start < run.place.stop:
            part = ByteRange(run.next_start, min(run.next_start + self._part_bytes, run.place.stop))
            run.parts.append(self._objects.begin(self._uri, part, self._info))
            run.next_start = part.stop
        place, data = run.parts[0]
        return self._objects.storage.result_of(data)[start - place.start : min(stop, place.stop) - place.start]
