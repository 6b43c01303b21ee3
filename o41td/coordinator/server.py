"""The coordinator's shell: one thread, one loop, sockets and processes on one side, the state machine on the other.

Phases: reading (the owner's request, then footers), serving. The owner's socket closing ends everything in any phase.
The loop's turning is `PeerLoop`'s, the care of workers `WorkerCrew`'s, that of consumers `Audience`'s; here is who is
told what.

A private loader's owner is its one consumer. A served loader's owner only keeps it alive, and hears how it is.
"""

from __future__ import annotations

import contextlib
import gc
import selectors
import time
from collections.abc import Callable
from typing import Any, assert_never

import msgpack
import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.addresses import BlockAddresses
from o41td.coordinator.audience import Audience, Consumer
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
    StartWorker,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
    WorkerWaited,
)
from o41td.coordinator.excluding_plan import plan_rank
from o41td.coordinator.figures import LoaderFigures, opening_record
from o41td.coordinator.opening import IndexReading
from o41td.coordinator.peer_loop import PeerLoop
from o41td.coordinator.quarantine import QuarantineFile
from o41td.coordinator.sizing import LoaderSize, size_loader
from o41td.coordinator.stand_ins import StandIns
from o41td.coordinator.state import LoaderState
from o41td.coordinator.status_port import StatusPort
from o41td.coordinator.task_desk import FooterDesk, SourceDesk
from o41td.coordinator.worker_crew import WorkerCrew
from o41td.coordinator.worker_pool import PooledWorker, WorkerPool
from o41td.errors import ConnectError, CoordinatorError, O41Error, error_from_record, error_to_record
from o41td.host_limits import host_limits, refuse_small_limits
from o41td.host_memory import default_memory_limit_bytes
from o41td.index import SourceIndex, is_remote_source
from o41td.job import StreamJob
from o41td.order.stage import StageOrder
from o41td.order_lookup import order_of
from o41td.shm.segment import Segment, create_segment
from o41td.source_shards import ManifestShelf, SourceShards
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.forking import can_fork
from o41td.workers.messages import (
    AttachArena,
    BatchesGathered,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    BlockFetched,
    CacheUsed,
    CountGoesOn,
    FooterFailed,
    FooterRead,
    LoaderFailed,
    LoaderJoined,
    LoaderNotice,
    LoaderOpened,
    LoaderPlanned,
    Message,
    OpenLoader,
    OpenProgress,
    PieceBegun,
    ResolveFailed,
    ResolveSource,
    ResultsUsed,
    ServeFrom,
    SourceResolved,
    StatsReply,
    StatsRequest,
    StorageUsed,
    StreamEnded,
    StreamFailed,
    WorkerReady,
)
from o41td.workers.object_store import StorageSettings
from o41td.workers.supervisor import ChildLog

__all__ = ["LoaderServer"]

_TICK_S = 0.5
_CLOCK_S = 0.1
_PROGRESS_EVERY_S = 0.1
_SLOW_FOOTER_S = 10.0
_MAX_UNSENT_BYTES = 1 << 26
"""What waits at most for a consumer that does not read, beside four times all the batches announced at once."""


class _OwnerGone(Exception):
    """The loader's owner closed its socket, or died."""


class LoaderServer:
    """Serves its owner, or the ranks that join under its name."""

    def __init__(self, owner: Channel, pool: WorkerPool, log: ChildLog) -> None:
        """Nothing happens before `run`."""
        self._owner = owner
        self._loop = PeerLoop()
        self._loop.watch(owner.fileno(), self._hear_owner)
        self._crew = WorkerCrew(pool, self._loop, log, on_message=self._take_from_worker, on_loss=self._lose_worker)
        self._request: OpenLoader | None = None
        self._job: StreamJob | None = None
        self._desk: FooterDesk | SourceDesk | None = None
        self._sources: list[SourceIndex] = []
        self._by_stage: list[list[SourceIndex]] = []
        self._addresses: BlockAddresses | None = None
        self._orders: dict[int, StageOrder] = {}
        self._size: LoaderSize | None = None
        self._segment: Segment | None = None
        self._table: BlockTable | None = None
        self._state: LoaderState | None = None
        self._footers = (0, 0)  # read, of how many
        self._audience: Audience | None = None
        self._opened: LoaderOpened | None = None
        self._quarantine: QuarantineFile | None = None
        self._figures = LoaderFigures()
        self._status_port: StatusPort | None = None
        self._ticked_s = 0.0

    # ---- phases ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Opens and serves until the owner is gone."""
        try:
            while self._request is None:
                self._pump()
            self._open()
            gc.collect()
            gc.freeze()  # what is known of shards stays; collections need not walk it
            while True:
                self._pump()
        except _OwnerGone:
            return
        except O41Error as error:
            self._tell_and_leave(LoaderFailed(error_to_record(error)))
        finally:
            if self._status_port is not None:
                self._status_port.close()
            if self._audience is not None:
                self._audience.close()
            if self._segment is not None:
                self._segment.close()

    def _tell_and_leave(self, message: Message) -> None:
        """Sends everybody a last message whole, lets nobody else in, and waits for the owner to hang up."""
        if self._status_port is not None:
            self._status_port.close()
        with contextlib.suppress(_OwnerGone, O41Error):
            self._tell_all(message)
            while True:
                self._pump(serving=False)

    def _tell_owner(self, message: Message) -> None:
        self._loop.send(self._owner, message)

    def _tell_all(self, message: Message, descriptor: int | None = None) -> None:
        """Tells the owner and every consumer, of whom the owner may be one."""
        if self._audience is not None:
            self._audience.tell_all(message, descriptor)
        if self._audience is None or self._is_served:
            self._loop.send(self._owner, message, descriptor)

    @property
    def _is_served(self) -> bool:
        """Whether ranks join by name."""
        return self._request is not None and self._request.config is not None

    def _open(self) -> None:
        assert self._request is not None
        job = self._job = StreamJob.from_record(self._request.job)
        self._crew.be_patient(job.stall_timeout_s)
        self._seat_audience()
        if self._request.known_sources is not None:
            self._sources = [SourceIndex.from_record(record) for record in self._request.known_sources]
        else:
            self._sources = _laid_down_anew(self._read_index(job))
        self._by_stage = [[s for s in self._sources if s.stage == stage] for stage in range(len(job.stages))]
        self._addresses = BlockAddresses(self._by_stage)
        limit = job.memory_limit_bytes or default_memory_limit_bytes()
        self._size = size_loader(
            job,
            self._by_stage,
            world_size=self._request.world_size,
            limit_bytes=limit,
            ranks=self._request.ranks,
            forks=can_fork(),
        )
        records = [source.to_record() for source in self._sources]
        bound = {**self._size.bound.to_record(), "limit_bytes": limit, "table": self._size.bound.explain()}
        if self._request.plan_only:
            self._tell_and_leave(LoaderPlanned(sources=records, bound=bound, notices=[]))
            raise _OwnerGone
        layout = self._size.layout
        refuse_small_limits(host_limits(), arena_bytes=layout.total_bytes)
        self._segment = create_segment(layout.total_bytes)
        self._table = BlockTable(layout.block_rows)
        stand_ins = None
        if job.on_bad_data == "replace":
            stand_ins = StandIns(self._by_stage, seed=job.seed, budget=job.bad_data_budget)
            self._quarantine = QuarantineFile(job.quarantine_file, loader=self._request.name)
        self._state = LoaderState(
            table=self._table,
            num_slots=layout.num_slots,
            workers=job.threads,
            lookahead=job.lookahead,
            window_batches=self._size.window_batches[0],
            ahead_rows=self._size.ahead_rows,
            stall_timeout_s=job.stall_timeout_s,
            crash_error=self._addresses.crash_error,
            stand_ins=stand_ins,
            num_ranks=len(self._request.ranks),
            fetched_sources={(each.stage, each.source) for each in self._sources if is_remote_source(each)},
        )
        assert self._audience is not None
        self._audience.max_unsent_bytes = _MAX_UNSENT_BYTES + 4 * 8 * self._size.bound.shape.announced_rows
        self._handle(TimePassed(self._loop.now_s))
        self._crew.greet_with(self._attachment(job), self._segment.fd)
        for worker in self._crew.workers:
            if worker.ready:
                self._handle(WorkerBecameReady(worker.number))
        notices = [self._segment.notice] if self._segment.notice else []
        opened = LoaderOpened(
            layout=layout.to_record(), sources=records, bound=bound, arena_kind=self._segment.kind, notices=notices
        )
        self._tell_all(opened, self._segment.fd)
        if self._is_served:
            self._opened = opened  # it is large where shards are many
            for consumer in self._audience:
                self._tell_coming(consumer.rank, consumer.pid)
        self._open_status_port()
        assert self._status_port is not None
        if not self._status_port.is_open:
            self._tell_owner(LoaderNotice("`o41td status` cannot show this loader: no runtime folder is ours alone"))

    def _open_status_port(self) -> None:
        """Makes the loader findable, unless it is: when it is open, or when opening takes a while."""
        assert self._request is not None
        if self._status_port is None:
            self._status_port = StatusPort(
                self._loop.selector,
                self._request.name,
                self._figures_record,
                on_join=self._admit if self._is_served else None,
                num_ranks=len(self._request.ranks),
            )

    def _seat_audience(self) -> None:
        """Makes the owner the one consumer, or lets others in: they may as well wait here until the loader is open.

        Raises:
            CoordinatorError: Nobody could come in.
        """
        assert self._request is not None
        self._audience = Audience(
            self._loop,
            ranks=self._request.ranks,
            max_unsent_bytes=_MAX_UNSENT_BYTES,
            on_message=self._take_from_consumer,
            on_loss=self._lose_consumer,
        )
        if not self._is_served:
            self._loop.forget(self._owner.fileno())
            self._audience.join(self._request.ranks[0], self._owner)
            return
        self._open_status_port()
        assert self._status_port is not None
        if not self._status_port.is_open:
            raise CoordinatorError(
                "a served loader must be found by its name, and no runtime folder is this user's alone",
                advice="Give this user a folder /run/user/UID, or make /tmp/o41td-UID its own, of mode 0700",
            )

    def _read_index(self, job: StreamJob) -> list[SourceIndex]:
        assert self._request is not None
        told_s = 0.0

        def tell(num_known: int, num_shards: int) -> None:
            nonlocal told_s
            now_s = time.monotonic()
            if now_s - told_s > _PROGRESS_EVERY_S:
                told_s = now_s
                self._footers = num_known, num_shards
                self._tell_all(OpenProgress(*self._footers))
                self._loop.turn(0)  # the owner may be gone

        resolved = self._resolve_remote_sources(job, tell)
        reading = IndexReading(
            job,
            storage=self._storage_record(),
            expected=self._request.expected_sources,
            resolved=resolved,
            on_look_up=tell,
        )
        self._work_off(FooterDesk(reading), job, lambda: tell(reading.num_done, reading.num_shards))
        return reading.finish()

    def _resolve_remote_sources(
        self, job: StreamJob, tell: Callable[[int, int], None]
    ) -> dict[tuple[int, int], SourceShards]:
        """Returns the shards of every source that names something remote, listed by workers."""
        shelf = ManifestShelf()
        remote = [
            (stage, number, source)
            for stage, stage_job in enumerate(job.stages)
            for number, source in enumerate(stage_job.sources)
            if shelf.needs_store(source)
        ]
        if not remote:
            return {}
        desk = SourceDesk(
            ResolveSource(task_id, source.to_record(), self._storage_record())
            for task_id, (_stage, _number, source) in enumerate(remote)
        )
        self._work_off(desk, job, lambda: tell(0, 0))
        return {remote[task_id][:2]: shards for task_id, shards in desk.resolved().items()}

    def _work_off(self, desk: FooterDesk | SourceDesk, job: StreamJob, tell: Callable[[], None]) -> None:
        """Has workers do all that lies on a desk; `tell` tells how far it is."""
        assert self._request is not None
        self._desk = desk
        self._give_tasks()
        began_s = time.monotonic()
        while not desk.is_done:
            self._pump()
            self._tell_slow_tasks(desk, job)
            tell()
            if time.monotonic() - began_s > _PROGRESS_EVERY_S and not self._request.plan_only:
                self._open_status_port()
        self._desk = None

    def _tell_slow_tasks(self, desk: FooterDesk | SourceDesk, job: StreamJob) -> None:
        for worker, waited_s in self._crew.waits():
            doing = desk.newly_slow(worker, waited_s, limit_s=min(_SLOW_FOOTER_S, job.stall_timeout_s / 2))
            if doing is not None:
                words = f"worker {worker} has been {doing} for {waited_s:.1f} s"
                if self._figures.last_storage_error:
                    words += f"; the last that a store said: {self._figures.last_storage_error}"
                self._tell_all(LoaderNotice(f"opening waits: {words}", is_warning=True))

    def _storage_record(self) -> dict[str, Any]:
        """What a worker needs to reach stores: the user's settings, and its share of the requests in flight."""
        assert self._request is not None
        assert self._job is not None
        settings = StorageSettings.from_record(self._request.storage)
        share = max(1, settings.max_requests_in_flight // self._job.threads)
        return {**(self._request.storage or {}), "max_requests_in_flight": share}

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _pump(self, *, serving: bool = True) -> None:
        """Waits for whatever happens next, and deals with it."""
        self._loop.turn(_CLOCK_S if self._crew.is_waiting_to_start else _TICK_S)
        if not serving:
            return
        now_s = self._loop.now_s
        is_tick = now_s - self._ticked_s >= _CLOCK_S
        if is_tick:
            self._ticked_s = now_s
            self._crew.look()
            if self._state is not None:
                self._figures.note_time(self._state, self._crew.workers)
        if self._state is not None and (is_tick or self._state.has_more_to_plan):
            self._handle(TimePassed(now_s))

    # ---- the owner -------------------------------------------------------------------------------------------------

    def _hear_owner(self, _fd: int, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._loop.flush(self._owner)
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in self._owner.receive_available():
                self._take_from_owner(message)
        except ChannelClosed as closed:
            raise _OwnerGone from closed

    def _take_from_owner(self, message: Message) -> None:
        match message:
            case OpenLoader() if self._request is None:
                self._request = message
            case StatsRequest() if self._request is not None:
                self._tell_owner(StatsReply(message.request_id, self._figures_record()))
            case _:
                raise _OwnerGone  # not our protocol

    # ---- consumers -------------------------------------------------------------------------------------------------

    def _admit(self, rank: int, channel: Channel) -> None:
        """Lets a trainer in that came to the port, or tells it why not."""
        assert self._request is not None
        assert self._audience is not None
        try:
            self._audience.join(rank, channel)
        except ConnectError as error:
            channel.queue(LoaderFailed(error_to_record(error)))
            with contextlib.suppress(ChannelClosed):
                channel.flush()
            channel.close()
            return
        assert self._request.config is not None
        self._audience.tell(rank, LoaderJoined(self._request.config, self._request.job, self._request.world_size))
        if self._opened is not None:
            assert self._segment is not None
            self._audience.tell(rank, self._opened, self._segment.fd)
            self._tell_coming(rank, channel.peer_pid)

    def _tell_coming(self, rank: int, pid: int) -> None:
        self._tell_owner(LoaderNotice(f"rank {rank} (pid {pid}) has come: {self._attendance_text()}"))

    def _attendance_text(self) -> str:
        """How many of the ranks are here: "3 of 8 are here"."""
        assert self._request is not None
        assert self._audience is not None
        return f"{sum(1 for _ in self._audience)} of {len(self._request.ranks)} are here"

    def _lose_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone: what was claimed for it is not needed any more, until somebody comes for its rank."""
        if consumer.channel is self._owner:
            raise _OwnerGone
        why = "was hung up on: it sent what makes no sense, or did not read" if consumer.is_dismissed else "has left"
        words = f"rank {consumer.rank} (pid {consumer.pid}) {why}: {self._attendance_text()}"
        self._tell_owner(LoaderNotice(words))
        self._figures.note_leaving(consumer.rank)
        if self._state is not None:
            self._handle(RankLeft(consumer.rank))

    def _take_from_consumer(self, consumer: Consumer, message: Message) -> None:
        assert self._audience is not None
        match message:
            case ServeFrom() if self._can_serve(consumer, message):
                self._serve(consumer, message)
            case BatchesGathered() if self._may_have_gathered(consumer, message):
                if consumer.served is not None and message.generation == consumer.served.generation:
                    self._figures.note_gathered(consumer.rank, message)
                    self._handle(BatchesWereGathered(consumer.rank, message.generation, message.gathered))
            case StatsRequest():
                self._audience.tell(consumer.rank, StatsReply(message.request_id, self._figures_record()))
            case _:
                self._audience.dismiss(consumer)

    def _can_serve(self, consumer: Consumer, message: ServeFrom) -> bool:
        """Whether a request is this consumer's to make, and for a place that there is."""
        if self._job is None or self._request is None or self._state is None:
            return False
        if (message.rank, message.world_size) != (consumer.rank, self._request.world_size):
            return False
        if consumer.served is not None and message.generation <= consumer.served.generation:
            return False
        if not (0 <= message.stage < len(self._job.stages) and 0 <= message.position <= message.global_batch < 1 << 62):
            return False
        num_batches = self._order_of(message.stage).num_batches
        return num_batches is None or message.position <= num_batches

    def _may_have_gathered(self, consumer: Consumer, message: BatchesGathered) -> bool:
        """Whether a consumer was sent what it says it has; of what it was sent earlier it may still speak."""
        rank = None if self._state is None else self._state.ranks.get(consumer.rank)
        if rank is None or message.generation < rank.generation:
            return True
        return message.generation == rank.generation and rank.num_gathered <= message.gathered <= rank.num_sent

    def _order_of(self, stage: int) -> StageOrder:
        assert self._job is not None
        order = self._orders.get(stage)
        if order is None:
            order = self._orders[stage] = order_of(self._job, stage, self._by_stage[stage])
        return order

    def _serve(self, consumer: Consumer, message: ServeFrom) -> None:
        assert self._audience is not None
        assert self._job is not None
        assert self._size is not None
        assert self._table is not None
        assert self._state is not None
        order = self._order_of(message.stage)
        plan = plan_rank(
            order,
            self._by_stage[message.stage],
            stage=message.stage,
            position=message.position,
            global_batch=message.global_batch,
            rank=message.rank,
            world_size=message.world_size,
            block_rows=self._size.layout.block_rows,
            resident=self._size.resident[message.stage],
            table=self._table,
            excluded=self._job.excluded,
        )
        consumer.served = message
        stages = {other.served.stage for other in self._audience if other.served is not None}
        self._state.set_window(min(self._size.window_batches[stage] for stage in stages))
        self._figures.note_serve(message, order, self._job.excluded)
        self._handle(RankAttached(message.rank, message.generation, plan))

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _attachment(self, job: StreamJob) -> AttachArena:
        assert self._size is not None
        sources = [source for stage in job.stages for source in stage.sources]
        return AttachArena(
            layout=self._size.layout.to_record(),
            sources=[[field.to_record() for field in source.fields] for source in sources],
            source_names=[source.name for source in sources],
            encodings=[source.encoding for source in self._sources],
            chains=[None if source.chain is None else source.chain.parcel for source in sources],
            columns=[source.columns for source in sources],
            max_row_group_bytes=job.max_row_group_bytes,
            max_held_units=self._size.bound.shape.held_units,
            cache_dir=job.cache_dir,
            cache_limit_bytes=job.cache_limit_bytes,
            storage=self._storage_record() if any(is_remote_source(source) for source in self._sources) else None,
            places=[None if source.chain is None else source.chain.place for source in sources],
            cluster=job.cluster,
        )

    def _take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        if not self._was_asked(worker, message):
            self._crew.kill(worker.number, f"it sent {type(message).__name__}, for which it was not asked")
            return
        match message:
            case WorkerReady():
                self._give_tasks()
                if self._state is not None:
                    self._handle(WorkerBecameReady(worker.number))
            case FooterRead() | FooterFailed() | SourceResolved() | ResolveFailed():
                assert self._desk is not None
                assert self._job is not None
                self._desk.take(worker.number, message)
                is_busy = self._desk.is_busy(worker.number)
                self._crew.expect(worker.number, self._job.stall_timeout_s if is_busy else None)
                self._give_tasks()
            case StorageUsed():
                self._figures.note_storage(worker.number, message)
                if message.waits:
                    self._bear_with(worker)
            case CountGoesOn():
                assert self._job is not None
                self._crew.expect(worker.number, self._job.stall_timeout_s)
            case BlockDecoded():
                assert self._table is not None
                key = self._table[message.block_id].key
                self._figures.note_decoded(worker.number, key.stage, key.source, message)
                self._handle(BlockWasDecoded(worker.number, message.block_id, _bad_rows_of(message)))
            case CacheUsed() | BlockFetched() | ResultsUsed():
                self._note_of_block(message)
            case PieceBegun():
                self._handle(PieceWasBegun(worker.number, message.block_id, message.piece))
            case BlockFailed():
                self._handle(BlockWasRefused(worker.number, message.block_id, _bad_rows_of(message)))
            case _:
                raise AssertionError(f"{type(message).__name__} is nothing that a worker is asked for")

    def _note_of_block(self, message: CacheUsed | BlockFetched | ResultsUsed) -> None:
        """Counts what a block took beside its decoding."""
        assert self._table is not None
        key = self._table[message.block_id].key
        match message:
            case CacheUsed():
                self._figures.note_cache(key.stage, key.source, message)
                if message.failure is not None:
                    self._tell_cache_failure(message.failure)
            case BlockFetched():
                self._figures.note_fetched(key.stage, key.source, message)
            case ResultsUsed():
                self._figures.note_results(key.stage, key.source, message)
                if message.failure is not None:
                    text = f"results of nodes cannot be kept: {message.failure}. The stream goes on without"
                    self._tell_all(LoaderNotice(text, is_warning=True))

    def _was_asked(self, worker: PooledWorker, message: Message) -> bool:
        """Whether a message answers what the worker does; a damaged one might send anything."""
        match message:
            case WorkerReady() | StorageUsed():
                return True
            case FooterRead() | FooterFailed() | CountGoesOn():
                is_there = isinstance(self._desk, FooterDesk)
                return is_there and self._desk is not None and self._desk.awaits(worker.number, message.task_id)
            case SourceResolved() | ResolveFailed():
                is_there = isinstance(self._desk, SourceDesk)
                return is_there and self._desk is not None and self._desk.awaits(worker.number, message.task_id)
            case BlockDecoded() | BlockFailed() | PieceBegun() | CacheUsed() | BlockFetched() | ResultsUsed():
                if self._state is None or self._table is None:
                    return False
                if not self._state.workers[worker.number].is_at(message.block_id):
                    return False
                block = self._table[message.block_id]
                if isinstance(message, PieceBegun):
                    return 0 <= message.piece < len(block.pieces)
                if isinstance(message, CacheUsed):
                    return self._job is not None and self._job.cache_dir is not None
                if isinstance(message, BlockFetched):
                    return is_remote_source(self._by_stage[block.key.stage][block.key.source])
                if isinstance(message, ResultsUsed):
                    return self._has_nodes(block.key.stage, block.key.source)
                return all(_are_rows_of(block, bad.rows) for bad in _bad_rows_of(message))
            case _:
                return False

    def _has_nodes(self, stage: int, source: int) -> bool:
        return self._job is not None and self._job.stages[stage].sources[source].chain is not None

    def _tell_cache_failure(self, why: str) -> None:
        """Tells everybody that blocks are not kept any more, when the first worker says so."""
        if not self._figures.cache_failure:
            self._figures.cache_failure = why
            text = f"cache_dir cannot be written, so no more blocks are kept: {why}. The stream goes on without"
            self._tell_all(LoaderNotice(text, is_warning=True))

    def _lose_worker(self, worker: PooledWorker, cause: str, exit_code: int) -> None:
        if self._desk is not None:
            self._desk.worker_lost(worker.number, cause, was_slow=worker.killed_because is not None)
        self._tell_owner(LoaderNotice(f"worker {worker.number} (pid {worker.process.pid}) is replaced: {cause}"))
        if self._state is not None:
            self._handle(WorkerExited(worker.number, cause, exit_code))
        else:
            self._crew.start(worker.number)
            self._give_tasks()

    def _give_tasks(self) -> None:
        """Gives every worker one task more, again and again until none may have another."""
        given = self._desk is not None
        while given:
            given = False
            for worker in self._crew.workers:
                assert self._desk is not None
                task = self._desk.next_for(worker.number) if worker.ready else None
                if task is not None:
                    assert self._job is not None
                    if not worker.deadline_s:
                        self._crew.expect(worker.number, self._job.stall_timeout_s)
                    self._crew.give(worker.number, task)
                    given = True

    def _bear_with(self, worker: PooledWorker) -> None:
        """A worker waits for a store, which is asked again and again: it is not stuck."""
        assert self._job is not None
        if self._desk is not None and self._desk.is_busy(worker.number):
            self._crew.expect(worker.number, self._job.stall_timeout_s)
        elif self._state is not None:
            self._handle(WorkerWaited(worker.number))

    # ---- the state machine -----------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        assert self._state is not None
        for instruction in self._state.handle(event):
            match instruction:
                case DecodeInto():
                    assert self._addresses is not None
                    self._crew.give(instruction.worker, self._addresses.order_of(instruction))
                case SendBatches():
                    self._send_batches(instruction)
                case SendEnd():
                    self._tell_rank(instruction.rank, StreamEnded(instruction.generation, instruction.dropped_rows))
                case SendFailure():
                    self._tell_rank(instruction.rank, StreamFailed(instruction.generation, instruction.error))
                case FoundBadRows():
                    self._quarantine_rows(instruction)
                case StartWorker():
                    self._crew.start(instruction.worker)
                case KillWorker():
                    self._crew.kill(instruction.worker, instruction.cause)
                case _:
                    assert_never(instruction)

    def _send_batches(self, send: SendBatches) -> None:
        message = BatchesReady(
            generation=send.generation,
            stage=send.stage,
            numbers=[batch.number for batch in send.batches],
            num_rows=[len(batch.rows) for batch in send.batches],
            digests=[batch.digest for batch in send.batches],
            releases=send.releases,
            rows=send.arena_rows.tobytes(),
        )
        self._tell_rank(send.rank, message)

    def _tell_rank(self, rank: int, message: Message) -> None:
        assert self._audience is not None
        self._audience.tell(rank, message)

    def _quarantine_rows(self, found: FoundBadRows) -> None:
        """Writes bad rows down and tells everybody; a file that cannot be written stops nothing."""
        assert self._quarantine is not None
        index = self._by_stage[found.stage][found.source]
        count = len(found.rows)
        told = "1 row is replaced by another" if count == 1 else f"{count} rows are replaced by others"
        text = f"{told} of {'its' if count == 1 else 'their'} source: {error_from_record(found.error)}"
        try:
            self._quarantine.write_down(found, index)
        except OSError as error:
            text += f" (not written to {self._quarantine.path}: {error})"
        self._tell_all(LoaderNotice(text, is_warning=True))

    def _figures_record(self) -> dict[str, Any]:
        assert self._request is not None
        workers = list(self._crew.workers)
        if self._size is None or self._state is None or self._segment is None or self._addresses is None:
            return opening_record(self._request.name, workers, self._footers)
        return self._figures.record(
            name=self._request.name,
            stage_names=[] if self._job is None else [stage.name for stage in self._job.stages],
            size=self._size,
            state=self._state,
            arena_kind=self._segment.kind,
            workers=workers,
            reading={worker: self._addresses.place_of(at, for_s) for worker, at, for_s in self._state.current_blocks()},
            sources=self._by_stage,
            served_ranks=self._request.ranks if self._is_served else None,
            cache_dir=None if self._job is None else self._job.cache_dir,
        )


def _laid_down_anew(sources: list[SourceIndex]) -> list[SourceIndex]:
    """Returns the same sources, side by side in memory; takes them out of the list.

    They were made among what is needed to open each shard, several times as much, and would keep nearly all of that
    memory from going back to the system.
    """
    packed = [bytes(msgpack.packb(source.to_record(), unicode_errors="surrogateescape")) for source in sources]
    sources.clear()
    return [SourceIndex.from_record(msgpack.unpackb(record, unicode_errors="surrogateescape")) for record in packed]


def _bad_rows_of(message: BlockDecoded | BlockFailed) -> tuple[BadRows, ...]:
    parts = zip(message.bad_rows, message.bad_errors, strict=True)
    return tuple(BadRows(np.frombuffer(rows, "<i8").astype(np.int64), error) for rows, error in parts)


def _are_rows_of(block: Block, rows: NDArray[np.int64]) -> bool:
    return bool(len(rows)) and bool(rows[0] >= 0 and rows[-1] < block.planned.num_rows and (np.diff(rows) > 0).all())
