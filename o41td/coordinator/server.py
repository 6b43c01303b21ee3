"""The coordinator's shell: one thread, one selector, sockets and processes on one side, the state machine on the other.

Phases: reading (the owner's request, then footers), serving. The owner's socket closing ends everything in any phase. A
waiting list per peer means that no peer can make the coordinator wait.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import Any, assert_never

from o41td.coordinator.block_table import Block, BlockTable
from o41td.coordinator.events import (
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    KillWorker,
    PieceWasBegun,
    RankAttached,
    SendBatches,
    SendEnd,
    SendFailure,
    StartWorker,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
)
from o41td.coordinator.figures import LoaderFigures
from o41td.coordinator.footer_desk import FooterDesk
from o41td.coordinator.opening import IndexReading
from o41td.coordinator.rank_plan import RankPlan
from o41td.coordinator.sizing import LoaderSize, size_loader
from o41td.coordinator.state import LoaderState
from o41td.coordinator.status_port import StatusPort
from o41td.coordinator.worker_pool import PooledWorker, WorkerPool
from o41td.errors import (
    CoordinatorError,
    O41Error,
    WorkerCrashError,
    error_to_record,
)
from o41td.host_memory import default_memory_limit_bytes
from o41td.index import SourceIndex
from o41td.job import StreamJob
from o41td.order.stage import StageOrder
from o41td.order_lookup import order_of
from o41td.shm.segment import Segment, create_segment
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.messages import (
    AttachArena,
    BatchesGathered,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    CountGoesOn,
    DecodeBlock,
    FooterFailed,
    FooterRead,
    LoaderFailed,
    LoaderNotice,
    LoaderOpened,
    LoaderPlanned,
    Message,
    OpenLoader,
    OpenProgress,
    PieceBegun,
    ServeFrom,
    StatsReply,
    StatsRequest,
    StreamEnded,
    StreamFailed,
    WorkerReady,
)
from o41td.workers.supervisor import ChildLog, describe_exit

__all__ = ["LoaderServer"]

_TICK_S = 0.5
_CLOCK_S = 0.1
_START_TIMEOUT_S = 60.0
_MAX_START_FAILURES = 3
_PROGRESS_EVERY_S = 0.1


class _OwnerGone(Exception):
    """The loader's owner closed its socket, or died."""


class LoaderServer:
    """Serves one owner with one rank."""

    def __init__(self, owner: Channel, pool: WorkerPool, log: ChildLog) -> None:
        """Nothing happens before `run`."""
        self._owner = owner
        self._pool = pool
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._selector.register(owner.fileno(), selectors.EVENT_READ, self._hear_owner)
        self._watched: dict[int, int] = {}
        for worker in pool.workers.values():
            self._watch(worker)
        self._request: OpenLoader | None = None
        self._job: StreamJob | None = None
        self._desk: FooterDesk | None = None
        self._sources: list[SourceIndex] = []
        self._by_stage: list[list[SourceIndex]] = []
        self._orders: dict[int, StageOrder] = {}
        self._size: LoaderSize | None = None
        self._segment: Segment | None = None
        self._table: BlockTable | None = None
        self._state: LoaderState | None = None
        self._start_failures = 0
        self._served: ServeFrom | None = None
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
            while True:
                self._pump()
        except _OwnerGone:
            return
        except O41Error as error:
            self._tell_and_leave(LoaderFailed(error_to_record(error)))
        finally:
            if self._status_port is not None:
                self._status_port.close()
            if self._segment is not None:
                self._segment.close()

    def _tell_and_leave(self, message: Message) -> None:
        """Sends a last message whole, then waits for the owner to hang up."""
        self._owner.queue(message)
        with contextlib.suppress(_OwnerGone, O41Error, ChannelClosed):
            while True:
                self._flush(self._owner)
                self._pump(serving=False)

    def _open(self) -> None:
        assert self._request is not None
        job = self._job = StreamJob.from_record(self._request.job)
        if self._request.known_sources is not None:
            self._sources = [SourceIndex.from_record(record) for record in self._request.known_sources]
        else:
            self._sources = self._read_index(job)
        self._by_stage = [[s for s in self._sources if s.stage == stage] for stage in range(len(job.stages))]
        limit = job.memory_limit_bytes or default_memory_limit_bytes()
        self._size = size_loader(job, self._by_stage, world_size=self._request.world_size, limit_bytes=limit)
        records = [source.to_record() for source in self._sources]
        bound = {**self._size.bound.to_record(), "limit_bytes": limit, "table": self._size.bound.explain()}
        if self._request.plan_only:
            self._tell_and_leave(LoaderPlanned(sources=records, bound=bound, notices=[]))
            raise _OwnerGone
        layout = self._size.layout
        self._segment = create_segment(layout.total_bytes)
        self._table = BlockTable(layout.block_rows)
        self._state = LoaderState(
            table=self._table,
            num_slots=layout.num_slots,
            workers=job.threads,
            lookahead=job.lookahead,
            window_batches=self._size.window_batches[0],
            ahead_rows=self._size.ahead_rows,
            stall_timeout_s=job.stall_timeout_s,
            crash_error=self._crash_error,
        )
        self._handle(TimePassed(time.monotonic()))
        for worker in self._pool.workers.values():
            self._attach(worker)
        notices = [self._segment.notice] if self._segment.notice else []
        opened = LoaderOpened(
            layout=layout.to_record(), sources=records, bound=bound, arena_kind=self._segment.kind, notices=notices
        )
        self._owner.queue(opened, self._segment.fd)
        self._flush(self._owner)
        self._status_port = StatusPort(self._selector, self._request.name, self._figures_record)

    def _read_index(self, job: StreamJob) -> list[SourceIndex]:
        assert self._request is not None
        reading = IndexReading(job, storage=self._request.storage, expected=self._request.expected_sources)
        self._desk = desk = FooterDesk(reading)
        self._give_footers()
        told_s = 0.0
        while not desk.is_done:
            self._pump()
            now_s = time.monotonic()
            if now_s - told_s > _PROGRESS_EVERY_S:
                told_s = now_s
                self._owner.queue(OpenProgress(reading.num_done, reading.num_shards))
                self._flush(self._owner)
        self._desk = None
        return reading.finish()

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _pump(self, *, serving: bool = True) -> None:
        """Waits for whatever happens next, and deals with it."""
        for key, mask in self._selector.select(_TICK_S):
            if key.fd in self._selector.get_map():  # an earlier callback may have closed it
                callback: Callable[[int, int], None] = key.data
                callback(key.fd, mask)
        now_s = time.monotonic()
        if not serving:
            return
        is_tick = now_s - self._ticked_s >= _CLOCK_S
        if is_tick:
            self._ticked_s = now_s
            self._look_for_slow_starts(now_s)
        if self._state is not None and (is_tick or self._state.has_more_to_plan):
            self._handle(TimePassed(now_s))

    def _flush(self, channel: Channel) -> None:
        """Sends what can be sent, and asks to be told when more can."""
        try:
            channel.flush()
        except ChannelClosed:
            return  # the reading side hears of it too
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_write else 0)
        key = self._selector.get_key(channel.fileno())
        if key.events != events:
            self._selector.modify(channel.fileno(), events, key.data)

    # ---- the owner -------------------------------------------------------------------------------------------------

    def _hear_owner(self, _fd: int, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(self._owner)
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in self._owner.receive_available():
                self._take_from_owner(message)
        except ChannelClosed as closed:
            raise _OwnerGone from closed

    def _take_from_owner(self, message: Message) -> None:
        match message:
            case OpenLoader():
                self._request = message
            case ServeFrom():
                self._serve(message)
            case BatchesGathered():
                if self._served is not None and message.generation == self._served.generation:
                    self._figures.note_gathered(message)
                    self._handle(BatchesWereGathered(self._served.rank, message.generation, message.gathered))
            case StatsRequest():
                self._owner.queue(StatsReply(message.request_id, self._figures_record()))
                self._flush(self._owner)
            case _:
                raise _OwnerGone  # not our protocol

    def _serve(self, message: ServeFrom) -> None:
        assert self._job is not None
        assert self._size is not None
        assert self._table is not None
        assert self._state is not None
        order = self._orders.get(message.stage)
        if order is None:
            order = self._orders[message.stage] = order_of(self._job, message.stage, self._by_stage[message.stage])
        plan = RankPlan(
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
        )
        self._served = message
        self._state.set_window(self._size.window_batches[message.stage])
        self._figures.note_serve(message)
        self._handle(RankAttached(message.rank, message.generation, plan))

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _watch(self, worker: PooledWorker) -> None:
        self._watched[worker.channel.fileno()] = self._watched[worker.process.sentinel] = worker.number
        self._selector.register(worker.channel.fileno(), selectors.EVENT_READ, self._hear_worker)
        self._selector.register(worker.process.sentinel, selectors.EVENT_READ, self._reap_worker)

    def _attach(self, worker: PooledWorker) -> None:
        assert self._job is not None
        assert self._size is not None
        assert self._segment is not None
        jobs = [source for stage in self._job.stages for source in stage.sources]
        message = AttachArena(
            layout=self._size.layout.to_record(),
            sources=[[field.to_record() for field in job.fields] for job in jobs],
            source_names=[job.name for job in jobs],
            encodings=[source.encoding for source in self._sources],
            max_row_group_bytes=self._job.max_row_group_bytes,
            storage=self._request.storage if self._request else None,
        )
        worker.channel.queue(message, self._segment.fd)
        self._flush(worker.channel)
        if worker.ready:
            self._handle(WorkerBecameReady(worker.number))

    def _hear_worker(self, fd: int, mask: int) -> None:
        worker = self._pool.workers[self._watched[fd]]
        if mask & selectors.EVENT_WRITE:
            self._flush(worker.channel)
        if not mask & selectors.EVENT_READ:
            return
        try:
            for message in worker.channel.receive_available():
                self._take_from_worker(worker, message)
        except ChannelClosed:
            # Its death is told by the sentinel; a worker that closed its socket and lives on is of no use.
            self._selector.unregister(fd)
            worker.process.kill()

    def _take_from_worker(self, worker: PooledWorker, message: Message) -> None:
        match message:
            case WorkerReady():
                worker.ready = True
                self._start_failures = 0
                self._give_footers()
                if self._state is not None:
                    self._handle(WorkerBecameReady(worker.number))
            case FooterRead() | FooterFailed():
                if self._desk is not None:
                    self._desk.take(worker.number, message)
                self._give_footers()
            case CountGoesOn():
                worker.started_s = time.monotonic()
            case BlockDecoded():
                assert self._table is not None
                key = self._table[message.block_id].key
                self._figures.note_decoded(key.stage, key.source, message)
                bad = tuple((start, stop, error) for start, stop, error in message.bad)
                self._handle(BlockWasDecoded(worker.number, message.block_id, bad))
            case PieceBegun():
                self._handle(PieceWasBegun(worker.number, message.block_id, message.piece))
            case BlockFailed():
                self._handle(BlockWasRefused(worker.number, message.block_id, message.error))
            case _:
                worker.process.kill()

    def _reap_worker(self, fd: int, _mask: int) -> None:
        """A worker is dead: what it finished before counts, then it is replaced."""
        worker = self._pool.workers[self._watched[fd]]
        exit_code = worker.process.wait()
        with contextlib.suppress(ChannelClosed):
            for message in worker.channel.receive_available():
                self._take_from_worker(worker, message)
        self._unwatch(worker)
        cause = worker.killed_because or describe_exit(exit_code)
        if not worker.ready:
            self._start_failures += 1
            if self._start_failures >= _MAX_START_FAILURES * len(self._pool.workers):
                raise CoordinatorError(f"workers cannot be started: {cause}", log_tail=self._log.tail())
        if self._desk is not None:
            self._desk.worker_lost(worker.number, cause)
        self._owner.queue(LoaderNotice(f"worker {worker.number} (pid {worker.process.pid}) is replaced: {cause}"))
        self._flush(self._owner)
        if self._state is not None:
            self._handle(WorkerExited(worker.number, cause, exit_code))
        else:
            self._replace(worker.number)

    def _unwatch(self, worker: PooledWorker) -> None:
        for descriptor in (worker.channel.fileno(), worker.process.sentinel):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
            self._watched.pop(descriptor, None)
        worker.channel.close()
        worker.process.close()

    def _replace(self, number: int) -> None:
        worker = self._pool.start(number, now_s=time.monotonic())
        self._watch(worker)
        if self._segment is not None:
            self._attach(worker)

    def _look_for_slow_starts(self, now_s: float) -> None:
        stall_s = self._job.stall_timeout_s if self._job is not None else _START_TIMEOUT_S
        for worker in self._pool.workers.values():
            reads_footer = worker.ready and self._desk is not None and self._desk.is_busy(worker.number)
            timeout_s = stall_s if reads_footer else max(stall_s, _START_TIMEOUT_S)
            is_watched = reads_footer or not worker.ready  # blocks have leases of their own
            if is_watched and worker.killed_because is None and now_s - worker.started_s > timeout_s:
                worker.killed_because = f"it made no progress for {timeout_s:g} s"
                worker.process.kill()

    def _give_footers(self) -> None:
        if self._desk is None:
            return
        for worker in self._pool.workers.values():
            task = self._desk.next_for(worker.number) if worker.ready else None
            if task is not None:
                worker.started_s = time.monotonic()
                worker.channel.queue(task)
                self._flush(worker.channel)

    # ---- the state machine -----------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        assert self._state is not None
        for instruction in self._state.handle(event):
            match instruction:
                case DecodeInto():
                    self._order_decode(instruction)
                case SendBatches():
                    self._send_batches(instruction)
                case SendEnd():
                    self._owner.queue(StreamEnded(instruction.generation, instruction.dropped_rows))
                    self._flush(self._owner)
                case SendFailure():
                    self._owner.queue(StreamFailed(instruction.generation, instruction.error))
                    self._flush(self._owner)
                case StartWorker():
                    self._replace(instruction.worker)
                case KillWorker():
                    worker = self._pool.workers[instruction.worker]
                    worker.killed_because = instruction.cause
                    worker.process.kill()
                case _:
                    assert_never(instruction)

    def _order_decode(self, order: DecodeInto) -> None:
        index = self._by_stage[order.key.stage][order.key.source]
        pieces = []
        for number, piece in enumerate(order.block.pieces):
            if number in order.without:
                continue
            unit = piece.unit
            shard = index.shards[index.unit_shard[unit]]
            pieces.append(
                [
                    number,
                    shard.uri,
                    shard.size_bytes,
                    shard.mtime_ns,
                    shard.rows,
                    int(index.unit_row_group[unit]),
                    int(index.unit_rows[unit]),
                    int(index.unit_decoded_bytes[unit]),
                    int(index.unit_first_row[unit]),
                    piece.row_start,
                    piece.row_stop,
                    piece.block_row,
                ]
            )
        worker = self._pool.workers[order.worker]
        source = self._source_number(order.key.stage, order.key.source)
        worker.channel.queue(DecodeBlock(order.handle, source, order.slot, order.careful, pieces))
        self._flush(worker.channel)

    def _source_number(self, stage: int, source: int) -> int:
        """A source's number among those of all stages, by which `AttachArena` lists them."""
        return sum(len(sources) for sources in self._by_stage[:stage]) + source

    def _send_batches(self, send: SendBatches) -> None:
        message = BatchesReady(
            generation=send.generation,
            stage=send.stage,
            numbers=[batch.number for batch in send.batches],
            num_rows=[len(rows) for rows in send.arena_rows],
            digests=[batch.digest for batch in send.batches],
            releases=[bool(batch.closes) for batch in send.batches],
            rows=b"".join([rows.tobytes() for rows in send.arena_rows]),
        )
        self._owner.queue(message)
        self._flush(self._owner)

    def _crash_error(self, block: Block, piece: int, cause: str, exit_code: int | None) -> dict[str, Any]:
        index = self._by_stage[block.key.stage][block.key.source]
        unit = block.planned.pieces[piece].unit
        shard = index.shards[index.unit_shard[unit]]
        error = WorkerCrashError(
            f"decoding this row group ended its worker {block.kills} times; the last time {cause}",
            source=index.name,
            shard=shard.uri,
            row_group=int(index.unit_row_group[unit]),
            signal=-exit_code if exit_code is not None and exit_code < 0 else None,
            exit_code=exit_code if exit_code is not None and exit_code >= 0 else None,
            attempts=block.kills,
        )
        return error_to_record(error)

    def _figures_record(self) -> dict[str, Any]:
        assert self._size is not None
        assert self._state is not None
        assert self._request is not None
        return self._figures.record(
            name=self._request.name,
            size=self._size,
            state=self._state,
            arena_kind=self._segment.kind if self._segment else "",
            workers=self._pool.workers.values(),
            sources=self._sources,
        )
