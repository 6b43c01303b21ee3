"""The memory that the bytes of a range come into, attempt after attempt; they stay there until they are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["RangeBuffer"]


class RangeBuffer:
    """A range of an object, as far as it has come.

    Attributes:
        data: All of it.
        num_received: How much of it has come.
        on_bytes: Told how many bytes came, each time some do.

    Called by: the storage thread.
    """

    def __init__(self, wanted: ByteRange) -> None:
        """Nothing has come yet."""
        self._wanted = wanted
        self.data: memoryview = np.empty(wanted.num_bytes, np.uint8).data
        self.num_received = 0
        self.on_bytes: Callable[[int], None] = lambda _count: None

    @property
    def rest(self) -> ByteRange:
        """What has not come."""
        return ByteRange(self._wanted.start + self.num_received, self._wanted.stop)

    @property
    def free(self) -> memoryview:
        """Where the next bytes belong; whoever writes there says so to `note`."""
        return self.data[self.num_received :]

    def note(self, count: int) -> None:
        """So many bytes were written to the beginning of `free`."""
        self.num_received += count
        self.on_bytes(count)

    def take(self, chunk: bytes | bytearray | memoryview) -> None:
        """Copies the next bytes in.

        Raises:
            StoreFault: There is no room for them.
        """
        free = self.free
        if len(chunk) > len(free):
            raise StoreFault(FaultKind.REFUSED, "more bytes came than were asked for")
        free[: len(chunk)] = chunk
        self.note(len(chunk))
