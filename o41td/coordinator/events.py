"""What the coordinator's state machine is told (events, past tense) and what it asks for (instructions, imperative).

Named tuples: every loader makes these classes as it starts, and frozen dataclasses take ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.blocks import BlockPiece, PlannedBlock

__all__ = [
    "BadRows",
    "BatchPlan",
    "BatchesWereGathered",
    "BlockKey",
    "BlockWasDecoded",
    "BlockWasRefused",
    "Burst",
    "BurstRows",
    "DecodeInto",
    "Event",
    "FoundBadRows",
    "Instruction",
    "KillWorker",
    "PieceWasBegun",
    "PlannedBatch",
    "RankAttached",
    "RankLeft",
    "SendBatches",
    "SendEnd",
    "SendFailure",
    "SlotsWereHeld",
    "StartWorker",
    "TimePassed",
    "WorkerBecameReady",
    "WorkerExited",
    "WorkerWaited",
]


class BlockKey(NamedTuple):
    """Names a block for as long as a loader lives: `lane` is -1 for a resident block, which belongs to no lane."""

    stage: int
    source: int
    lane: int
    x_start: int


class RowRun(NamedTuple):
    """Rows that follow each other in one block's slot: the block's handle in the block table, the first's slot row."""

    handle: int
    first: int

    @property
    def burst(self) -> None:
        """Such rows need no burst to be told."""


class RowPlaces(NamedTuple):
    """Of each row: its block's handle in the block table, and the row of its slot; int64 [num_rows]."""

    handles: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Burst:
    """Rows of batches that were planned together: of each its block, as a place in `handles`, and the row of its slot.

    int64: `handles` [blocks], `block` and `rows` [batches, rows of a batch].
    """

    handles: NDArray[np.int64]
    block: NDArray[np.int64]
    rows: NDArray[np.int64]


class BurstRows(NamedTuple):
    """The rows of the batch at a place of a burst: batches that follow each other there are sent as one slice of it."""

    burst: Burst
    place: int


class PlannedBatch(NamedTuple):
    """One batch of one rank: which row of which block each of its rows is.

    `blocks` are the distinct handles, in the order in which they are best decoded. Once the batch is gathered, this
    rank has no more need of the blocks in `closes`.
    """

    number: int
    digest: int
    num_rows: int
    rows: RowRun | BurstRows
    blocks: tuple[int, ...]
    closes: tuple[int, ...]

    def places(self) -> RowPlaces:
        """Returns where the rows are, one by one."""
        if isinstance(self.rows, BurstRows):
            burst, place = self.rows
            return RowPlaces(burst.handles[burst.block[place]], burst.rows[place])
        handle, first = self.rows
        return RowPlaces(np.full(self.num_rows, handle), np.arange(first, first + self.num_rows))


class BatchPlan(Protocol):
    """A rank's batches from a place on. Pure; it allots and claims block handles through the state's block table."""

    stage: int

    def next_batches(self) -> Sequence[PlannedBatch]:
        """Returns some more batches, in order; none when the stage is over for this rank."""

    def dropped_rows(self) -> int:
        """Returns this rank's share of the rows that the end of the stage leaves out."""

    def open_handles(self) -> Sequence[int]:
        """Returns the claims that no batch handed out closes; once the plan is given up, they must be."""


class BadRows(NamedTuple):
    """Rows of a block that cannot be had, in the line's order, ascending: int64; and the error record that says why."""

    rows: NDArray[np.int64]
    error: dict[str, Any]


class RankAttached(NamedTuple):
    """A rank wants the batches of `plan`; a later one of the same rank replaces an earlier one."""

    rank: int
    generation: int
    plan: BatchPlan


class RankLeft(NamedTuple):
    """A rank is gone."""

    rank: int


class BatchesWereGathered(NamedTuple):
    """The rank has copied the first `gathered` batches of this generation out of the arena."""

    rank: int
    generation: int
    gathered: int


class SlotsWereHeld(NamedTuple):
    """Batches that were lent lie in these slots, and in no others; the slots stay as they are until they do not."""

    slots: frozenset[int]


class WorkerBecameReady(NamedTuple):
    """A worker takes orders."""

    worker: int


class WorkerExited(NamedTuple):
    """A worker is dead and reaped: nothing of it can touch a slot any more. `cause` is for people."""

    worker: int
    cause: str
    exit_code: int | None


class WorkerWaited(NamedTuple):
    """A worker waits for a store that is slow or away, which it asks again and again: it is not stuck."""

    worker: int


class BlockWasDecoded(NamedTuple):
    """A slot holds a block, but for its `bad` rows."""

    worker: int
    handle: int
    bad: tuple[BadRows, ...] = ()


class PieceWasBegun(NamedTuple):
    """A careful worker begins a piece of the block that it decodes."""

    worker: int
    handle: int
    piece: int


class BlockWasRefused(NamedTuple):
    """None of a block's rows can be had, for reasons that lie in the data."""

    worker: int
    handle: int
    bad: tuple[BadRows, ...]


class TimePassed(NamedTuple):
    """The monotonic clock stands at `now_s`."""

    now_s: float


Event = (
    RankAttached
    | RankLeft
    | BatchesWereGathered
    | SlotsWereHeld
    | WorkerBecameReady
    | WorkerExited
    | WorkerWaited
    | BlockWasDecoded
    | BlockWasRefused
    | PieceWasBegun
    | TimePassed
)


class DecodeInto(NamedTuple):
    """Have a worker decode a block into a slot: its `pieces`, `without` some of them.

    A `careful` worker says which piece it begins: an earlier one died on this block.
    """

    worker: int
    handle: int
    slot: int
    key: BlockKey
    block: PlannedBlock
    pieces: tuple[BlockPiece, ...]
    careful: bool = False
    without: frozenset[int] = frozenset()


class SendBatches(NamedTuple):
    """Tell a rank of batches that are all in the arena.

    The rows of batch i are those from arena row `first_rows[i]` on; where that is -1, `arena_rows` (int64) holds them,
    behind those of all such batches before it. The consumer is to say that it has gathered batch i where
    `releases[i]`.
    """

    rank: int
    generation: int
    stage: int
    batches: tuple[PlannedBatch, ...]
    first_rows: list[int]
    arena_rows: NDArray[np.int64]
    releases: list[bool]


class SendEnd(NamedTuple):
    """Tell a rank that its stage is over."""

    rank: int
    generation: int
    dropped_rows: int


class SendFailure(NamedTuple):
    """Tell a rank that the batch behind those sent cannot be had."""

    rank: int
    generation: int
    error: dict[str, Any]


class FoundBadRows(NamedTuple):
    """Write down that rows of a source cannot be had, and that others stand in for them: rows of a unit, ascending."""

    stage: int
    source: int
    unit: int
    rows: NDArray[np.int64]
    error: dict[str, Any]


class StartWorker(NamedTuple):
    """Start a worker in the place of one that is gone."""

    worker: int


class KillWorker(NamedTuple):
    """Kill a worker that holds a lease for too long; `WorkerExited` follows."""

    worker: int
    cause: str


Instruction = DecodeInto | SendBatches | SendEnd | SendFailure | FoundBadRows | StartWorker | KillWorker
