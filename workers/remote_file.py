"""A remote shard as a file for Arrow: read at any place, out of what was fetched ahead, else as it is asked for.

Arrow asks for one column chunk after the other and waits for each. What a row group needs is therefore asked for in a
few requests side by side before Arrow begins: mostly by `BlockFetcher`, while the block before is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from o41td.memory_costs import FETCH_WASTE
from o41td.workers.fetched_bytes import FetchedRange
from o41td.workers.object_file import ObjectFile
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import ByteRange, covered, plan_requests
from o41td.workers.remote_objects import RemoteObjects, ranges_over

__all__ = ["MAX_GAP_BYTES", "MAX_WASTE", "PART_BYTES", "RemoteFile"]

MAX_GAP_BYTES = 256 << 10
MAX_WASTE = FETCH_WASTE - 1
PART_BYTES = 4 << 20


class RemoteFile(ObjectFile):
    """One object. It is not checked that it is still there before something of it is read.

    Called by: the thread that decodes.
    """

    def __init__(self, objects: RemoteObjects, uri: str, info: ObjectInfo) -> None:
        """Stands at the beginning of an object; `info` says what it must be."""
        super().__init__(objects, uri, info)
        self._held: list[FetchedRange] = []

    @contextlib.contextmanager
    def holding(self, ranges: Sequence[ByteRange]) -> Iterator[None]:
        """Has all that some ranges lack on its way, side by side, and keeps it until the block is left."""
        tail = self._objects.known_tail(self._uri, self._info)
        here = ranges_over(tail, self._objects.fetched.ranges_of(self._uri))
        if self._objects.fetched.error_of(self._uri) is None:
            lacking = [wanted for wanted in ranges if not covered(wanted, here)]
            self._held = [
                self._objects.begin(self._uri, wanted, self._info)
                for wanted in plan_requests(
                    lacking, max_gap_bytes=MAX_GAP_BYTES, max_waste=MAX_WASTE, part_bytes=PART_BYTES
                )
            ]
        try:
            yield
        finally:
            for fetched in self._held:
                fetched.data.cancel()
            self._held = []

    def read(self, size: int = -1) -> memoryview:  # Arrow takes any buffer
        """Reads bytes, fewer only at the end.

        Raises:
            O41Error: As `Storage.fetch`.

        Blocks: on the store, for what is not here.
        """
        parts = self._read_parts(size)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _part_at(self, start: int, stop: int) -> memoryview:
        """The bytes from a place on, as many as one fetched range has, or as lie before the next."""
        ranges = [*self._held, *self._objects.fetched.ranges_of(self._uri)]
        for place, data in ranges:
            if place.start <= start < place.stop:
                return self._result_of(data)[start - place.start : min(stop, place.stop) - place.start]
        tail = self._objects.known_tail(self._uri, self._info)
        if tail is not None and tail.start <= start:
            return tail.data[start - tail.start : stop - tail.start]
        error = self._objects.fetched.error_of(self._uri)
        if error is not None:
            raise error
        stop = min([stop, *(place.start for place, _data in ranges if place.start > start)])
        return self._objects.read(self._uri, ByteRange(start, stop), self._info)

    def _result_of(self, data: Future[memoryview]) -> memoryview:
        return self._objects.storage.result_of(data)
