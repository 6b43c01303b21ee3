"""All that a worker needs where something is remote: made when the first such order comes, so that others do without.

Importing this brings no store's library; those come with the first request to each (`storage.open_store`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from o41td.encodings import holds_records
from o41td.job import SourceJob
from o41td.source_shards import ManifestShelf, SourceShards
from o41td.workers.block_decoder import BlockDecoder
from o41td.workers.block_fetcher import BlockFetcher
from o41td.workers.messages import (
    BlockDecoded,
    BlockFailed,
    BlockFetched,
    DecodeBlock,
    Message,
    ReadFooter,
    StorageUsed,
)
from o41td.workers.object_store import ObjectInfo, StorageSettings
from o41td.workers.piece import SourceFormat
from o41td.workers.remote_listing import RemoteListing
from o41td.workers.remote_objects import RemoteObjects
from o41td.workers.shard_facts import FactsShelf
from o41td.workers.storage import Storage
from o41td.workers.storage_figures import FETCHING, StorageFigures
from o41td.workers.surroundings import forget_surroundings

__all__ = ["RemoteWork"]

_TELL_EVERY_S = 0.5


class RemoteWork:
    """A worker's dealings with stores.

    Attributes:
        objects: Where remote shards are read.
        facts: What is known of shards, shared by those who fetch and those who decode.

    Called by: the listener (`begin`), and the main thread.
    """

    def __init__(self, record: dict[str, Any], *, tell: Callable[[Message], None]) -> None:
        """`record` is a StorageSettings record; `tell` sends a message to the coordinator."""
        settings = StorageSettings.from_record(record)
        if not settings.ambient_credentials:
            forget_surroundings()
        self._storage = Storage(settings, on_wait=lambda: self._tell_figures(waits=True))
        self._tell = tell
        self._told = StorageFigures()
        self._told_s = 0.0
        self._is_known = False  # to the coordinator, as a worker that reaches stores
        self.objects = RemoteObjects(self._storage)
        self.facts = FactsShelf()
        self._shelf = ManifestShelf(RemoteListing(self._storage))
        self._fetcher: BlockFetcher | None = None

    def attach(self, decoder: BlockDecoder, sources: Sequence[SourceFormat], *, max_row_group_bytes: int) -> None:
        """Fetches for a decoder from now on."""
        self._fetcher = BlockFetcher(
            self.objects,
            self.facts,
            sources,
            is_held=decoder.is_held,
            is_kept=decoder.is_kept,
            max_row_group_bytes=max_row_group_bytes,
        )

    def begin(self, message: Message) -> None:
        """Asks for what an order will need; returns at once."""
        match message:
            case ReadFooter(uri=uri, size_bytes=int(size_bytes), etag=etag) if not holds_records(message.encoding):
                self._storage.start(self.objects.tail_on_loop(uri, ObjectInfo(size_bytes, etag)))
            case DecodeBlock() if self._fetcher is not None:
                self._fetcher.begin(message)
            case _:
                pass

    def shards_of(self, job: SourceJob) -> SourceShards:
        """Returns the shards of a source.

        Raises:
            O41Error: As `ManifestShelf.shards_of`.

        Blocks: on the store.
        """
        shards = self._shelf.shards_of(job)
        self._tell_figures()
        return shards

    def decoded(
        self, decoder: BlockDecoder, order: DecodeBlock, on_piece: Callable[[int], None]
    ) -> BlockDecoded | BlockFailed:
        """Decodes a block, once its bytes are here; time spent waiting for stores counts as fetching."""
        assert self._fetcher is not None
        self._fetcher.begin(order)
        figures = self._fetcher.figures_of(order)
        FETCHING.set(figures)
        before_s = self._storage.waited_s
        self._fetcher.wait(order)
        waiting_s = self._storage.waited_s - before_s
        try:
            answer = decoder.decode(order, on_piece)
        finally:
            FETCHING.set(None)
            self._fetcher.end(order)
        self._tell_figures()
        if figures.requests:
            self._tell(BlockFetched(order.block_id, **asdict(figures), wait_s=self._storage.waited_s - before_s))
        if isinstance(answer, BlockFailed):
            return answer
        inside_s = self._storage.waited_s - before_s - waiting_s
        return answer._replace(
            fetch_s=answer.fetch_s + waiting_s + inside_s, decode_s=max(0.0, answer.decode_s - inside_s)
        )

    def _tell_figures(self, *, waits: bool = False) -> None:
        """Tells the coordinator what was asked of stores since it was last told, but not too often."""
        now = StorageFigures(*astuple(self._storage.figures))
        grown = {
            field.name: getattr(now, field.name) - getattr(self._told, field.name)
            for field in fields(StorageFigures)
            if field.name not in ("in_flight", "last_fault")
        }
        now_s = time.monotonic()
        has_grown = any(grown.values())
        is_due = has_grown and now_s - self._told_s >= _TELL_EVERY_S
        if self._is_known and not (is_due or waits):
            return
        self._is_known = True
        if has_grown:  # what tells of nothing keeps nothing waiting: a short stream may end before the next
            self._told_s = now_s
        self._told = now
        self._tell(StorageUsed(**grown, in_flight=now.in_flight, last_fault=now.last_fault, waits=waits))
