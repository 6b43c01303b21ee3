"""The coordinator as a pure state machine: events in, instructions out. No clock, no socket, no process.

What it keeps true (`validate` checks it):

* a slot belongs to at most one block, and to none while a dead worker could still write to it: a worker's blocks are
  issued again only after `WorkerExited`, which the shell sends once the process is reaped;
* a rank's batches are sent in order, each once a generation, and only while every row of them is in the arena;
* a block stays in its slot while a batch that needs it is with a consumer;
* a slot stays as it is while a batch that was lent lies in it, and what a consumer could write to is not sent again;
* each claim of a rank on a block is closed by one of its batches, or released when the rank's plan is given up.

Why it cannot get stuck: blocks are issued in the order of urgency (see `RankState`). If a rank starves, no slot is
free, and its next batch lacks a block, a decoded block that is needed later than that batch, or never, is evicted and
decoded again in time. This finds a slot as long as the arena has as many slots as one batch has blocks, for each rank:
a rank may have many batches in hand, but more than one only while they use no more than its share of the slots, so a
rank that waits for another (ranks train in step) never holds what that one needs. Memory is bound by the number of
slots, whatever the order needs; eviction only costs time. Slots that lent batches may hold come on top of those.

Whose fault a death is: a worker decodes its blocks in the order in which it was given them, so the first unfinished one
is what it died on. The next worker says which piece (row group) of it it begins; after `_MAX_KILLS` deaths that piece's
rows are given up as if its data were bad, which in effect it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, assert_never

import numpy as np

from o41td.coordinator.block_table import Block, BlockState, BlockTable
from o41td.coordinator.blocks import BlockPiece
from o41td.coordinator.event_story import EventStory
from o41td.coordinator.events import (
    BadRows,
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    Instruction,
    KillWorker,
    PieceWasBegun,
    PlannedBatch,
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
from o41td.coordinator.invariants import check_invariants
from o41td.coordinator.rank_state import RankState
from o41td.coordinator.stand_ins import StandIns
from o41td.coordinator.worker_state import WorkerState
from o41td.error_records import error_to_record
from o41td.errors import MemoryBoundError
from o41td.shm.slots import SlotPool

__all__ = ["LoaderState"]

_MAX_KILLS = 3
_MAX_SENT_AT_ONCE = 64
_NEVER = (1 << 62, 0)
_blocks_of = attrgetter("blocks")


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
        crash_error: Callable[[Block, int, str, int | None], dict[str, Any]],
        stand_ins: StandIns | None = None,
        num_ranks: int = 1,
        lent_slots: Sequence[int] = (),
    ) -> None:
        """`window_batches` bounds batches sent and not gathered, `ahead_rows` what is planned beyond them to find work.

        `crash_error` words the error of a block's piece that kills its workers. `stand_ins` replaces rows that cannot
        be had; without, they are the end of the stream. `num_ranks` is how many ranks may be attached at once;
        `num_slots` must be as many times the blocks of one batch, and beside them as many as `lent_slots` says: for
        each stage, how many slots a consumer may hold by batches that lie there; none where it is empty.
        """
        self.table = table
        self.slots = SlotPool(num_slots)
        self.workers = {worker: WorkerState(worker) for worker in range(workers)}
        self.ranks: dict[int, RankState] = {}
        self.blocks_decoded = 0
        self.blocks_evicted = 0
        self.has_more_to_plan = False  # whether time should pass soon, to plan what the last event left
        self.lookahead = lookahead
        self._window = window_batches
        self._ahead_rows = ahead_rows
        self._stall_timeout_s = stall_timeout_s
        self._crash_error = crash_error
        self._stand_ins = stand_ins
        self._num_ranks = num_ranks
        self._lent_slots = lent_slots
        self._now_s = 0.0
        self._num_served = 0
        self._instructions: list[Instruction] = []
        self._story = EventStory()

    def set_window(self, window_batches: int) -> None:
        """Sets how many batches may be sent and not gathered (stages have batches of different sizes)."""
        self._window = window_batches

    def current_blocks(self) -> Iterator[tuple[int, Block, float]]:
        """Yields for each worker that is at work: its number, the block that it decodes, and for how many seconds."""
        for worker in self.workers.values():
            if worker.queue:
                yield worker.worker, self.table[worker.queue[0]], self._now_s - worker.since_s

    @property
    def num_bad_rows(self) -> int:
        """Rows for which others stand in."""
        return self._stand_ins.num_bad_rows if self._stand_ins is not None else 0

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Takes one event and returns what is to be done about it, in order.

        Raises:
            AssertionError: The event is impossible now, which is a bug of ours; its notes tell the last events.
        """
        self._story.note(event)
        try:
            self._take(event)
        except AssertionError as error:
            self._story.tell_in(error)
            raise
        instructions, self._instructions = self._instructions, []
        return instructions

    def _take(self, event: Event) -> None:
        plan_fully = False
        match event:
            case BatchesWereGathered():
                self._gathered(event)
            case SlotsWereHeld():
                num_free = self.slots.num_free
                self.slots.keep(event.slots)
                if self.slots.num_free == num_free and all(rank.sent for rank in self.ranks.values()):
                    return  # no slot is free that was not, none may be evicted, and who has batches will say so
            case BlockWasDecoded():
                self._decoded(event)
            case BlockWasRefused():
                self._refused(event)
            case PieceWasBegun():
                worker = self.workers[event.worker]
                assert worker.is_at(event.handle), f"worker {event.worker} is not at {event.handle}"
                self.table[event.handle].current_piece = event.piece
                worker.since_s = self._now_s
            case TimePassed():
                self._now_s = event.now_s
                self._look_for_stalls()
                plan_fully = True
            case WorkerBecameReady():
                assert not self.workers[event.worker].ready, f"worker {event.worker} is ready twice"
                self.workers[event.worker].ready = True
            case WorkerExited():
                self._worker_exited(event)
            case WorkerWaited():
                self.workers[event.worker].vouched_s = self._now_s
            case RankAttached():
                self._attach(event)
            case RankLeft():
                self._detach(event.rank)
            case _:
                assert_never(event)
        self._make_progress(plan_fully=plan_fully)

    def _attach(self, event: RankAttached) -> None:
        before = self.ranks.pop(event.rank, None)
        assert len(self.ranks) < self._num_ranks, f"rank {event.rank} is one more than {self._num_ranks}"
        rank = RankState(event.rank, event.generation, event.plan, self._next_serving())
        self.ranks[event.rank] = rank
        self._plan(rank, fully=False)  # claims what both need before the earlier claims go
        if before is not None:
            self._forget(before)
            self._decode_lent_anew()

    def _detach(self, rank: int) -> None:
        state = self.ranks.pop(rank, None)
        if state is not None:
            self._forget(state)

    def _forget(self, rank: RankState) -> None:
        for batch in (*rank.sent, *rank.unsent):
            for handle in batch.closes:
                self.release_claim(handle)
        for handle in rank.plan.open_handles():
            self.release_claim(handle)

    def _decode_lent_anew(self) -> None:
        """Gives up the slots out of which batches were lent: what is in them may be anything by now."""
        for block in [block for block in self.table if block.is_lent]:
            self._evict(block)

    def _gathered(self, event: BatchesWereGathered) -> None:
        rank = self.ranks.get(event.rank)
        if rank is None or rank.generation != event.generation:
            return  # a message that crossed a reposition
        assert rank.num_gathered <= event.gathered <= rank.num_sent, (
            f"gathered {event.gathered} of {rank.num_sent} sent"
        )
        for handle in rank.gather(event.gathered - rank.num_gathered):
            self.release_claim(handle)

    def _worker_exited(self, event: WorkerExited) -> None:
        worker = self.workers[event.worker]
        self.workers[event.worker] = WorkerState(event.worker, restarts=worker.restarts + 1)
        for place, handle in enumerate(worker.queue):
            block = self.table[handle]
            self.slots.release(self.table.vacate(block))
            block.worker = None
            self.table.move(block, "worker lost")
            if block.state is BlockState.DROPPED:
                continue
            if place == 0:
                block.kills += 1
                if block.kills >= _MAX_KILLS and self._blame(block, event):
                    continue
            self._want_again(block)
        self._instructions.append(StartWorker(event.worker))

    def _blame(self, block: Block, event: WorkerExited) -> bool:
        """Gives up the piece that a block's workers died on; returns whether that leaves nothing of the block."""
        number = 0 if len(block.pieces) == 1 else block.current_piece
        error = self._crash_error(block, number or 0, event.cause, event.exit_code)
        if number is not None:
            block.kills = 1  # the others are taken up with care
            if self._replaced(block, [_rows_of(block.pieces[number], error)]):
                return False
            block.lost[number] = error
            if len(block.lost) < len(block.pieces):
                return False
        self.table.move(block, "refuse")
        block.error = error
        return True

    def _replaced(self, block: Block, bad: Sequence[BadRows]) -> bool:
        """Has other rows decoded in the place of bad ones; returns whether that is done, else `block.bad` says why."""
        block.bad = tuple(bad)
        if not bad or self._stand_ins is None:
            return False
        replacement = self._stand_ins.replace(block, bad)
        self._instructions.extend(replacement.found)
        block.bad = replacement.bad
        if replacement.pieces is None:
            return False
        block.pieces, block.lost = replacement.pieces, {}
        return True

    def _finished_by(self, worker_id: int, handle: int) -> Block:
        worker = self.workers[worker_id]
        assert worker.is_at(handle), f"worker {worker_id} finished {handle}, holds {worker.queue}"
        worker.queue.popleft()
        worker.since_s = self._now_s
        block = self.table[handle]
        block.worker = None
        return block

    def _decoded(self, event: BlockWasDecoded) -> None:
        block = self._finished_by(event.worker, event.handle)
        self.blocks_decoded += 1
        if block.state is BlockState.ORPHANED:
            self.slots.release(self.table.vacate(block))
        elif self._decode_anew(block, event.bad):
            return
        self.table.move(block, "decoded")

    def _refused(self, event: BlockWasRefused) -> None:
        """The error reaches a rank when its next batch is one that lacks this block: all before it still arrive."""
        block = self._finished_by(event.worker, event.handle)
        if block.state is BlockState.ISSUED and self._decode_anew(block, event.bad):
            return
        self.slots.release(self.table.vacate(block))
        self.table.move(block, "refuse")
        block.error = (block.bad or event.bad)[0].error

    def _decode_anew(self, block: Block, bad: Sequence[BadRows]) -> bool:
        """Has a block that is done decoded again where others stand in for its bad rows; returns whether that is so."""
        if not self._replaced(block, (*bad, *_lost_rows(block))):
            return False
        self.slots.release(self.table.vacate(block))
        self.table.move(block, "decode anew")
        self._want_again(block)
        return True

    def _look_for_stalls(self) -> None:
        for worker in self.workers.values():
            silent_s = self._now_s - max(worker.since_s, worker.vouched_s)
            if worker.queue and not worker.stalled and silent_s > self._stall_timeout_s:
                worker.stalled = True
                cause = f"it made no progress for {self._stall_timeout_s:g} s (stall_timeout_s)"
                self._instructions.append(KillWorker(worker.worker, cause))

    # ---- claims ----------------------------------------------------------------------------------------------------

    def release_claim(self, handle: int) -> None:
        """Gives up one claim on a block; without claims it is dropped."""
        block = self.table[handle]
        block.claims -= 1
        assert block.claims >= 0, f"released too often: {block.told()}"
        if block.claims:
            return
        if block.state is BlockState.DECODED:
            self.slots.release(self.table.vacate(block))
        self.table.move(block, "drop")
        for rank in self.ranks.values():
            rank.forget(handle)

    # ---- progress --------------------------------------------------------------------------------------------------

    def _make_progress(self, *, plan_fully: bool) -> None:
        self.has_more_to_plan = False
        for rank in self.ranks.values():
            self._plan(rank, fully=plan_fully)
            self._send(rank)
        self._issue()

    def _plan(self, rank: RankState, *, fully: bool) -> None:
        """Plans until there is enough to issue and enough to send.

        Where not `fully`, at most a burst more than the next batch: the first blocks and batches shall not wait until
        all is planned. Time passes after every other event, and then the rest is.
        """
        target = self.lookahead * len(self.workers)
        planned = False
        while not (rank.plan_ended or rank.told_failure):
            if planned and not fully:
                self.has_more_to_plan = True
                return
            if len(rank.unsent) >= self._window and (
                rank.num_wanted >= target or not self.slots.num_free or rank.unsent_rows >= self._ahead_rows
            ):
                return
            batches = rank.plan.next_batches()
            rank.expect(batches, self.table)
            rank.plan_ended = not batches
            planned = bool(rank.unsent)

    def _want_again(self, block: Block) -> None:
        for rank in self.ranks.values():
            rank.want_again(block)

    def _send(self, rank: RankState) -> None:
        num_ready = self._num_ready(rank)
        if num_ready:
            rank.served_at = self._next_serving()
        for first in range(0, num_ready, _MAX_SENT_AT_ONCE):
            batches = rank.send(min(_MAX_SENT_AT_ONCE, num_ready - first))
            releases = rank.asked_of(
                batches,
                of_closing=not self.slots.num_free,  # a worker that is done with its block has the next
                at_least_every=max(1, self._window // 2),
                of_last=not self._is_next_under_way(rank),
            )
            if self._lends_in(rank.plan.stage):
                self.table.note_lent(batches)
            rows = self.table.arena_rows(batches)
            self._instructions.append(
                SendBatches(rank.rank, rank.generation, rank.plan.stage, batches, *rows, releases)
            )
        if rank.unsent:
            self._fail_if_hopeless(rank)
        elif rank.plan_ended and not rank.told_end:
            rank.told_end = True
            self._instructions.append(SendEnd(rank.rank, rank.generation, rank.plan.dropped_rows()))

    def _lends_in(self, stage: int) -> bool:
        return bool(self._lent_slots) and self._lent_slots[stage] > 0

    def can_be_held(self, slots: Collection[int]) -> bool:
        """Whether batches may lie in these slots: no more than is allowed, and each of them filled."""
        filled = {block.slot for block in self.table if block.state is BlockState.DECODED}
        most = max(self._lent_slots, default=0)
        return len(slots) <= most and all(slot in filled or self.slots.is_kept(slot) for slot in slots)

    def _is_next_under_way(self, rank: RankState) -> bool:
        """Whether the rank's next batch waits for workers alone, and so for nothing that its consumer has to say."""
        if self._num_ranks > 1 or not rank.unsent:
            return False
        lacking = self.table.undecoded.intersection(rank.unsent[0].blocks)
        return bool(lacking) and all(self.table[handle].state is BlockState.ISSUED for handle in lacking)

    def _num_ready(self, rank: RankState) -> int:
        """Returns how many of the next batches can be sent now."""
        room = self._window - rank.num_ungathered
        undecoded, tainted = self.table.undecoded, self.table.tainted
        batches: Iterator[PlannedBatch] = islice(rank.unsent, max(0, room))
        if tainted:
            batches = takewhile(lambda batch: not self._has_bad_rows(batch), batches)
        num_ready = len(list(takewhile(undecoded.isdisjoint, map(_blocks_of, batches))))
        return num_ready if self._num_ranks == 1 else self._within_share(rank, num_ready)

    def _has_bad_rows(self, batch: PlannedBatch) -> bool:
        return not self.table.tainted.isdisjoint(batch.blocks) and self.table.error_in(batch) is not None

    def _within_share(self, rank: RankState, num_batches: int) -> int:
        """Returns how many of the next batches fit, beside those that are sent, into the rank's share of the slots."""
        share = self.slots.num_slots // self._num_ranks
        pinned = rank.pinned()
        for place, batch in enumerate(islice(rank.unsent, num_batches)):
            pinned.update(batch.blocks)
            if len(pinned) > share and (place or rank.sent):
                return place
        return num_batches

    def _next_serving(self) -> int:
        self._num_served += 1
        return self._num_served

    def _fail_if_hopeless(self, rank: RankState) -> None:
        """Tells a rank whose next batch cannot be had.

        Only when every block that it lacks is refused: so the error, that of its first bad row, is the same each time.
        """
        if rank.told_failure:
            return
        blocks = rank.unsent[0].blocks
        error: dict[str, Any] | None = None
        if not (self.table.refused.isdisjoint(blocks) and self.table.tainted.isdisjoint(blocks)):
            lacking = [handle for handle in blocks if handle in self.table.undecoded]
            if self.table.refused.issuperset(lacking):
                error = self.table.error_in(rank.unsent[0])
        room = self.slots.num_slots - max(self._lent_slots, default=0)
        if error is None and len(blocks) > room:
            detail = f"a batch of {rank.unsent[0].num_rows} rows lies in {len(blocks)} blocks; the arena has room for"
            advice = "Raise memory_limit_bytes, or set a smaller batch_size or block_rows"
            error = error_to_record(MemoryBoundError(f"{detail} {room}", advice=advice))
        if error is not None:
            rank.told_failure = True
            self._instructions.append(SendFailure(rank.rank, rank.generation, error))

    def _issue(self) -> None:
        """Gives blocks to workers in the order of urgency, while there are slots and room in a worker's queue."""
        num_aside = 0
        while (wanted := self._first_wanted()) is not None:
            need, block = wanted
            able = [w for w in self.workers.values() if w.ready and not w.stalled and len(w.queue) < self.lookahead]
            worker = self._worker_for(block, able)
            if worker is None and able and self.slots.num_free > num_aside + 1:  # a slot is left to each that waits
                num_aside += 1
                for rank in self.ranks.values():
                    rank.set_aside(block)
                continue
            if worker is None or not (self.slots.num_free or self._make_room(need)):
                break
            if self._stand_ins is not None and block.tries is None:
                self._stand_ins.prepare(block)
            self.table.move(block, "issue")
            block.worker = worker.worker
            slot = self.slots.acquire(block.key)
            assert slot is not None
            self.table.hold(block, slot)
            if not worker.queue:
                worker.since_s = self._now_s
            worker.queue.append(block.handle)
            worker.last_unit = _last_unit(block)
            block.current_piece = None
            self._instructions.append(
                DecodeInto(
                    worker.worker,
                    block.handle,
                    slot,
                    block.key,
                    block.planned,
                    block.pieces,
                    careful=block.kills > 0,
                    without=frozenset(block.lost),
                )
            )
        for rank in self.ranks.values():
            rank.take_back()

    def _first_wanted(self) -> tuple[tuple[int, int], Block] | None:
        """Returns the most urgent block that waits, after its need: (distance, when the rank was served last)."""
        first: tuple[tuple[int, int], Block] | None = None
        for rank in self.ranks.values():
            wanted = rank.first_wanted()
            if wanted is not None and (first is None or (wanted[0], rank.served_at) < first[0]):
                first = (wanted[0], rank.served_at), wanted[1]
        return first

    def _worker_for(self, block: Block, able: Sequence[WorkerState]) -> WorkerState | None:
        """The worker with the shortest queue; for a slice the one that had the slice before, or None: it waits for it.

        Another would fetch and decode the unit again from its beginning, and be none the sooner.
        """
        piece = block.pieces[0]
        if piece.row_start:
            unit = (block.key.stage, block.key.source, piece.unit)
            for worker in self.workers.values():
                if worker.last_unit == unit and worker.ready and not worker.stalled:
                    return worker if worker in able else None
        return min(able, key=lambda worker: (len(worker.queue), worker.worker), default=None)

    def _make_room(self, need: tuple[int, int]) -> bool:
        """Evicts the decoded block that is needed latest, if it is needed after the batch for which a rank starves."""
        if need[0] > 0:
            return False
        pinned = set().union(*[rank.pinned() for rank in self.ranks.values()])
        needs = {
            block.handle: _NEVER
            for block in self.table
            if block.state is BlockState.DECODED and block.handle not in pinned and not self._is_kept(block)
        }
        for rank in self.ranks.values():
            left = set(needs)
            for distance, batch in rank.distances():
                for handle in left.intersection(batch.blocks):
                    needs[handle] = min(needs[handle], (distance, rank.served_at))
                    left.discard(handle)
                if not left:
                    break
        latest = max(needs, key=lambda handle: (needs[handle], handle), default=None)
        if latest is None or needs[latest] <= need:
            return False
        self._evict(self.table[latest])
        return True

    def _is_kept(self, block: Block) -> bool:
        return block.slot is not None and self.slots.is_kept(block.slot)

    def _evict(self, block: Block) -> None:
        self.slots.release(self.table.vacate(block))
        self.table.move(block, "evict")
        self.blocks_evicted += 1
        self._want_again(block)

    def validate(self) -> None:
        """Checks every invariant; O(blocks + planned batches), for tests and simulations.

        Raises:
            AssertionError: One does not hold; its notes tell the last events.
        """
        try:
            check_invariants(self)
        except AssertionError as error:
            self._story.tell_in(error)
            raise


def _last_unit(block: Block) -> tuple[int, int, int]:
    return (block.key.stage, block.key.source, block.pieces[-1].unit)


def _lost_rows(block: Block) -> list[BadRows]:
    """The rows of the pieces that were given up."""
    return [_rows_of(block.pieces[number], error) for number, error in block.lost.items()]


def _rows_of(piece: BlockPiece, error: dict[str, Any]) -> BadRows:
    return BadRows(np.arange(piece.block_row, piece.block_row + piece.row_stop - piece.row_start), error)
