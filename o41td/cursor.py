"""Where a stream is: the stages it took batches of, in order."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Cursor", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``batches`` batches of ``stage`` in a row: from number ``position`` of it, global batch ``global_batch``, on."""

    stage: int
    position: int
    global_batch: int
    batches: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """The history of a stream as runs of (stage, batches taken), over all ranks.

    Neighbouring runs of one stage are one run, and a run of no batches is dropped unless it is the last: the last run
    names the current stage. Equal histories are equal cursors. The batch taken next is number ``batches`` in the order
    all ranks share, and number ``stage_position(stage)`` in its stage.

    Attributes:
        history: The runs; at least one.
    """

    history: tuple[tuple[int, int], ...] = ((0, 0),)

    def __post_init__(self) -> None:
        """Bring the history into its one form."""
        object.__setattr__(self, "history", _normal_history(self.history))

    @property
    def batches(self) -> int:
        """Global batches taken."""
        return sum(batches for _, batches in self.history)

    @property
    def stage(self) -> int:
        """The current stage."""
        return self.history[-1][0]

    def stage_position(self, stage: int) -> int:
        """Return the batches of ``stage`` taken so far: the number in the stage of its next batch."""
        return sum(batches for run_stage, batches in self.history if run_stage == stage)

    def advanced(self, stage: int) -> "Cursor":
        """Return the cursor with ``stage`` as the current stage, which goes on where it was left."""
        return Cursor((*self.history, (stage, 0)))

    def moved(self, batches: int) -> "Cursor":
        """Return the cursor after ``batches`` more global batches of the current stage."""
        if batches < 0:
            raise ValueError(f"cannot move by {batches} batches / use sought() to go back")
        return Cursor((*self.history, (self.stage, batches)))

    def sought(self, batch: int) -> "Cursor":
        """Return the cursor whose next batch is global batch ``batch``.

        In the history, what comes after ``batch`` is forgotten; beyond it, the current stage goes on.
        """
        if batch < 0:
            raise ValueError(f"global batch {batch} / batches are numbered from 0")
        if batch >= self.batches:
            return self.moved(batch - self.batches)
        before = 0
        for index, (stage, batches) in enumerate(self.history):
            if batch < before + batches:
                return Cursor((*self.history[:index], (stage, batch - before)))
            before += batches
        raise AssertionError("unreachable: batch lies in the history")

    def locate(self, batch: int) -> tuple[int, int]:
        """Return the stage of global batch ``batch`` and its number there; past the end, of the current stage."""
        there = self.sought(batch)
        return there.stage, there.stage_position(there.stage)

    def global_batch_of(self, stage: int, number: int) -> int | None:
        """Return the global batch that batch ``number`` of ``stage`` was or, in the current stage, will be.

        None for what lies ahead in another stage: nobody knows yet when that goes on.
        """
        runs = self.runs()
        for run in runs:
            if run.stage == stage and run.position <= number < run.position + run.batches:
                return run.global_batch + number - run.position
        last = runs[-1]
        is_ahead = last.stage == stage and number >= last.position
        return last.global_batch + number - last.position if is_ahead else None

    def runs(self) -> list[Run]:
        """Return the history's runs, each with where it begins."""
        runs: list[Run] = []
        positions: dict[int, int] = {}
        global_batch = 0
        for stage, batches in self.history:
            position = positions.get(stage, 0)
            runs.append(Run(stage=stage, position=position, global_batch=global_batch, batches=batches))
            positions[stage] = position + batches
            global_batch += batches
        return runs

    def to_record(self) -> list[list[int]]:
        """Return the history as plain lists: ``[[stage, batches], ...]``."""
        return [[stage, batches] for stage, batches in self.history]

    @classmethod
    def from_record(cls, record: object) -> "Cursor":
        """Return the cursor of a record made by ``to_record``.

        Raises:
            ValueError: If it is not a list of pairs of non-negative integers.
        """
        if not isinstance(record, list | tuple):
            raise ValueError(f"cursor {record!r} / must be a list of [stage, batches]")
        return cls(tuple(_run_of(run) for run in record))


def _run_of(run: object) -> tuple[int, int]:
    """Return a run, checked."""
    if not isinstance(run, list | tuple) or len(run) != 2 or not all(type(number) is int for number in run):
        raise ValueError(f"cursor run {run!r} / must be [stage, batches], two integers")
    return run[0], run[1]


def _normal_history(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the runs with neighbours of one stage merged and empty runs dropped, but for the last."""
    if not runs:
        raise ValueError("cursor without a run / the last run names the current stage")
    merged: list[tuple[int, int]] = []
    for stage, batches in runs:
        if stage < 0 or batches < 0:
            raise ValueError(f"cursor run ({stage}, {batches}) / neither may be negative")
        if merged and merged[-1][1] == 0:
            merged.pop()
        if merged and merged[-1][0] == stage:
            merged[-1] = (stage, merged[-1][1] + batches)
        else:
            merged.append((stage, batches))
    return tuple(merged)
