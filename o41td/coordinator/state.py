"""The coordinator as a pure state machine: events in, instructions out. No clock, no socket, no process.

What it keeps true (`validate` checks it):

* a slot belongs to at most one block, and to none while a dead worker could still write to it: a worker's blocks are
issued
  again only after `WorkerExited`, which the shell sends once the process is reaped;
* a rank's batches are sent in order, each once a generation, and only while every row of them is in the arena;
* blocks are issued in the order of their first need. With at least as many slots as one batch has blocks, this cannot
get
  stuck: if the next batch lacks a slot and nothing is on its way that would free one, the block needed latest is
  evicted and decoded again later. Memory is bound by the number of slots, whatever the order needs; eviction only costs
  time.

Whose fault a death is: a worker decodes its blocks in the order in which it was given them, so the first unfinished one
is what it died on. After `_MAX_KILLS` of these a block is refused as if its data were bad, which in effect it is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from o41td.coordinator.block_table import Block, BlockState, BlockTable
from o41td.coordinator.events import (
    BatchesWereGathered,
    BatchPlan,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    Instruction,
    KillWorker,
    PlannedBatch,
    RankAttached,
    RankLeft,
    SendBatches,
    SendEnd,
    SendFailure,
    StartWorker,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
)
from o41td.shm.slots import SlotPool

__all__ = ["LoaderState", "RankState", "WorkerState"]

_MAX_KILLS = 3
_MAX_SENT_AT_ONCE = 64


@dataclass(slots=True)
class WorkerState:
    """A worker process: the handles it was given and has not finished, oldest first; when its oldest became current."""

    worker: int
    ready: bool = False
    queue: deque[int] = field(default_factory=deque)
    since_s: float = 0.0
    restarts: int = 0
    last_unit: tuple[int, int, int] | None = None
    stalled: bool = False


@dataclass(slots=True)
class RankState:
    """A rank's flow of batches: `unsent` are planned, `sent` are with the consumer; counts are of this generation."""

    rank: int
    generation: int
    plan: BatchPlan
    unsent: deque[PlannedBatch] = field(default_factory=deque)
    sent: deque[PlannedBatch] = field(default_factory=deque)
    unsent_rows: int = 0
    num_planned: int = 0
    num_sent: int = 0
    num_gathered: int = 0
    plan_ended: bool = False
    told_end: bool = False
    told_failure: bool = False


class LoaderState:
    """Blocks, slots, workers and ranks of one loader."""

    def __init__(
        self,
        *,
        table: BlockTable,
        num_slots: int,
        workers: int,
        lookahead: int,
        window_batches: int,
        ahead_rows: int,
        stall_timeout_s: float,
        crash_error: Callable[[Block, str, int | None], dict[str, Any]],
    ) -> None:
        """`window_batches` bounds batches sent and not gathered, `ahead_rows` what is planned beyond them to find work.

        `crash_error` words the error of a block that kills its workers.
        """
        self.table = table
        self.slots = SlotPool(num_slots)
        self.workers = {worker: WorkerState(worker) for worker in range(workers)}
        self.ranks: dict[int, RankState] = {}
        self.blocks_decoded = 0
        self.blocks_evicted = 0
        self._lookahead = lookahead
        self._window = window_batches
        self._ahead_rows = ahead_rows
        self._stall_timeout_s = stall_timeout_s
        self._crash_error = crash_error
        self._now_s = 0.0
        self._waiting: list[tuple[int, int]] = []  # heap of (first need, handle); stale entries are skipped
        self._instructions: list[Instruction] = []

    def set_window(self, window_batches: int) -> None:
        """Sets how many batches may be sent and not gathered (stages have batches of different sizes)."""
        self._window = window_batches

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Takes one event and returns what is to be done about it, in order."""
        match event:
            case RankAttached():
                self._attach(event)
            case RankLeft():
                self._detach(event.rank)
            case BatchesWereGathered():
                self._gathered(event)
            case WorkerBecameReady():
                self.workers[event.worker].ready = True
            case WorkerExited():
                self._worker_exited(event)
            case BlockWasDecoded():
                self._decoded(event)
            case BlockWasRefused():
                self._refused(event)
            case TimePassed():
                self._now_s = event.now_s
                self._look_for_stalls()
            case _:
                assert_never(event)
        self._make_progress()
        instructions, self._instructions = self._instructions, []
        return instructions

    def _attach(self, event: RankAttached) -> None:
        before = self.ranks.pop(event.rank, None)
        rank = RankState(event.rank, event.generation, event.plan)
        self.ranks[event.rank] = rank
        self._plan(rank)  # claims what both need before the earlier claims go
        if before is not None:
            self._forget(before)

    def _detach(self, rank: int) -> None:
        state = self.ranks.pop(rank, None)
        if state is not None:
            self._forget(state)

    def _forget(self, rank: RankState) -> None:
        for batch in (*rank.sent, *rank.unsent):
            for handle in batch.blocks:
                block = self.table[handle]
                if batch in block.waiters:
                    block.waiters.remove(batch)
        for batch in (*rank.sent, *rank.unsent):
            for handle in batch.closes:
                self.release_claim(handle)
        for handle in rank.plan.open_handles():
            self.release_claim(handle)

    def _gathered(self, event: BatchesWereGathered) -> None:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.generation != event.generation:
            return  # a message that crossed a reposition
        assert rank.num_gathered <= event.count <= rank.num_sent, f"gathered {event.count} of {rank.num_sent} sent"
        for _ in range(event.count - rank.num_gathered):
            for handle in rank.sent.popleft().closes:
                self.release_claim(handle)
        rank.num_gathered = event.count

    def _worker_exited(self, event: WorkerExited) -> None:
        worker = self.workers[event.worker]
        handles, worker.queue = worker.queue, deque()
        for place, handle in enumerate(handles):
            block = self.table[handle]
            self.slots.release(self.table.vacate(block))
            block.worker = None
            block.move("worker lost")
            if block.state is BlockState.DROPPED:
                self.table.remove(block)
                continue
            if place == 0:
                block.kills += 1
                if block.kills >= _MAX_KILLS:
                    block.move("refuse")
                    block.error = self._crash_error(block, event.cause, event.exit_code)
                    continue
            heapq.heappush(self._waiting, (block.first_need, handle))
        self.workers[event.worker] = WorkerState(event.worker, restarts=worker.restarts + 1)
        self._instructions.append(StartWorker(event.worker))

    def _finished_by(self, worker_id: int, handle: int) -> Block:
        worker = self.workers[worker_id]
        assert worker.queue and worker.queue[0] == handle, f"worker {worker_id} finished {handle}, holds {worker.queue}"
        worker.queue.popleft()
        worker.since_s = self._now_s
        block = self.table[handle]
        block.worker = None
        return block

    def _decoded(self, event: BlockWasDecoded) -> None:
        block = self._finished_by(event.worker, event.handle)
        block.move("decoded")
        self.blocks_decoded += 1
        if block.state is BlockState.DROPPED:
            self.slots.release(self.table.vacate(block))
            self.table.remove(block)
            return
        for batch in block.waiters:
            batch.missing -= 1
        block.waiters.clear()

    def _refused(self, event: BlockWasRefused) -> None:
        """The error reaches a rank when its next batch is one that lacks this block: all before it still arrive."""
        block = self._finished_by(event.worker, event.handle)
        block.move("refuse")
        self.slots.release(self.table.vacate(block))
        if block.state is BlockState.DROPPED:
            self.table.remove(block)
        else:
            block.error = event.error

    def _look_for_stalls(self) -> None:
        for worker in self.workers.values():
            if worker.queue and not worker.stalled and self._now_s - worker.since_s > self._stall_timeout_s:
                worker.stalled = True
                cause = f"it made no progress for {self._stall_timeout_s:g} s (stall_timeout_s)"
                self._instructions.append(KillWorker(worker.worker, cause))

    # ---- claims ----------------------------------------------------------------------------------------------------

    def release_claim(self, handle: int) -> None:
        """Gives up one claim on a block; without claims it is dropped. A plan calls this for blocks that no batch closes."""
        block = self.table[handle]
        block.claims -= 1
        assert block.claims >= 0, f"{block.key} released too often: {list(block.story)}"
        if block.claims:
            return
        assert not block.waiters, f"{block.key} is dropped, but batches wait for it"
        held = block.state is BlockState.DECODED
        block.move("drop")
        if held:
            self.slots.release(self.table.vacate(block))
        if block.state is BlockState.DROPPED:
            self.table.remove(block)

    # ---- progress --------------------------------------------------------------------------------------------------

    def _make_progress(self) -> None:
        for rank in self.ranks.values():
            self._plan(rank)
            self._send(rank)
        self._issue()

    def _plan(self, rank: RankState) -> None:
        """Plans until there is enough to issue and enough to send."""
        target = self._lookahead * len(self.workers)
        while not rank.plan_ended:
            if len(rank.unsent) >= self._window and (
                self._num_waiting() >= target or not self.slots.num_free or rank.unsent_rows >= self._ahead_rows
            ):
                return
            batches = rank.plan.next_batches()
            if not batches:
                rank.plan_ended = True
            for batch in batches:
                self._expect(rank, batch)

    def _expect(self, rank: RankState, batch: PlannedBatch) -> None:
        batch.ordinal = rank.num_planned
        rank.num_planned += 1
        rank.unsent.append(batch)
        rank.unsent_rows += len(batch.rows)
        for handle in batch.blocks:
            block = self.table[handle]
            if block.state is BlockState.DECODED:
                continue
            batch.missing += 1
            if block.state is BlockState.WAITING and not block.waiters:
                block.first_need = batch.ordinal
                heapq.heappush(self._waiting, (batch.ordinal, handle))
            block.waiters.append(batch)

    def _num_waiting(self) -> int:
        while self._waiting and not self._is_due(*self._waiting[0]):
            heapq.heappop(self._waiting)
        return len(self._waiting)

    def _is_due(self, first_need: int, handle: int) -> bool:
        try:
            block = self.table[handle]
        except KeyError:
            return False
        return block.state is BlockState.WAITING and block.first_need == first_need and bool(block.waiters)

    def _send(self, rank: RankState) -> None:
        ready: list[PlannedBatch] = []
        room = self._window - (rank.num_sent - rank.num_gathered)
        while rank.unsent and len(ready) < room and not rank.unsent[0].missing:
            ready.append(rank.unsent.popleft())
            rank.unsent_rows -= len(ready[-1].rows)
        for first in range(0, len(ready), _MAX_SENT_AT_ONCE):
            burst = tuple(ready[first : first + _MAX_SENT_AT_ONCE])
            bases = self.table.arena_bases
            arena_rows = tuple(bases[batch.handles] + batch.rows for batch in burst)
            self._instructions.append(SendBatches(rank.rank, rank.generation, rank.plan.stage, burst, arena_rows))
        rank.sent.extend(ready)
        rank.num_sent += len(ready)
        if rank.unsent:
            self._fail_if_refused(rank)
        elif rank.plan_ended and not rank.told_end:
            rank.told_end = True
            self._instructions.append(SendEnd(rank.rank, rank.generation, rank.plan.dropped_rows()))

    def _fail_if_refused(self, rank: RankState) -> None:
        if rank.told_failure or not rank.unsent[0].missing:
            return
        for handle in rank.unsent[0].blocks:
            error = self.table[handle].error
            if error is not None:
                rank.told_failure = True
                self._instructions.append(SendFailure(rank.rank, rank.generation, error))
                return

    def _issue(self) -> None:
        """Gives blocks to workers in the order of first need, while there are slots and room in a worker's queue."""
        while self._num_waiting():
            first_need, handle = self._waiting[0]
            block = self.table[handle]
            worker = self._worker_for(block)
            if worker is None:
                return
            if not self.slots.num_free and not self._make_room(first_need):
                return
            heapq.heappop(self._waiting)
            block.move("issue")
            block.worker = worker.worker
            slot = self.slots.acquire(block.key)
            assert slot is not None
            self.table.hold(block, slot)
            if not worker.queue:
                worker.since_s = self._now_s
            worker.queue.append(handle)
            worker.last_unit = _last_unit(block)
            self._instructions.append(DecodeInto(worker.worker, handle, slot, block.key, block.planned))

    def _worker_for(self, block: Block) -> WorkerState | None:
        """The worker that decoded the slice before, while its queue has room; else the one with the shortest queue."""
        able = [w for w in self.workers.values() if w.ready and len(w.queue) < self._lookahead]
        if not able:
            return None
        piece = block.planned.pieces[0]
        if piece.row_start:
            unit = (block.key.stage, block.key.source, piece.unit)
            for worker in able:
                if worker.last_unit == unit:
                    return worker
        return min(able, key=lambda worker: (len(worker.queue), worker.worker))

    def _make_room(self, first_need: int) -> bool:
        """Evicts the decoded block that is needed latest, if nothing else can free a slot and it is needed after
        `first_need`.

        Only when every rank has gathered all that it was sent, or cannot be sent the next batch: otherwise waiting
        frees a slot.
        """
        if any(rank.sent for rank in self.ranks.values()) or any(worker.queue for worker in self.workers.values()):
            return False
        next_need: dict[int, int] = {}
        for rank in self.ranks.values():
            for batch in rank.unsent:
                for handle in batch.blocks:
                    next_need.setdefault(handle, batch.ordinal)
        held = [block for block in self.table if block.state is BlockState.DECODED]
        latest = max(held, key=lambda block: next_need.get(block.handle, 1 << 62), default=None)
        if latest is None or next_need.get(latest.handle, 1 << 62) <= first_need:
            return False
        latest.move("evict")
        self.blocks_evicted += 1
        self.slots.release(self.table.vacate(latest))
        for rank in self.ranks.values():
            for batch in rank.unsent:
                if latest.handle in batch.blocks:
                    batch.missing += 1
                    latest.waiters.append(batch)
        if latest.waiters:
            latest.first_need = latest.waiters[0].ordinal
            heapq.heappush(self._waiting, (latest.first_need, latest.handle))
        return True

    # ---- invariants ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Checks every invariant; O(blocks + planned batches), for tests and simulations.

        Raises:
            AssertionError: One does not hold, with the story.
        """
        self.slots.validate()
        held: dict[int, int] = {}
        issued: dict[int, int] = {}
        for block in self.table:
            story = f"{block.key}: {list(block.story)}"
            has_slot = block.state in (BlockState.ISSUED, BlockState.ORPHANED, BlockState.DECODED)
            assert (block.slot is not None) == has_slot, story
            if block.slot is not None:
                assert held.setdefault(block.slot, block.handle) == block.handle, f"slot {block.slot} twice; {story}"
                assert self.table.arena_bases[block.handle] >= 0, story
            assert (block.claims > 0) == (block.state is not BlockState.ORPHANED), story
            if block.state in (BlockState.ISSUED, BlockState.ORPHANED):
                assert block.worker is not None, story
                issued[block.handle] = block.worker
            assert block.state is not BlockState.DECODED or not block.waiters, story
        assert len(held) + self.slots.num_free == self.slots.num_slots, "slots are lost"
        queued = {handle: w.worker for w in self.workers.values() for handle in w.queue}
        assert queued == issued, f"queues {queued} != issued {issued}"
        for rank in self.ranks.values():
            assert rank.num_sent - rank.num_gathered == len(rank.sent)
            assert rank.num_planned - rank.num_sent == len(rank.unsent)
            for batch in rank.unsent:
                lacking = sum(self.table[handle].state is not BlockState.DECODED for handle in batch.blocks)
                assert batch.missing == lacking, f"batch {batch.number}: {batch.missing} != {lacking}"
            for batch in rank.sent:
                assert all(self.table[handle].state is BlockState.DECODED for handle in batch.blocks)


def _last_unit(block: Block) -> tuple[int, int, int]:
    return (block.key.stage, block.key.source, block.planned.pieces[-1].unit)
