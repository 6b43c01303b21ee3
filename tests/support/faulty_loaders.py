"""State machines with one fault each, to see the simulation find it: every fault is one that a person might make."""

from __future__ import annotations

from typing import Any

from o41td.coordinator.block_table import Block, BlockState
from o41td.coordinator.events import (
    BatchesWereGathered,
    PlannedBatch,
    SendBatches,
    SlotsWereHeld,
    TimePassed,
    WorkerExited,
)
from o41td.coordinator.rank_state import RankState
from o41td.coordinator.state import LoaderState

__all__ = ["FAULTY_LENDERS", "FAULTY_LOADERS"]


class KeepsTheSlotOfARefusedBlock(LoaderState):
    """A block that cannot be decoded gives its slot back to nobody."""

    def _refused(self, event: Any) -> None:
        released = self.slots.release
        self.slots = _Forgetful(self.slots)  # type: ignore[assignment]
        super()._refused(event)
        self.slots = released.__self__  # type: ignore[attr-defined]


class _Forgetful:
    """A pool that does not hear of a release."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def release(self, slot: int) -> None:
        """Forgets it."""


class KeepsTheSlotOfAnUnclaimedBlock(LoaderState):
    """When the last claim on a decoded block goes, its slot stays taken."""

    def release_claim(self, handle: int) -> None:
        pool, self.slots = self.slots, _Forgetful(self.slots)  # type: ignore[assignment]
        super().release_claim(handle)
        self.slots = pool


class SendsABatchTwice(LoaderState):
    """The last message of batches goes out again with the next one."""

    def _send(self, rank: RankState) -> None:
        super()._send(rank)
        if self._instructions and isinstance(self._instructions[-1], SendBatches) and rank.num_sent > 3:
            self._instructions.append(self._instructions[-1])


class SendsBatchesThatAreNotThere(LoaderState):
    """Nobody asks whether the last block of a batch is decoded."""

    def _num_ready(self, rank: RankState) -> int:
        ready = super()._num_ready(rank)
        following = rank.unsent[ready].blocks if len(rank.unsent) > ready else ()
        lacking = self.table.undecoded.intersection(following)
        return ready + 1 if len(lacking) == 1 and rank.num_ungathered + ready < self._window else ready


class SendsMoreThanTheWindow(LoaderState):
    """One batch more than may be in hand."""

    def _num_ready(self, rank: RankState) -> int:
        self._window += 1
        ready = super()._num_ready(rank)
        self._window -= 1
        return ready


class SendsBadRows(LoaderState):
    """Nobody looks for rows that could not be had."""

    def _has_bad_rows(self, _batch: PlannedBatch) -> bool:
        return False


class BelievesLateMessages(LoaderState):
    """What a rank told of an earlier place is taken for the present one."""

    def _gathered(self, event: BatchesWereGathered) -> None:
        rank = self.ranks.get(event.rank)
        if rank is not None:
            count = max(rank.num_gathered, min(event.gathered, rank.num_sent))
            event = event._replace(generation=rank.generation, gathered=count)
        super()._gathered(event)


class GivesTheBlocksOfADyingWorkerAway(LoaderState):
    """A worker that is killed is taken for dead, before it is: it may still write to its slots."""

    def _look_for_stalls(self) -> None:
        before = {number for number, worker in self.workers.items() if worker.stalled}
        super()._look_for_stalls()
        for number, worker in list(self.workers.items()):
            if worker.stalled and number not in before:
                for handle in list(worker.queue):
                    block = self.table[handle]
                    if block.state is BlockState.ISSUED:
                        worker.queue.remove(handle)
                        self.slots.release(self.table.vacate(block))
                        block.worker = None
                        self.table.move(block, "worker lost")
                        self._want_again(block)


class ForgetsWhatADeadWorkerHad(LoaderState):
    """The blocks of a dead worker are not queued again."""

    def _worker_exited(self, event: WorkerExited) -> None:
        self._want_again = lambda _block: None  # type: ignore[method-assign]
        super()._worker_exited(event)
        del self._want_again


class ForgetsToDecodeAnEvictedBlockAgain(LoaderState):
    """An evicted block is queued for nobody."""

    def _make_room(self, need: tuple[int, int]) -> bool:
        self._want_again = lambda _block: None  # type: ignore[method-assign]
        made = super()._make_room(need)
        del self._want_again
        return made


class ForgetsClaimsOfARankThatLeaves(LoaderState):
    """What a plan has open when its rank goes stays claimed."""

    def _forget(self, rank: RankState) -> None:
        for batch in (*rank.sent, *rank.unsent):
            for handle in batch.closes:
                self.release_claim(handle)


class EvictsWhatIsBeingRead(LoaderState):
    """A block may go whose rows a consumer still copies."""

    def _make_room(self, need: tuple[int, int]) -> bool:
        sent = {number: rank.sent for number, rank in self.ranks.items()}
        for rank in self.ranks.values():
            rank.sent = type(rank.sent)()
        made = super()._make_room(need)
        for number, batches in sent.items():
            self.ranks[number].sent = batches
        return made


class NeverMakesRoom(LoaderState):
    """A rank that starves gets no slot while all are taken."""

    def _make_room(self, need: tuple[int, int]) -> bool:
        return False


class AsksTooLittleOfConsumers(LoaderState):
    """A rank that needs slots is not asked whether it has gathered what lies in them."""

    def _is_next_under_way(self, _rank: RankState) -> bool:
        return True


class LetsARankHoldAllSlots(LoaderState):
    """A rank's share of the slots is not asked for, so one that waits for another can hold what that one needs."""

    def _within_share(self, _rank: RankState, num_batches: int) -> int:
        return num_batches


class BlamesTheWrongBlock(LoaderState):
    """Every block that a dead worker had counts as the one that it died on."""

    def _worker_exited(self, event: WorkerExited) -> None:
        for handle in list(self.workers[event.worker].queue)[1:]:
            self.table[handle].kills += 1
        super()._worker_exited(event)


class FailsTooSoon(LoaderState):
    """A refused block fails its rank before the other blocks of the batch are known, so the error depends on timing."""

    def _fail_if_hopeless(self, rank: RankState) -> None:
        undecoded, self.table.undecoded = self.table.undecoded, set(self.table.refused)
        super()._fail_if_hopeless(rank)
        self.table.undecoded = undecoded


class GivesAWorkerTooMuch(LoaderState):
    """The shortest queue gets one more block, however long it is."""

    def _issue(self) -> None:
        self.lookahead += 1
        super()._issue()
        self.lookahead -= 1


class FillsWhereABatchLies(LoaderState):
    """What a consumer says of batches that it holds is not listened to."""

    def _take(self, event: Any) -> None:
        super()._take(TimePassed(self._now_s) if isinstance(event, SlotsWereHeld) else event)

    def can_be_held(self, slots: Any) -> bool:
        """Believes everything."""
        return True


class SendsWhatWasWrittenTo(LoaderState):
    """A rank that moves may be sent rows that its batches of before were, and were written to."""

    def _decode_lent_anew(self) -> None:
        for block in self.table:
            block.is_lent = False


class EvictsWhereABatchLies(LoaderState):
    """A block is evicted for its slot's sake while a batch lies there."""

    def _is_kept(self, block: Block) -> bool:
        return False


FAULTY_LOADERS: list[type[LoaderState]] = [
    KeepsTheSlotOfARefusedBlock,
    KeepsTheSlotOfAnUnclaimedBlock,
    SendsABatchTwice,
    SendsBatchesThatAreNotThere,
    SendsMoreThanTheWindow,
    SendsBadRows,
    BelievesLateMessages,
    GivesTheBlocksOfADyingWorkerAway,
    ForgetsWhatADeadWorkerHad,
    ForgetsToDecodeAnEvictedBlockAgain,
    ForgetsClaimsOfARankThatLeaves,
    EvictsWhatIsBeingRead,
    NeverMakesRoom,
    AsksTooLittleOfConsumers,
    LetsARankHoldAllSlots,
    BlamesTheWrongBlock,
    FailsTooSoon,
    GivesAWorkerTooMuch,
]
"""Found by simulations of any loader."""

FAULTY_LENDERS: list[type[LoaderState]] = [
    FillsWhereABatchLies,
    SendsWhatWasWrittenTo,
    EvictsWhereABatchLies,
]
"""Found by those of loaders that lend batches."""
