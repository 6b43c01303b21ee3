"""A `RankPlan` worked out once and played back in many runs: what it tells depends on the order alone, not on a run.

A plan knows its block table only as the giver of handles, so its claims and batches are noted with handles of their own
and translated on the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import PlannedBlock
from o41td.coordinator.events import BlockKey, BurstRows, PlannedBatch, RowRun
from o41td.coordinator.rank_plan import RankPlan

__all__ = ["PlanRecord", "RecordedPlan"]


@dataclass(frozen=True)
class _Burst:
    """What one call of `next_batches` claimed (the handle, and what for) and gave, and the claims then open."""

    claims: list[tuple[int, BlockKey, PlannedBlock]]
    batches: list[PlannedBatch]
    open_handles: list[int]


class _Ledger(BlockTable):
    """A table whose blocks are never released, so each has a handle of its own; notes each claim."""

    def __init__(self, block_rows: int) -> None:
        super().__init__(block_rows)
        self.noted: list[tuple[int, BlockKey, PlannedBlock]] = []

    def claim(self, key: BlockKey, planned: PlannedBlock) -> int:
        handle = super().claim(key, planned)
        self.noted.append((handle, key, planned))
        return handle

    def taken(self) -> list[tuple[int, BlockKey, PlannedBlock]]:
        """Returns the claims since the last call."""
        noted, self.noted = self.noted, []
        return noted


class PlanRecord:
    """A plan's bursts, each worked out when a run first comes to it."""

    def __init__(self, make: Callable[[BlockTable], RankPlan], block_rows: int) -> None:
        """`make` makes the plan over a table."""
        self._ledger = _Ledger(block_rows)
        self.plan = make(self._ledger)
        self._bursts = [_Burst(self._ledger.taken(), [], self.plan.open_handles())]

    def burst(self, number: int) -> _Burst:
        """Returns what the plan's making did (0), or its call so many of `next_batches`."""
        while len(self._bursts) <= number:
            batches = self.plan.next_batches()
            self._bursts.append(_Burst(self._ledger.taken(), batches, self.plan.open_handles()))
        return self._bursts[number]


class RecordedPlan:
    """The plan of a record, over the table of a run."""

    def __init__(self, record: PlanRecord, table: BlockTable) -> None:
        self.stage = record.plan.stage
        self._record = record
        self._table = table
        self._num_bursts = -1
        self._handles: dict[int, int] = {}
        self._open: list[int] = []
        self.next_batches()

    def next_batches(self) -> list[PlannedBatch]:
        """As `RankPlan.next_batches`."""
        self._num_bursts += 1
        burst = self._record.burst(self._num_bursts)
        handles = self._handles
        for noted, key, planned in burst.claims:
            handles[noted] = self._table.claim(key, planned)
        self._open = [handles[noted] for noted in burst.open_handles]
        translation = np.full(max(handles, default=0) + 1, -1)
        translation[list(handles)] = list(handles.values())
        return [
            PlannedBatch(
                number=batch.number,
                digest=batch.digest,
                num_rows=batch.num_rows,
                rows=_translated(batch.rows, translation),
                blocks=tuple([handles[noted] for noted in batch.blocks]),
                closes=tuple([handles[noted] for noted in batch.closes]),
            )
            for batch in burst.batches
        ]

    def dropped_rows(self) -> int:
        """As `RankPlan.dropped_rows`."""
        return self._record.plan.dropped_rows()

    def open_handles(self) -> list[int]:
        """As `RankPlan.open_handles`."""
        return self._open


def _translated(rows: RowRun | BurstRows, translation: NDArray[np.int64]) -> RowRun | BurstRows:
    if isinstance(rows, RowRun):
        return rows._replace(handle=int(translation[rows.handle]))
    return rows._replace(burst=replace(rows.burst, handles=translation[rows.burst.handles]))
