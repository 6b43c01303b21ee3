"""Bytes on their way, or here already: which ranges of which objects were asked for ahead of use, and for whom."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future
from typing import NamedTuple

from o41td.errors import O41Error
from o41td.workers.ranges import ByteRange

__all__ = ["FetchedBytes", "FetchedRange"]


class FetchedRange(NamedTuple):
    """A range that was asked for, and the future that brings it."""

    place: ByteRange
    data: Future[memoryview]


class FetchedBytes:
    """A shelf of ranges by object. What was put there for somebody stays until that is done with.

    Called by: any thread.
    """

    def __init__(self) -> None:
        """Nothing is there."""
        self._lock = threading.Lock()
        self._ranges: dict[str, dict[int, list[FetchedRange]]] = defaultdict(dict)
        self._errors: dict[str, tuple[int, O41Error]] = {}

    def add(self, owner: int, uri: str, fetched: FetchedRange) -> None:
        """Puts a range there for an owner."""
        with self._lock:
            self._ranges[uri].setdefault(owner, []).append(fetched)

    def fail(self, owner: int, uri: str, error: O41Error) -> None:
        """Notes that an owner's ranges of an object could not even be asked for."""
        with self._lock:
            self._errors[uri] = (owner, error)

    def error_of(self, uri: str) -> O41Error | None:
        """Returns why an object cannot be read, if that is known: asking again would take as long again."""
        with self._lock:
            return self._errors[uri][1] if uri in self._errors else None

    def ranges_of(self, uri: str) -> list[FetchedRange]:
        """Returns what is there of an object."""
        with self._lock:
            return [fetched for ranges in self._ranges.get(uri, {}).values() for fetched in ranges]

    def drop(self, owner: int) -> None:
        """Lets go of what was put there for an owner; what is still on its way is not waited for."""
        dropped = []
        with self._lock:
            for uri in list(self._ranges):
                dropped += self._ranges[uri].pop(owner, [])
                if not self._ranges[uri]:
                    del self._ranges[uri]
            for uri in [uri for uri, (of, _error) in self._errors.items() if of == owner]:
                del self._errors[uri]
        for fetched in dropped:
            fetched.data.cancel()
