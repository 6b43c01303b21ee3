"""What a simulated loader serves: tiny stages, and what the order says of each of their batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from random import Random

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.rank_plan import RankPlan
from o41td.coordinator.stand_ins import StandIns
from o41td.index import SourceIndex
from o41td.order import Purpose, StageOrder, stream_key
from o41td.order.hash import mix64
from recorded_plan import PlanRecord, RecordedPlan
from source_cases import Record, make_source, records_of_batch

__all__ = ["SimulatedCase", "SimulatedStage", "case_of"]

_HORIZON = 24
_SEED = 5


@dataclass(frozen=True)
class SimulatedStage:
    """A stage; of an infinite one only the batches below `num_batches` are ever asked for.

    Ranks go to one of a few `places` of it, parts of its length, so that many runs share a plan's record.
    """

    number: int
    order: StageOrder
    sources: list[SourceIndex]
    resident: frozenset[int]
    places: tuple[float, ...]
    records_of_plans: dict[tuple[int, int, int, int], PlanRecord] = field(default_factory=dict, compare=False)

    @cached_property
    def num_batches(self) -> int:
        """Batches that ranks take."""
        return min(_HORIZON, self.order.num_batches if self.order.num_batches is not None else _HORIZON)

    @cached_property
    def positions(self) -> list[int]:
        """The batches at which ranks begin."""
        return [round(place * self.num_batches) for place in self.places]

    @cached_property
    def records(self) -> list[list[Record]]:
        """The records of each batch, straight from the order."""
        return [records_of_batch(self.order, self.sources, number) for number in range(self.num_batches)]

    @cached_property
    def unit_records(self) -> list[list[list[Record]]]:
        """The records of each row of each unit of each source, as a worker decodes them."""
        return [
            [
                [(index.source, int(shard), int(first) + row) for row in range(int(rows))]
                for shard, first, rows in zip(index.unit_shard, index.unit_first_row, index.unit_rows, strict=True)
            ]
            for index in self.sources
        ]

    @cached_property
    def unit_of(self) -> dict[Record, tuple[int, int, int]]:
        """The unit that each record lies in."""
        return {
            record: (self.number, source, unit)
            for source, units in enumerate(self.unit_records)
            for unit, records in enumerate(units)
            for record in records
        }

    def plan(
        self, table: BlockTable, block_rows: int, *, position: int, rank: int, world_size: int, burst_rows: int
    ) -> RecordedPlan:
        """A rank's plan from a place on."""
        place = (position, rank, world_size, burst_rows)
        record = self.records_of_plans.get(place)
        if record is None:
            record = self.records_of_plans[place] = PlanRecord(
                lambda ledger: RankPlan(
                    self.order,
                    self.sources,
                    stage=self.number,
                    position=position,
                    global_batch=position,
                    rank=rank,
                    world_size=world_size,
                    block_rows=block_rows,
                    resident=self.resident,
                    table=ledger,
                    burst_rows=burst_rows,
                ),
                block_rows,
            )
        return RecordedPlan(record, table)


@dataclass(frozen=True)
class SimulatedCase:
    """The stages of one loader, and units that cannot be had, as (stage, source, unit).

    The rows of `bad_units` cannot, blocks with one of `refused_units` cannot, and `deadly_units` kill their worker. In
    a case that `is_replacing`, other rows stand in for those. `ranks_elsewhere` are those of other loaders; plans are
    worked out by bursts of about `burst_rows` rows.
    """

    stages: list[SimulatedStage]
    block_rows: int
    burst_rows: int
    ranks_elsewhere: int
    bad_units: frozenset[tuple[int, int, int]]
    refused_units: frozenset[tuple[int, int, int]]
    deadly_units: frozenset[tuple[int, int, int]]
    is_replacing: bool

    def stand_ins(self) -> StandIns | None:
        """What a loader of this case replaces bad rows with, however many."""
        if not self.is_replacing:
            return None
        return StandIns([stage.sources for stage in self.stages], seed=_SEED, budget=1.0)

    @cached_property
    def lost_units(self) -> frozenset[tuple[int, int, int]]:
        """Units that no block gives up rows of."""
        return self.bad_units | self.refused_units | self.deadly_units

    def delivered(self, stage: SimulatedStage, number: int) -> list[Record] | None:
        """The records of a batch as they must arrive; None where one of them can neither be had nor replaced."""
        if not self.is_replacing:
            return stage.records[number]
        source, unit, row = (column.tolist() for column in stage.order.coordinates(number))
        records = [self._delivered_row(stage, *place) for place in zip(source, unit, row, strict=True)]
        return None if None in records else [record for record in records if record is not None]

    def _delivered_row(self, stage: SimulatedStage, source: int, unit: int, row: int) -> Record | None:
        """The rule in plain numbers: the first stand-in that is in a good unit."""
        units = stage.unit_records[source]
        filled = [number for number, rows in enumerate(units) if rows]
        key = stream_key(_SEED, Purpose.STAND_IN, stage.number, source, unit)
        at, place = unit, row
        for number in range(1, 34):
            if (stage.number, source, at) not in self.lost_units:
                return units[at][place]
            which, shift = (mix64(key + (draw + 1) * 0x9E3779B97F4A7C15) for draw in (2 * number, 2 * number + 1))
            at = filled[which % len(filled)]
            place = (row + shift) % len(units[at])
        return None

    @cached_property
    def most_blocks(self) -> int:
        """Blocks of the batch that has most: the fewest slots with which a rank can be served."""
        most = 1
        for stage in self.stages:
            table = BlockTable(self.block_rows)
            plan = stage.plan(table, self.block_rows, position=0, rank=0, world_size=1, burst_rows=1)
            number = -1
            while number + 1 < stage.num_batches:
                for batch in plan.next_batches():
                    most, number = max(most, len(batch.blocks)), batch.number
        return most


@lru_cache(maxsize=64)
def case_of(seed: int, *, is_plain: bool = False) -> SimulatedCase:
    """The case that a seed stands for; in one that `is_plain`, most batches lie in one piece of the arena."""
    random = Random(seed)
    stage_of = _plain_stage_of if is_plain else _stage_of
    stages = [stage_of(random, number) for number in range(random.choice([1, 1, 2]))]
    units = [
        (stage.number, source.source, unit)
        for stage in stages
        for source in stage.sources
        for unit in range(len(source.unit_rows))
    ]
    case = SimulatedCase(
        stages=stages,
        block_rows=random.choice([6, 8, 12] if is_plain else [1, 2, 3, 4, 6, 8]),
        burst_rows=random.choice([8, 24, 72]),
        ranks_elsewhere=random.choice([0, 0, 1, 2]),
        bad_units=frozenset(random.sample(units, random.randint(1, 2)) if random.random() < 0.25 else ()),
        refused_units=frozenset(random.sample(units, random.randint(1, 2)) if random.random() < 0.2 else ()),
        deadly_units=frozenset(random.sample(units, 1) if random.random() < 0.15 else ()),
        is_replacing=False,
    )
    # A refused block says nothing of its rows one by one, so what stands in for them would depend on how blocks lie.
    return replace(case, is_replacing=not case.refused_units and random.random() < 0.3)


def _plain_stage_of(random: Random, number: int) -> SimulatedStage:
    """One source, blocks that are larger than batches, and no shuffle that reaches beyond one."""
    rows = [[random.randint(4, 12) for _ in range(random.randint(1, 3))] for _ in range(random.randint(2, 4))]
    source = make_source(rows, stage=number, source=0)
    order = StageOrder(
        seed=random.randint(0, 99),
        stage_index=number,
        unit_rows=[source.unit_rows],
        weights=[1.0],
        batch_size=random.randint(1, 3),
        buffer_rows=random.choice([0, 0, 4]),
        infinite=random.random() < 0.3,
        drop_last=random.random() < 0.3,
        lanes=random.choice([1, 1, 2]),
    )
    return SimulatedStage(number, order, [source], frozenset(), (0.0, 0.1, random.random(), random.random()))


def _stage_of(random: Random, number: int) -> SimulatedStage:
    infinite = random.random() < 0.4
    sources = [
        make_source(
            [[random.randint(0, 9) for _ in range(random.randint(1, 3))] for _ in range(random.randint(1, 4))] + [[3]],
            stage=number,
            source=source,
        )
        for source in range(random.randint(1, 3))
    ]
    order = StageOrder(
        seed=random.randint(0, 99),
        stage_index=number,
        unit_rows=[source.unit_rows for source in sources],
        weights=[random.choice([1.0, 2.0]) for _ in sources],
        batch_size=random.randint(1, 5),
        buffer_rows=random.choice([0, 2, 6, 12]),
        infinite=infinite,
        drop_last=random.random() < 0.3,
        lanes=random.randint(1, 3),
    )
    resident = frozenset(source.source for source in sources if infinite and random.random() < 0.7)
    places = (0.0, random.random(), random.random(), random.choice([random.random(), 1.0]))
    return SimulatedStage(number, order, sources, resident, places)
