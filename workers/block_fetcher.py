"""Fetching the bytes of blocks ahead: begun when a worker is given a block, while it decodes those before.

    order ──► footer of each shard ──► ranges of the projected column chunks ──► requests, side by side ──► shelf
              (kept from block to block)      (of all pieces of the shard together)

A row group of which a slice was decoded, or is on its way for another block, is not fetched again. Row groups and
records that are read forwards in slices have their own windows (`ReadAheadFile`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import attrgetter

from o41td.encodings import holds_records
from o41td.errors import O41Error
from o41td.listing import is_local
from o41td.projection import PlanMemory
from o41td.workers.footer import metadata_of_tail
from o41td.workers.messages import DecodeBlock
from o41td.workers.object_store import ObjectInfo
from o41td.workers.piece import Piece, SourceFormat
from o41td.workers.ranges import ByteRange, column_ranges, covered, plan_requests
from o41td.workers.remote_file import MAX_GAP_BYTES, MAX_WASTE, PART_BYTES
from o41td.workers.remote_objects import RemoteObjects, ranges_over
from o41td.workers.shard_facts import FactsShelf, ShardFacts, facts_of
from o41td.workers.shard_file import ShardIdentity, raise_failure
from o41td.workers.storage_figures import FETCHING, BlockFigures
from o41td.workers.whole_columns import WholeColumns

__all__ = ["BlockFetcher"]

_Unit = tuple[int, str, int]  # source, shard, row group


class BlockFetcher:
    """Asks for the bytes of blocks.

    Called by: the listener (`begin`, and so `figures_of`), and the thread that decodes, which alone ends blocks.
    """

    def __init__(
        self,
        objects: RemoteObjects,
        facts: FactsShelf,
        sources: Sequence[SourceFormat],
        *,
        is_held: Callable[[int, str, int], bool],
        is_kept: Callable[[int, Piece], bool],
        max_row_group_bytes: int,
    ) -> None:
        """Makes a fetcher for a decoder.

        Args:
            objects: Where remote shards are read.
            facts: What is known of shards, which the decoder's readers share.
            sources: The sources, by number.
            is_held: Whether the decoder has (source, shard, row group), so that its bytes are of no use.
            is_kept: Whether the block cache has (source, piece).
            max_row_group_bytes: Above it, row groups are read through windows.
        """
        self._objects = objects
        self._facts = facts
        self._sources = sources
        self._is_held = is_held
        self._is_kept = is_kept
        self._max_row_group_bytes = max_row_group_bytes
        self._plans = [PlanMemory() if of.chain is None else WholeColumns(of.columns) for of in sources]
        self._begun: dict[int, Future[None]] = {}
        self._figures: dict[int, BlockFigures] = {}
        self._on_their_way: dict[_Unit, int] = {}  # by whom they are fetched; the storage thread's

    def begin(self, order: DecodeBlock) -> None:
        """Asks for what a block needs; returns at once."""
        if order.block_id in self._begun:
            return
        pieces = [Piece(*piece) for piece in order.pieces]
        remote = [piece for piece in pieces if not is_local(piece.uri) and not self._is_kept(order.source, piece)]
        if remote and not holds_records(self._sources[order.source].encoding):
            fetching = self._fetch(order.block_id, order.source, remote, self.figures_of(order))
            self._begun[order.block_id] = self._objects.storage.start(fetching)

    def wait(self, order: DecodeBlock) -> None:
        """Waits until a block's bytes are here. What goes wrong is told when they are read.

        Blocks: on the store.
        """
        begun = self._begun.get(order.block_id)
        if begun is not None:
            self._objects.storage.result_of(begun)

    def figures_of(self, order: DecodeBlock) -> BlockFigures:
        """Returns what was asked for a block so far, to be counted on."""
        return self._figures.setdefault(order.block_id, BlockFigures())

    def end(self, order: DecodeBlock) -> None:
        """Lets go of a block's bytes."""
        self._figures.pop(order.block_id, None)
        if self._begun.pop(order.block_id, None) is not None:
            self._objects.fetched.drop(order.block_id)
            self._objects.storage.loop.call_soon_threadsafe(self._forget, order.block_id)

    # ---- on the storage thread -------------------------------------------------------------------------------------

    def _forget(self, block_id: int) -> None:
        for unit in [unit for unit, by in self._on_their_way.items() if by == block_id]:
            del self._on_their_way[unit]

    async def _fetch(self, block_id: int, source: int, pieces: Sequence[Piece], figures: BlockFigures) -> None:
        FETCHING.set(figures)
        by_shard = groupby(sorted(pieces, key=attrgetter("uri", "row_group")), attrgetter("uri"))
        await asyncio.gather(*(self._fetch_shard(block_id, source, list(of_shard)) for _uri, of_shard in by_shard))

    async def _fetch_shard(self, block_id: int, source: int, pieces: Sequence[Piece]) -> None:
        first = pieces[0]
        units = []
        for piece in pieces:
            unit = (source, piece.uri, piece.row_group)
            is_whole = piece.decoding_bytes <= self._max_row_group_bytes or piece.group_rows == 1
            if is_whole and unit not in self._on_their_way and not self._is_held(*unit):
                self._on_their_way[unit] = block_id
                units.append(piece.row_group)
        try:
            facts = await self._facts_of(source, first)
            ranges = self._requests_for(facts, first.uri, units)
        except O41Error as error:
            self._objects.fetched.fail(block_id, first.uri, error)
            return
        fetched = [self._objects.begin(first.uri, wanted, facts.identity.info) for wanted in ranges]
        for each in fetched:
            self._objects.fetched.add(block_id, first.uri, each)
        await asyncio.gather(*(asyncio.wrap_future(each.data) for each in fetched), return_exceptions=True)

    def _requests_for(self, facts: ShardFacts, uri: str, row_groups: Sequence[int]) -> list[ByteRange]:
        known = [group for group in row_groups if 0 <= group < facts.metadata.num_row_groups]
        here = ranges_over(self._objects.known_tail(uri, facts.identity.info), ())
        try:
            wanted = column_ranges(facts.metadata, known, facts.plan.column_indices)
        except Exception as error:  # noqa: BLE001 - whatever a damaged footer makes Arrow raise is that shard's error
            raise_failure(error, source=None, shard=uri)
        lacking = [each for each in wanted if not covered(each, here)]
        return plan_requests(lacking, max_gap_bytes=MAX_GAP_BYTES, max_waste=MAX_WASTE, part_bytes=PART_BYTES)

    async def _facts_of(self, source: int, piece: Piece) -> ShardFacts:
        """A shard's facts, which its reader will find on their shelf."""
        key = (source, piece.uri)
        facts = self._facts.get(key)
        info = ObjectInfo(piece.size_bytes or 0, piece.etag)
        if facts is not None and facts.identity.info == info:
            return facts
        of = self._sources[source]
        tail = await self._objects.tail_on_loop(piece.uri, info)
        identity = ShardIdentity(size_bytes=info.size_bytes, mtime_ns=0, etag=info.etag)
        try:
            metadata = metadata_of_tail(tail)
            schema = metadata.schema.to_arrow_schema()
        except Exception as error:  # noqa: BLE001 - as above
            raise_failure(error, source=of.name, shard=piece.uri)
        fields = of.fields if of.chain is None else ()
        facts = facts_of(identity, metadata, schema, fields, source=of.name, shard=piece.uri, plans=self._plans[source])
        self._facts.put(key, facts)
        return facts
