"""A rank's plan where batches are excluded: a `RankPlan` a stretch, one after the other.

At a stretch's end the rank may go on in other lanes, since a range need not be a multiple of the world size. So the
stretch's last batch closes all that its plan had open; by then the next plan has its own claims on resident blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from o41td.coordinator.events import BatchPlan, PlannedBatch
from o41td.coordinator.rank_plan import RankPlan
from o41td.exclusions import Exclusions, rank_stretches
from o41td.index import SourceIndex
from o41td.order.stage import StageOrder

__all__ = ["ExcludingPlan", "plan_rank"]


class ExcludingPlan:
    """The batches of `rank` from a stage's batch `position` on that are not `excluded` (numbers of the stage)."""

    def __init__(
        self,
        order: StageOrder,
        sources: Sequence[SourceIndex],
        *,
        stage: int,
        position: int,
        global_batch: int,
        rank: int,
        world_size: int,
        excluded: Exclusions,
        **options: Any,
    ) -> None:
        """`options` are those of `RankPlan`."""
        self.stage = stage
        self._order = order
        self._sources = sources
        self._position = position
        self._global_offset = global_batch - position
        self._rank = rank
        self._world_size = world_size
        self._excluded = excluded
        self._options = options
        rounds = order.rounds(position, world_size, excluded)
        self._stretches = rank_stretches(position, rank, world_size, rounds, excluded)
        self._plan: RankPlan | None = None
        self._num_left: int | None = 0
        self._begin_stretch()

    def next_batches(self) -> list[PlannedBatch]:
        """Returns some more batches in order; none where the stage is over for this rank."""
        plan = self._plan
        if plan is None:
            return []
        batches = plan.next_batches()
        if self._num_left is not None:
            self._num_left -= len(batches)
            if not self._num_left:
                self._begin_stretch()
                batches[-1] = batches[-1]._replace(closes=(*batches[-1].closes, *plan.open_handles()))
        return batches

    def dropped_rows(self) -> int:
        """Returns this rank's share of the rows that the stage's end leaves out; what is excluded is not among them."""
        return self._order.dropped_rows(self._position, self._rank, self._world_size, self._excluded)

    def open_handles(self) -> list[int]:
        """Returns every claim that no batch handed out has closed."""
        return [] if self._plan is None else self._plan.open_handles()

    def _begin_stretch(self) -> None:
        start, first, num_batches = next(self._stretches, (0, 0, 0))
        self._num_left = num_batches
        if num_batches == 0:
            self._plan = None
            return
        self._plan = RankPlan(
            self._order,
            self._sources,
            stage=self.stage,
            position=start,
            global_batch=start + self._global_offset,
            rank=first,
            world_size=self._world_size,
            num_batches=num_batches,
            **self._options,
        )


def plan_rank(
    order: StageOrder,
    sources: Sequence[SourceIndex],
    *,
    position: int,
    global_batch: int,
    excluded: Exclusions,
    **options: Any,
) -> BatchPlan:
    """Returns the plan of a rank from a place on; `excluded` are global batches, `options` those of `RankPlan`."""
    ahead = excluded.shifted(global_batch - position)
    if not any(stop > position for _, stop in ahead.ranges):
        return RankPlan(order, sources, position=position, global_batch=global_batch, **options)
    return ExcludingPlan(order, sources, position=position, global_batch=global_batch, excluded=ahead, **options)
