"""The second phase of a loader: the state machine's events and instructions, and what peers say, are each other's.

Workers and consumers are heard and told here; what is decoded when, into which slot, is `LoaderState`'s decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.addresses import BlockAddresses
from o41td.coordinator.audience import Consumer
from o41td.coordinator.block_table import Block, BlockTable
from o41td.coordinator.events import (
    BadRows,
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    FoundBadRows,
    KillWorker,
    PieceWasBegun,
    RankAttached,
    RankLeft,
    SendBatches,
    SendEnd,
    SendFailure,
    SlotsWereHeld,
    StartWorker,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
    WorkerWaited,
)
from o41td.coordinator.excluding_plan import plan_rank
from o41td.coordinator.host import LoaderHost
from o41td.coordinator.quarantine import QuarantineFile
from o41td.coordinator.sizing import LoaderSize
from o41td.coordinator.stand_ins import StandIns
from o41td.coordinator.state import LoaderState
from o41td.coordinator.worker_pool import PooledWorker
from o41td.error_records import error_from_record
from o41td.index import SourceIndex, is_remote_source
from o41td.order.stage import StageOrder
from o41td.order_lookup import order_of
from o41td.shm.segment import Segment
from o41td.workers.messages import (
    AttachArena,
    BatchesGathered,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    BlockFetched,
    CacheUsed,
    LoaderNotice,
    LoaderOpened,
    MayHoldSlots,
    Message,
    PieceBegun,
    ResultsUsed,
    ServeFrom,
    SlotsHeld,
    StreamEnded,
    StreamFailed,
    WorkerReady,
)

__all__ = ["ServingPhase"]

_MOST_TOLD = 20
"""So many row groups with bad rows are told of; of a bad data set's thousands each would be a line in every log."""
_OfBlock = BlockDecoded | BlockFailed | PieceBegun | CacheUsed | BlockFetched | ResultsUsed


class ServingPhase:
    """Serves batches out of an arena."""

    def __init__(
        self,
        host: LoaderHost,
        sources: Sequence[Sequence[SourceIndex]],
        size: LoaderSize,
        segment: Segment,
    ) -> None:
        """`sources` are those of each stage; nothing is told before `begin`."""
        job = host.job
        self._host = host
        self._sources = sources
        self._size = size
        self._segment = segment
        self._opened: LoaderOpened | None = None
        self._addresses = BlockAddresses(sources)
        self._orders: dict[int, StageOrder] = {}
        self._table = BlockTable(size.layout.block_rows)
        self._quarantine: QuarantineFile | None = None
        self._num_told = 0  # times that rows were said to be replaced
        stand_ins = None
        if job.on_bad_data == "replace":
            stand_ins = StandIns(sources, seed=job.seed, budget=job.bad_data_budget)
            self._quarantine = QuarantineFile(job.quarantine_file, loader=host.request.name)
        self._state = LoaderState(
            table=self._table,
            num_slots=size.layout.num_slots,
            workers=job.threads,
            lookahead=size.lookahead,
            window_batches=size.window_batches[0],
            ahead_rows=size.ahead_rows,
            stall_timeout_s=job.stall_timeout_s,
            crash_error=self._addresses.crash_error,
            stand_ins=stand_ins,
            num_ranks=len(host.request.ranks),
            lent_slots=() if host.is_served else size.lent_slots,
        )

    def begin(self, opened: LoaderOpened) -> None:
        """Sends workers and consumers the arena, the latter with `opened`."""
        host = self._host
        self._handle(TimePassed(host.loop.now_s))
        host.crew.greet_with(self._attachment(), self._segment.fd)
        for worker in host.crew.workers:
            if worker.ready:
                self._handle(WorkerBecameReady(worker.number))
        host.tell_all(opened, self._segment.fd)
        if host.is_served:
            self._opened = opened  # it is large where shards are many
            for consumer in host.audience:
                host.tell_coming(consumer)
        else:
            host.tell_owner(MayHoldSlots(list(self._size.lent_slots)))

    def _attachment(self) -> AttachArena:
        job = self._host.job
        every = [index for stage in self._sources for index in stage]
        sources = [source for stage in job.stages for source in stage.sources]
        return AttachArena(
            layout=self._size.layout.to_record(),
            sources=[[field.to_record() for field in source.fields] for source in sources],
            source_names=[source.name for source in sources],
            encodings=[index.encoding for index in every],
            chains=[None if source.chain is None else source.chain.parcel for source in sources],
            columns=[source.columns for source in sources],
            max_row_group_bytes=job.max_row_group_bytes,
            max_held_units=self._size.bound.shape.held_units,
            cache_dir=job.cache_dir,
            cache_limit_bytes=job.cache_limit_bytes,
            storage=self._host.storage_record() if any(map(is_remote_source, every)) else None,
            places=[None if source.chain is None else source.chain.place for source in sources],
            cluster=job.cluster,
        )

    # ---- workers ---------------------------------------------------------------------------------------------------

    def take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        """Takes a worker's word on the block that it is at."""
        match message:
            case WorkerReady():
                self._handle(WorkerBecameReady(worker.number))
            case BlockDecoded() | BlockFailed() | PieceBegun() | CacheUsed() | BlockFetched() | ResultsUsed() if (
                self._was_asked(worker, message)
            ):
                self._take_of_block(worker, message)
            case _:
                self._host.kill_unasked(worker, message)

    def _was_asked(self, worker: PooledWorker, message: _OfBlock) -> bool:
        """Whether a message is about the block that the worker is at, and may be."""
        if not self._state.workers[worker.number].is_at(message.block_id):
            return False
        block = self._table[message.block_id]
        stage, source = block.key.stage, block.key.source
        match message:
            case PieceBegun():
                return 0 <= message.piece < len(block.pieces)
            case CacheUsed():
                return self._host.job.cache_dir is not None
            case BlockFetched():
                return is_remote_source(self._sources[stage][source])
            case ResultsUsed():
                return self._host.job.stages[stage].sources[source].chain is not None
            case _:
                return all(_are_rows_of(block, bad.rows) for bad in _bad_rows_of(message))

    def _take_of_block(self, worker: PooledWorker, message: _OfBlock) -> None:
        figures, key = self._host.figures, self._table[message.block_id].key
        match message:
            case BlockDecoded():
                figures.note_decoded(worker.number, key.stage, key.source, message)
                self._handle(BlockWasDecoded(worker.number, message.block_id, _bad_rows_of(message)))
            case BlockFailed():
                self._handle(BlockWasRefused(worker.number, message.block_id, _bad_rows_of(message)))
            case PieceBegun():
                self._handle(PieceWasBegun(worker.number, message.block_id, message.piece))
            case BlockFetched():
                figures.note_fetched(key.stage, key.source, message)
            case CacheUsed():
                figures.note_cache(key.stage, key.source, message)
                if message.failure is not None:
                    self._tell_cache_failure(message.failure)
            case ResultsUsed():
                figures.note_results(key.stage, key.source, message)
                if message.failure is not None:
                    self._warn(f"results of nodes cannot be kept: {message.failure}. The stream goes on without")
            case _:
                assert_never(message)

    def _tell_cache_failure(self, why: str) -> None:
        """Tells everybody that blocks are not kept any more, when the first worker says so."""
        if not self._host.figures.cache_failure:
            self._host.figures.cache_failure = why
            self._warn(f"cache_dir cannot be written, so no more blocks are kept: {why}. The stream goes on without")

    def _warn(self, text: str) -> None:
        self._host.tell_all(LoaderNotice(text, is_warning=True))

    def lose_worker(self, worker: PooledWorker, cause: str, exit_code: int) -> None:
        """Has its blocks decoded by others."""
        self._handle(WorkerExited(worker.number, cause, exit_code))

    def bear_with(self, worker: PooledWorker) -> None:
        """Gives a worker that waits for a store as much time again."""
        self._handle(WorkerWaited(worker.number))

    # ---- consumers -------------------------------------------------------------------------------------------------

    def welcome(self, consumer: Consumer) -> None:
        """Gives a consumer the arena."""
        assert self._opened is not None, "a private loader has its one consumer from its start"
        self._host.audience.tell(consumer.rank, self._opened, self._segment.fd)
        self._host.tell_coming(consumer)

    def lose_consumer(self, consumer: Consumer) -> None:
        """What was claimed for it is not needed any more, until somebody comes for its rank."""
        self._handle(RankLeft(consumer.rank))

    def take_from_consumer(self, consumer: Consumer, message: Message) -> None:
        """Serves a consumer from where it asks, and frees what it has gathered."""
        match message:
            case ServeFrom() if self._can_serve(consumer, message):
                self._serve(consumer, message)
            case BatchesGathered() if self._may_have_gathered(consumer, message):
                if consumer.served is not None and message.generation == consumer.served.generation:
                    self._host.figures.note_gathered(consumer.rank, message)
                    self._handle(BatchesWereGathered(consumer.rank, message.generation, message.gathered))
            case SlotsHeld() if self._state.can_be_held(message.slots):
                self._handle(SlotsWereHeld(frozenset(message.slots)))
            case _:
                self._host.audience.dismiss(consumer)

    def _can_serve(self, consumer: Consumer, message: ServeFrom) -> bool:
        """Whether a request is this consumer's to make, and for a place that there is."""
        if (message.rank, message.world_size) != (consumer.rank, self._host.request.world_size):
            return False
        if consumer.served is not None and message.generation <= consumer.served.generation:
            return False
        num_stages = len(self._sources)
        if not (0 <= message.stage < num_stages and 0 <= message.position <= message.global_batch < 1 << 62):
            return False
        num_batches = self._order_of(message.stage).num_batches
        return num_batches is None or message.position <= num_batches

    def _may_have_gathered(self, consumer: Consumer, message: BatchesGathered) -> bool:
        """Whether a consumer was sent what it says it has; of what it was sent earlier it may still speak."""
        rank = self._state.ranks.get(consumer.rank)
        if rank is None or message.generation < rank.generation:
            return True
        return message.generation == rank.generation and rank.num_gathered <= message.gathered <= rank.num_sent

    def _order_of(self, stage: int) -> StageOrder:
        order = self._orders.get(stage)
        if order is None:
            order = self._orders[stage] = order_of(self._host.job, stage, self._sources[stage])
        return order

    def _serve(self, consumer: Consumer, message: ServeFrom) -> None:
        order, excluded = self._order_of(message.stage), self._host.job.excluded
        plan = plan_rank(
            order,
            self._sources[message.stage],
            stage=message.stage,
            position=message.position,
            global_batch=message.global_batch,
            rank=message.rank,
            world_size=message.world_size,
            block_rows=self._size.layout.block_rows,
            resident=self._size.resident[message.stage],
            table=self._table,
            excluded=excluded,
        )
        consumer.served = message
        stages = {other.served.stage for other in self._host.audience if other.served is not None}
        self._state.set_window(min(self._size.window_batches[stage] for stage in stages))
        self._host.figures.note_serve(message, order, excluded)
        self._handle(RankAttached(message.rank, message.generation, plan))

    # ---- the state machine -----------------------------------------------------------------------------------------

    def look(self, *, is_tick: bool) -> None:
        """Tells the state machine the time, and lets it plan on."""
        if is_tick:
            self._host.figures.note_time(self._state, self._host.crew.workers)
        if is_tick or self._state.has_more_to_plan:
            self._handle(TimePassed(self._host.loop.now_s))

    def _handle(self, event: Event) -> None:
        host = self._host
        for instruction in self._state.handle(event):
            match instruction:
                case DecodeInto():
                    host.crew.give(instruction.worker, self._addresses.order_of(instruction))
                case SendBatches():
                    self._send_batches(instruction)
                case SendEnd():
                    ended = StreamEnded(instruction.generation, instruction.dropped_rows)
                    host.audience.tell(instruction.rank, ended)
                case SendFailure():
                    host.audience.tell(instruction.rank, StreamFailed(instruction.generation, instruction.error))
                case FoundBadRows():
                    self._quarantine_rows(instruction)
                case StartWorker():
                    host.crew.start(instruction.worker)
                case KillWorker():
                    host.crew.kill(instruction.worker, instruction.cause)
                case _:
                    assert_never(instruction)

    def _send_batches(self, send: SendBatches) -> None:
        message = BatchesReady(
            generation=send.generation,
            stage=send.stage,
            numbers=list(map(attrgetter("number"), send.batches)),
            num_rows=list(map(attrgetter("num_rows"), send.batches)),
            digests=list(map(attrgetter("digest"), send.batches)),
            releases=send.releases,
            first_rows=send.first_rows,
            rows=send.arena_rows.tobytes(),
        )
        self._host.audience.tell(send.rank, message)

    def _quarantine_rows(self, found: FoundBadRows) -> None:
        """Writes bad rows down and tells everybody; a file that cannot be written stops nothing."""
        assert self._quarantine is not None
        index = self._sources[found.stage][found.source]
        count = len(found.rows)
        told = "1 row is replaced by another" if count == 1 else f"{count} rows are replaced by others"
        text = f"{told} of {'its' if count == 1 else 'their'} source: {error_from_record(found.error)}"
        try:
            self._quarantine.write_down(found, index)
        except OSError as error:
            text += f" (not written to {self._quarantine.path}: {error})"
        self._num_told += 1
        if self._num_told == _MOST_TOLD:
            text += f". Of those to come only {self._quarantine.path} tells, and `o41td status` how many there are"
        if self._num_told <= _MOST_TOLD:
            self._warn(text)

    def figures_record(self) -> dict[str, Any]:
        """Returns the loader's live figures."""
        request, job = self._host.request, self._host.job
        return self._host.figures.record(
            name=request.name,
            stage_names=[stage.name for stage in job.stages],
            size=self._size,
            state=self._state,
            arena_kind=self._segment.kind,
            workers=list(self._host.crew.workers),
            reading={worker: self._addresses.place_of(at, for_s) for worker, at, for_s in self._state.current_blocks()},
            sources=self._sources,
            served_ranks=request.ranks if self._host.is_served else None,
            cache_dir=job.cache_dir,
        )


def _bad_rows_of(message: BlockDecoded | BlockFailed) -> tuple[BadRows, ...]:
    parts = zip(message.bad_rows, message.bad_errors, strict=True)
    return tuple(BadRows(np.frombuffer(rows, "<i8").astype(np.int64), error) for rows, error in parts)


def _are_rows_of(block: Block, rows: NDArray[np.int64]) -> bool:
    return bool(len(rows)) and bool(rows[0] >= 0 and rows[-1] < block.planned.num_rows and (np.diff(rows) > 0).all())
