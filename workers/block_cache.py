"""The block cache of one worker: units by key, found, kept, counted; and what to tell when it cannot keep any more.

A cache only ever saves time. Whatever is wrong with a file, it is removed and its rows are decoded anew; if the folder
cannot be written, nothing more is kept, which is told once, and what is there goes on being used.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from o41td.workers.block_cache_file import BrokenUnit, CachedUnit, DecodedPart, write_unit
from o41td.workers.block_cache_folder import CacheFolder, NotKept

__all__ = ["BlockCache", "CacheCounts"]

_MAX_OPEN = 4
_MAX_REFUSED = 65536


@dataclass(slots=True)
class CacheCounts:
    """What a cache has done: units found or not, bytes read and written, files removed to make room, or as damaged."""

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    evicted_files: int = 0
    evicted_bytes: int = 0
    broken_files: int = 0


class BlockCache:
    """Decoded units in a folder, by keys that say everything their rows depend on.

    Some files stay open, so a unit that is used slice by slice is found once, even where it is evicted meanwhile.

    Called by: a worker's main thread.
    """

    def __init__(self, folder: CacheFolder) -> None:
        """Uses `folder`, with other processes."""
        self._folder = folder
        self._open: OrderedDict[bytes, CachedUnit] = OrderedDict()
        self._refused: set[bytes] = set()
        self._failure: str | None = None
        self._is_failure_told = False
        self.counts = CacheCounts()

    def refuses(self, key: bytes) -> bool:
        """Whether a unit is known to be none that can be kept, so that there is no use in decoding it whole."""
        return key in self._refused or (self._failure is not None and self.find(key) is None)

    def has(self, key: bytes) -> bool:
        """Whether there is a file for a key, of which nothing is known but its name.

        Called by: any thread.
        """
        return key not in self._refused and self._folder.has(key.hex())

    def find(self, key: bytes) -> CachedUnit | None:
        """The unit of a key, checked but for its parts; None where there is none. It stays open for a while."""
        if key in self._refused:
            return None
        unit = self._open.get(key)
        if unit is not None:
            self._open.move_to_end(key)
            return unit
        descriptor = self._folder.open(key.hex())
        if descriptor is None:
            return None
        try:
            unit = CachedUnit(descriptor, key)
        except BrokenUnit:
            os.close(descriptor)
            self.discard(key)
            return None
        while len(self._open) >= _MAX_OPEN:
            self._open.popitem(last=False)[1].close()
        self._open[key] = unit
        return unit

    def keep(self, key: bytes, parts: Sequence[DecodedPart]) -> None:
        """Keeps a unit, if that can be."""
        if self._failure is not None:
            return
        try:
            num_bytes, evicted = self._folder.put(key.hex(), lambda descriptor: write_unit(descriptor, key, parts))
        except (NotKept, pa.ArrowException):  # Arrow has no IPC form for it, or it is too large for this cache
            self.refuse(key)
        except OSError as error:
            self._failure = f"{self._folder.path}: {error.strerror or error}"
        else:
            self.counts.written_bytes += num_bytes
            self.counts.evicted_files += evicted.num_files
            self.counts.evicted_bytes += evicted.num_bytes
            self.find(key)

    def refuse(self, key: bytes) -> None:
        """Notes that a unit cannot be kept."""
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused.add(key)

    def discard(self, key: bytes) -> None:
        """Removes a unit that is damaged; where that cannot be, it is not looked at again."""
        unit = self._open.pop(key, None)
        if unit is not None:
            unit.close()
        if not self._folder.discard(key.hex()):
            self.refuse(key)
        self.counts.broken_files += 1

    def close(self) -> None:
        """Closes the units that are open."""
        while self._open:
            self._open.popitem()[1].close()

    def take_counts(self) -> tuple[dict[str, int], str | None]:
        """Returns the counts since the last call by name, and why nothing is kept any more, once."""
        counts, self.counts = self.counts, CacheCounts()
        failure = None if self._is_failure_told else self._failure
        self._is_failure_told |= failure is not None
        return asdict(counts), failure
