"""A rank's trainer that is not there: it is told of batches, copies or borrows them, and checks every record.

What it borrows it writes to at once, and looks at when it gives it back: nobody may have written there meanwhile, and
nobody may be given what it wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from o41td.coordinator.events import Event, SendBatches, SendEnd, SendFailure
from simulated_case import SimulatedCase, SimulatedStage

__all__ = ["FakeConsumer"]


class _Loan(NamedTuple):
    """A batch that lies in the arena, in one slot, and what its holder has written there."""

    slot: int
    rows: list[int]
    written: list[Any]


@dataclass
class FakeConsumer:
    """A trainer. `outbox` are messages on their way to the coordinator, which keeps their order.

    `may_hold[stage]` slots at once may be held by what it borrows. `held_told` are those that it told of last.

    It has `gathered` so many batches, has `told` the coordinator of so many, and was to when it had `asked` so many.
    """

    rank: int
    world_size: int
    case: SimulatedCase
    arena: list[Any]
    window: int
    blamed: set[tuple[int, int, int]]
    stage: SimulatedStage | None = None
    position: int = 0
    generation: int = 0
    may_hold: list[int] = field(default_factory=list)
    loans: list[_Loan] = field(default_factory=list)
    held_told: frozenset[int] = frozenset()
    newest_slot: int = -1
    num_lent: int = 0
    announced: deque[tuple[int, list[int], bool, bool]] = field(default_factory=deque)
    num_announced: int = 0
    gathered: int = 0
    asked: int = 0
    told: int = 0
    ended: int | None = None
    failed: dict[str, Any] | None = None
    outbox: deque[Callable[[], Event]] = field(default_factory=deque)

    @property
    def is_done(self) -> bool:
        """Whether it wants no more batches."""
        if self.stage is None:
            return True
        enough = self.stage.num_batches != self.stage.order.num_batches and self.next_number >= self.stage.num_batches
        return not self.announced and (enough or self.ended is not None or self.failed is not None)

    @property
    def next_number(self) -> int:
        """The batch that it is sent next."""
        return self.position + self.rank + self.num_announced * self.world_size

    def want(self, stage: SimulatedStage | None, position: int = 0) -> None:
        """Wants the batches of a stage from a place on, or none any more; forgets what it was told before."""
        self.stage, self.position = stage, position
        self.announced.clear()
        self.num_announced = self.gathered = self.asked = self.told = 0
        self.ended = self.failed = None

    def hear(self, told: SendBatches | SendEnd | SendFailure) -> None:
        """Takes a message of the coordinator; one that crossed a move is not for it any more."""
        if told.generation != self.generation or self.stage is None:
            return
        assert self.ended is None, "a message behind the end"
        assert self.failed is None, "a message behind a failure"
        if isinstance(told, SendBatches):
            self._hear_of_batches(told, self.stage)
        elif isinstance(told, SendEnd):
            rounds = self.stage.order.rounds(self.position, self.world_size)
            assert self.num_announced == rounds, f"ended after {self.num_announced} of {rounds}"
            assert told.dropped_rows == self.stage.order.dropped_rows(self.position, self.rank, self.world_size)
            self.ended = told.dropped_rows
        else:
            self.failed = told.error
            if self.next_number < self.stage.num_batches:
                self._check_failure(told.error, self.stage)

    def _hear_of_batches(self, told: SendBatches, stage: SimulatedStage) -> None:
        assert told.stage == stage.number
        listed = told.arena_rows.tolist()
        for batch, first, release in zip(told.batches, told.first_rows, told.releases, strict=True):
            if first < 0:
                rows, listed = listed[: batch.num_rows], listed[batch.num_rows :]
            else:
                rows = list(range(first, first + batch.num_rows))
            assert len(rows) == batch.num_rows
            expected = self.next_number
            assert batch.number == expected, f"rank {self.rank} is sent {batch.number}, not {expected}"
            self.num_announced += 1
            if batch.number < stage.num_batches:
                self.announced.append((batch.number, rows, release, first >= 0))
        assert not listed, "rows of no batch"
        in_hand = self.num_announced - self.told
        assert in_hand <= self.window, f"rank {self.rank} has {in_hand} batches in hand, of at most {self.window}"

    def _check_failure(self, error: dict[str, Any], stage: SimulatedStage) -> None:
        """It is about the first row of the next batch that cannot be had, whichever block was found out first."""
        source, unit, _ = stage.order.coordinates(self.next_number)
        needed = [(stage.number, s, u) for s, u in zip(source.tolist(), unit.tolist(), strict=True)]
        case = self.case
        if case.is_replacing:
            assert case.delivered(stage, self.next_number) is None or "cause" in error, f"could be replaced: {error}"
            return
        without = case.lost_units
        # Rows before it may lie in a refused unit's block, or be lost to deaths: the error may be of one of those.
        first = next((place for place, unit in enumerate(needed) if unit in without), len(needed) - 1)
        assert error["units"] & set(needed[: first + 1]), f"batch {self.next_number} needs {needed}, not {error}"
        if without == case.bad_units and "cause" not in error:
            assert error["units"] == {needed[first]}

    def gather_next(self) -> None:
        """Takes a batch: its rows must be the order's, whatever has been written to the arena since it was sent."""
        assert self.stage is not None
        number, rows, release, is_run = self.announced.popleft()
        found = [self.arena[row] for row in rows]
        expected = self.case.delivered(self.stage, number)
        if self.blamed and expected is not None:  # stalls and deaths may have fallen on units that are good
            expected = [
                record if self.stage.unit_of[wanted] in self.blamed and record[0] == wanted[0] else wanted
                for record, wanted in zip(found, expected, strict=True)
            ]
        assert found == expected, f"batch {number}: {found}, not {expected}"
        if is_run:
            self._borrow(rows, self.stage.number)
        self.gathered += 1
        if release:
            self.asked = self.gathered

    # ---- what is borrowed --------------------------------------------------------------------------------------------

    @property
    def held(self) -> frozenset[int]:
        """The slots in which borrowed batches lie."""
        return frozenset(loan.slot for loan in self.loans)

    def _borrow(self, rows: list[int], stage: int) -> None:
        """Leaves a batch where it lies, and writes to it, where one more slot may be held."""
        slot, last_slot = rows[0] // self.case.block_rows, rows[-1] // self.case.block_rows
        assert slot == last_slot, "a batch in one piece that is in two slots"
        most = self.may_hold[stage] if self.may_hold else 0
        if not most or (slot != self.newest_slot and slot not in self.held and len(self.held) >= most):
            return
        self.newest_slot = slot
        self.num_lent += 1
        loan = _Loan(slot, rows, [("written", self.num_lent, row) for row in rows])
        for row, content in zip(loan.rows, loan.written, strict=True):
            self.arena[row] = content
        self.loans.append(loan)

    def give_back(self, luck: Random) -> None:
        """Lets go of a borrowed batch, in which nobody else may have written."""
        loan = self.loans.pop(luck.randrange(len(self.loans)))
        found = [self.arena[row] for row in loan.rows]
        assert found == loan.written, f"a batch that was lent became {found}, not {loan.written}"
