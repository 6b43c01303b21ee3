"""A worker: takes orders from the coordinator, decodes blocks into slots, and leaves when its socket closes.

Two threads. The listener takes messages off the socket, so that the coordinator's death is noticed even while a read
hangs: then it ends the process at once, whatever the other thread does. The other thread, the main one, does the work
in the order in which it came; before it decodes a block it asks the kernel to read ahead what the next order needs.

What is remote brings a third, the storage thread. The listener has it fetch what an order needs as soon as that comes,
so bytes are on their way for all that was ordered. Orders that come while the main thread still maps the arena are
begun by it, right behind that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from o41td.encodings import holds_records
from o41td.error_records import error_to_record
from o41td.errors import O41Error
from o41td.fields import FieldPlan
from o41td.job import SourceJob
from o41td.listing import is_local
from o41td.projection import PlanMemory
from o41td.shm.layout import ArenaLayout
from o41td.shm.segment import MappedArena, map_arena
from o41td.workers.block_decoder import BlockDecoder
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.footer import ShardFooter, read_footer
from o41td.workers.message_codec import carries_descriptor
from o41td.workers.messages import (
    AttachArena,
    CacheUsed,
    CountGoesOn,
    DecodeBlock,
    FooterFailed,
    Message,
    PieceBegun,
    ReadFooter,
    ResolveFailed,
    ResolveSource,
    ResultsUsed,
    SourceResolved,
    WorkerReady,
)
from o41td.workers.piece import Piece, SourceFormat

if TYPE_CHECKING:
    from o41td.workers.block_cache import BlockCache
    from o41td.workers.ray_decoder import RayDecoder
    from o41td.workers.remote_work import RemoteWork

__all__ = ["Worker"]

_READ_AHEAD_PIECES = 4
_TELL_EVERY_S = 0.5


class Worker:
    """One worker process's work.

    Called by: the worker's main thread.
    """

    def __init__(self, channel: Channel) -> None:
        """Speaks over `channel`."""
        self._channel = channel
        self._orders: queue.SimpleQueue[tuple[Message, int | None]] = queue.SimpleQueue()
        self._looked_at: deque[tuple[Message, int | None]] = deque()
        self._intake = threading.Lock()  # an order is begun and in the queue, or neither; held for moments
        self._arena: MappedArena | None = None
        self._decoder: BlockDecoder | None = None
        self._cache: BlockCache | None = None
        self._ray: RayDecoder | None = None
        self._plans = PlanMemory()
        self._remote: RemoteWork | None = None

    def run(self) -> None:
        """Works until the process is ended by the listener.

        Blocks: for ever.
        """
        threading.Thread(target=self._listen, name="o41td-listener", daemon=True).start()
        self._channel.send(WorkerReady(os.getpid()))
        while True:
            message, descriptor = self._looked_at.popleft() if self._looked_at else self._orders.get()
            match message:
                case ResolveSource():
                    self._answer(self._shards_of(message))
                case ReadFooter():
                    self._answer(self._footer_of(message))
                case AttachArena():
                    assert descriptor is not None
                    self._attach(message, descriptor)
                case DecodeBlock():
                    assert self._decoder is not None
                    self._read_ahead(self._decoder, message)
                    decoded = self._decoded(self._decoder, message)
                    self._tell_cache(message.block_id)
                    self._tell_results(self._decoder, message)
                    self._answer(decoded)
                case _:
                    raise AssertionError(f"{type(message).__name__} is no order for a worker")

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
                descriptor = self._channel.take_descriptor() if carries_descriptor(message) else None
            except ChannelClosed:
                os._exit(0)
            with self._intake:
                self._fetch_ahead(message)
                self._orders.put((message, descriptor))

    def _fetch_ahead(self, message: Message) -> None:
        match message:
            case ReadFooter(storage=storage) | ResolveSource(storage=storage) | AttachArena(storage=storage):
                if storage is not None:
                    self._reach_stores(storage)
            case _:
                pass
        if self._remote is not None:
            self._remote.begin(message)

    def _reach_stores(self, storage: dict[str, Any]) -> None:
        if self._remote is None:
            from o41td.workers.remote_work import RemoteWork  # what is local does without

            self._remote = RemoteWork(storage, tell=self._answer)

    def _decoded(self, decoder: BlockDecoder, order: DecodeBlock) -> Message:
        if self._ray is not None:
            return self._ray.decode(order)
        on_piece = partial(self._tell_piece, order.block_id)
        if self._remote is None:
            return decoder.decode(order, on_piece)
        return self._remote.decoded(decoder, order, on_piece)

    def _tell_piece(self, block_id: int, piece: int) -> None:
        self._answer(PieceBegun(block_id, piece))

    def _tell_cache(self, block_id: int) -> None:
        if self._cache is not None:
            counts, failure = self._cache.take_counts()
            if any(counts.values()) or failure is not None:
                self._answer(CacheUsed(block_id, failure=failure, **counts))

    def _tell_results(self, decoder: BlockDecoder, order: DecodeBlock) -> None:
        counts = decoder.take_result_counts(order.source)
        if counts is not None and any(counts):
            self._answer(ResultsUsed(order.block_id, *counts))

    def _answer(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed:
            os._exit(0)

    def _shards_of(self, order: ResolveSource) -> Message:
        assert self._remote is not None
        try:
            shards = self._remote.shards_of(SourceJob.from_record(order.source))
        except O41Error as error:
            return ResolveFailed(order.task_id, error_to_record(error))
        return SourceResolved(order.task_id, shards.to_record())

    def _footer_of(self, order: ReadFooter) -> Message:
        try:
            return self._read_footer(order).answer(order.task_id)
        except O41Error as error:
            return FooterFailed(order.task_id, error_to_record(error))

    def _read_footer(self, order: ReadFooter) -> ShardFooter:
        objects = None if order.storage is None or self._remote is None else self._remote.objects
        fields = [FieldPlan.from_record(record) for record in order.fields]
        if order.chain is not None:
            from o41td.workers.chain_footer import read_chain_footer  # it brings the nodes, and msgspec

            return read_chain_footer(order, fields, objects, self._teller(order.task_id))
        if holds_records(order.encoding):
            from o41td.workers.record_footer import read_record_footer  # it brings msgspec, isal and zstandard

            return read_record_footer(order, fields, objects, self._teller(order.task_id))
        return read_footer(
            objects,
            order.uri,
            fields,
            source=order.source,
            size_bytes=order.size_bytes,
            etag=order.etag,
            plans=self._plans,
        )

    def _teller(self, task_id: int) -> Callable[[], None]:
        """What tells now and then that a count goes on."""
        told_s = time.monotonic()

        def tell() -> None:
            nonlocal told_s
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                self._answer(CountGoesOn(task_id))

        return tell

    def _attach(self, order: AttachArena, descriptor: int) -> None:
        layout = ArenaLayout.from_record(order.layout)
        try:
            self._arena = map_arena(descriptor, layout, writable=True)
        finally:
            os.close(descriptor)
        sources = [
            SourceFormat(
                name,
                tuple(FieldPlan.from_record(record) for record in fields),
                encoding,
                chain,
                None if columns is None else tuple(columns),
            )
            for name, fields, encoding, chain, columns in zip(
                order.source_names, order.sources, order.encodings, order.chains, order.columns, strict=True
            )
        ]
        if order.cache_dir is not None:
            from o41td.workers.block_cache import BlockCache  # it brings isal
            from o41td.workers.block_cache_folder import CacheFolder

            self._cache = BlockCache(CacheFolder(order.cache_dir, order.cache_limit_bytes))
        regions = {region.name: self._arena.region(region.name) for region in layout.fields}
        self._decoder = BlockDecoder(
            regions,
            layout.block_rows,
            sources,
            max_row_group_bytes=order.max_row_group_bytes,
            max_held_units=order.max_held_units,
            objects=None if self._remote is None else self._remote.objects,
            facts=None if self._remote is None else self._remote.facts,
            cache=self._cache,
        )
        if self._remote is not None and order.cluster is None:  # a cluster's nodes fetch for themselves
            with self._intake:
                self._remote.attach(self._decoder, sources, max_row_group_bytes=order.max_row_group_bytes)
                self._look_at_all()
                for later, _descriptor in self._looked_at:
                    self._remote.begin(later)
        if order.cluster is not None:
            from o41td.workers.ray_decoder import RayDecoder  # it brings ray

            self._ray = RayDecoder(
                regions,
                layout.block_rows,
                sources,
                places=order.places,
                address=order.cluster,
                storage=order.storage,
                max_row_group_bytes=order.max_row_group_bytes,
                max_held_units=order.max_held_units,
            )
        self._arena.populate_in_background(threading.Event())  # lowest slot first, as slots are handed out

    def _read_ahead(self, decoder: BlockDecoder, order: DecodeBlock) -> None:
        """Starts the reading of the block behind this order, if there is an order for one; of all on a cluster."""
        if self._ray is not None:
            self._look_at_all()
            for each in (order, *(other for other, _descriptor in self._looked_at if isinstance(other, DecodeBlock))):
                self._ray.begin(each)
            return
        with contextlib.suppress(queue.Empty):
            if not self._looked_at:
                self._looked_at.append(self._orders.get_nowait())
        for later, _descriptor in self._looked_at:
            if isinstance(later, DecodeBlock):
                for piece in itertools.starmap(Piece, later.pieces[:_READ_AHEAD_PIECES]):
                    if not (is_local(piece.uri) or decoder.is_kept(later.source, piece)):
                        continue  # it is being fetched
                    with contextlib.suppress(O41Error):  # it is told when the block's own turn comes
                        decoder.will_need(later.source, piece)
                return

    def _look_at_all(self) -> None:
        """Takes all orders that are there out of the queue."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._looked_at.append(self._orders.get_nowait())
