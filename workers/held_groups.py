"""What is decoded of row groups that were read in part, kept for their next slices: `HeldGroups`."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import pyarrow as pa

from o41td.workers.row_group_stream import RowGroupStream

__all__ = ["HeldGroups"]


class HeldGroups:
    """Decoded row groups and open streams that were read in part, kept for their next slice.

    The least recently used leave when all together would take more than the limit, or be more than are read side by
    side: a unit whose last slice another worker was given would stay for good. One is always kept.

    Args:
        limit_bytes: The limit, about.
        limit_units: How many there may be.
    """

    def __init__(self, limit_bytes: int, limit_units: int = sys.maxsize) -> None:
        self.limit_bytes = limit_bytes
        self.limit_units = limit_units
        self._held: OrderedDict[tuple[int, int], tuple[Any, int]] = OrderedDict()

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._held

    def get(self, key: tuple[int, int]) -> Any:
        """What is held of (reader, row group), or None."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def make_room(self, nbytes: int) -> None:
        """Lets go of what would not fit beside one more of so many bytes: called before it is decoded."""
        while self._held and (
            len(self._held) >= self.limit_units
            or sum(size for _, size in self._held.values()) + nbytes > self.limit_bytes
        ):
            self.drop(next(iter(self._held)))

    def put(self, key: tuple[int, int], group: Any, nbytes: int) -> None:
        """Keeps a table or stream."""
        self.drop(key)
        self.make_room(nbytes)
        self._held[key] = (group, nbytes)

    def drop(self, key: tuple[int, int]) -> None:
        """Lets go of one."""
        group, _ = self._held.pop(key, (None, 0))
        if isinstance(group, RowGroupStream):
            group.close()
            del group
            # The allocator would keep its pages beside the next stream's: 40 MiB with 60 columns. Takes 1 to 3 ms.
            pa.default_memory_pool().release_unused()

    def drop_reader(self, reader: int) -> None:
        """Lets go of all that a reader has."""
        for key in [key for key in self._held if key[0] == reader]:
            self.drop(key)
