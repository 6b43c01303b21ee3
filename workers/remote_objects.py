"""Remote shards as a worker sees them: their identities, their footers, and files over what was fetched of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from o41td.memory_costs import TAILS_BYTES
from o41td.workers.fetched_bytes import FetchedBytes, FetchedRange
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import ByteRange
from o41td.workers.storage import Storage

__all__ = ["RemoteObjects", "Tail", "ranges_over", "tail_bytes_of"]

_LEAST_TAIL_BYTES = 16 << 10
_MOST_TAIL_BYTES = 64 << 10
_MAGIC_BYTES = 8
_MAGIC = b"PAR1"

_Object = tuple[str, ObjectInfo]


class Tail(NamedTuple):
    """The end of an object, from byte `start` on: of a Parquet shard at least its footer."""

    start: int
    data: memoryview


def tail_bytes_of(size_bytes: int) -> int:
    """How much of a shard's end to ask for at first: most footers fit, and it is little of the shard."""
    return min(size_bytes, max(_LEAST_TAIL_BYTES, min(_MOST_TAIL_BYTES, size_bytes >> 10)))


class RemoteObjects:
    """What a worker knows of remote shards. Their ends are kept, so that a footer read for the index is there for rows.

    Attributes:
        storage: Where everything is asked for.
        fetched: What was asked for ahead.
    """

    def __init__(self, storage: Storage) -> None:
        """Knows of none."""
        self.storage = storage
        self.fetched = FetchedBytes()
        self._tails: OrderedDict[_Object, Tail] = OrderedDict()
        self._tails_bytes = 0
        self._coming: dict[_Object, asyncio.Task[Tail]] = {}  # and those that failed, until that is told

    def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object.

        Raises:
            MissingShardError: There is none.
            StorageError: The store does not say.

        Blocks: on the store.
        """
        return self.storage.result_of(self.storage.start(self.storage.stat(uri)))

    def read(self, uri: str, wanted: ByteRange, info: ObjectInfo) -> memoryview:
        """Reads a range.

        Raises:
            O41Error: As `Storage.fetch`.

        Blocks: on the store.
        """
        return self.storage.result_of(self.storage.start(self.storage.fetch(uri, wanted, info)))

    def begin(self, uri: str, wanted: ByteRange, info: ObjectInfo) -> FetchedRange:
        """Asks for a range, and waits for nothing."""
        return FetchedRange(wanted, self.storage.start(self.storage.fetch(uri, wanted, info)))

    def tail(self, uri: str, info: ObjectInfo) -> Tail:
        """Returns the end of an object, with all of its Parquet footer.

        Raises:
            O41Error: As `Storage.fetch`.

        Blocks: on the store, if it is not there.
        """
        return self.storage.result_of(self.storage.start(self.tail_on_loop(uri, info)))

    async def tail_on_loop(self, uri: str, info: ObjectInfo) -> Tail:
        """As `tail`, on the storage thread; who asks while it is on its way waits for the same."""
        key = (uri, info)
        tail = self._tails.get(key)
        if tail is not None:
            self._tails.move_to_end(key)
            return tail
        task = self._coming.get(key)
        if task is None:
            task = self._coming[key] = asyncio.ensure_future(self._tail_to_keep(uri, info))
        elif task.done():
            del self._coming[key]  # whoever asks next hears of the failure, and only who asks again tries again
            return task.result()
        return await asyncio.shield(task)

    def known_tail(self, uri: str, info: ObjectInfo) -> Tail | None:
        """Returns the end of an object if it is here. Called by: any thread."""
        return self._tails.get((uri, info))

    async def _tail_to_keep(self, uri: str, info: ObjectInfo) -> Tail:
        tail = await self._read_tail(uri, info)
        del self._coming[uri, info]
        self._tails[uri, info] = tail
        self._tails_bytes += len(tail.data)
        while self._tails_bytes > TAILS_BYTES and len(self._tails) > 1:
            self._tails_bytes -= len(self._tails.popitem(last=False)[1].data)
        return tail

    async def _read_tail(self, uri: str, info: ObjectInfo) -> Tail:
        start = info.size_bytes - tail_bytes_of(info.size_bytes)
        data = await self.storage.fetch(uri, ByteRange(start, info.size_bytes), info)
        footer_bytes = _footer_bytes_of(data)
        before = min(info.size_bytes, footer_bytes) - len(data)
        if before <= 0:
            return Tail(start, data)
        rest = await self.storage.fetch(uri, ByteRange(start - before, start), info)
        return Tail(start - before, memoryview(b"".join((rest, data))))


def _footer_bytes_of(tail: memoryview) -> int:
    """How long the footer is of which this is the end; 0 where it is none, which is told when it is parsed."""
    if len(tail) < _MAGIC_BYTES or bytes(tail[-4:]) != _MAGIC:
        return 0
    return int.from_bytes(tail[-_MAGIC_BYTES:-4], "little") + _MAGIC_BYTES


def ranges_over(tail: Tail | None, fetched: Sequence[FetchedRange]) -> list[ByteRange]:
    """Returns the places of what is here, or on its way."""
    places = [each.place for each in fetched]
    return places if tail is None else [*places, ByteRange(tail.start, tail.start + len(tail.data))]
