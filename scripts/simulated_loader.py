"""Loaders in simulated time: real state machines and plans; workers, stores and trainers that only take time.

A worker fetches all that it is ordered at once and decodes in the order in which it was told, as the real ones do. Time
is a heap of what happens next; ranks train in step, so a step begins when the slowest has its batch.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from simulated_fleet import Fleet

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.events import (
    BatchesWereGathered,
    BlockWasDecoded,
    DecodeInto,
    Event,
    RankAttached,
    SendBatches,
    SendEnd,
    TimePassed,
    WorkerBecameReady,
)
from o41td.coordinator.rank_plan import RankPlan
from o41td.coordinator.sizing import LoaderSize
from o41td.coordinator.state import LoaderState

__all__ = ["Pace", "RunInStep", "Trouble"]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a store and a worker are: a request's round trip, one worker's link, CPU seconds a decoded byte."""

    latency_s: float = 0.05
    link_bytes_per_s: float = 200e6
    decode_s_per_byte: float = 3.6e-9


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One fetch in `one_in` takes `delay_s` longer; `slow_ranks` ranks decode `slow_factor` times as slowly."""

    name: str
    one_in: int = 0
    delay_s: float = 0.0
    slow_ranks: int = 0
    slow_factor: float = 1.0


class Clock:
    """Simulated time, and what is to happen when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Has something happen."""
        heapq.heappush(self._due, (when_s, next(self._order), action))

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Lets time pass."""
        while not is_done():
            self.now_s, _, action = heapq.heappop(self._due)
            action()

    def pass_time(self, for_s: float) -> None:
        """Lets so much time pass."""
        until_s = self.now_s + for_s
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._due)
            action()
        self.now_s = until_s


@dataclass
class _Worker:
    free_s: float = 0.0
    units: dict[int, float] = field(default_factory=dict)  # those it has, or has asked for, and when they are there


class _Loader:
    """One rank's loader and trainer."""

    def __init__(
        self, fleet: Fleet, size: LoaderSize, rank: int, *, clock: Clock, pace: Pace, trouble: Trouble, position: int
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._pace = pace
        self._trouble = trouble
        self._slowness = trouble.slow_factor if rank < trouble.slow_ranks else 1.0
        self._luck = Random(rank)
        self._rank = rank
        self.table = BlockTable(size.layout.block_rows)
        self.state = LoaderState(
            table=self.table,
            num_slots=size.layout.num_slots,
            workers=fleet.threads,
            lookahead=fleet.lookahead,
            window_batches=size.window_batches[0],
            ahead_rows=size.ahead_rows,
            stall_timeout_s=1e9,
            crash_error=lambda *_: {},
        )
        self._workers = [_Worker() for _ in range(fleet.threads)]
        self._announced: deque[bool] = deque()
        self._num_gathered = 0
        self.num_ahead = 0
        self.rows_decoded = 0
        self.most_slots = 0
        self.requests: list[tuple[float, int]] = []
        for worker in range(fleet.threads):
            self._tell(WorkerBecameReady(worker))
        plan = RankPlan(
            fleet.order,
            [fleet.index],
            stage=0,
            position=position,
            global_batch=position,
            rank=rank,
            world_size=fleet.num_ranks,
            block_rows=size.layout.block_rows,
            resident=frozenset(),
            table=self.table,
        )
        self._tell(RankAttached(rank, 0, plan))
        self._gather()

    def take(self) -> bool:
        """The trainer takes a batch, if one is there."""
        if not self.num_ahead:
            return False
        self.num_ahead -= 1
        self._gather()
        return True

    def _gather(self) -> None:
        while self._announced and self.num_ahead < self._fleet.prefetch_batches:
            self.num_ahead += 1
            self._num_gathered += 1
            if self._announced.popleft():
                self._tell(BatchesWereGathered(self._rank, 0, self._num_gathered))

    def _tell(self, event: Event) -> None:
        instructions = self.state.handle(event)
        while self.state.has_more_to_plan:
            instructions += self.state.handle(TimePassed(self._clock.now_s))
        for instruction in instructions:
            if isinstance(instruction, DecodeInto):
                self._decode(instruction)
            elif isinstance(instruction, SendBatches):
                self._announced.extend(instruction.releases)
            else:
                assert isinstance(instruction, SendEnd), instruction
        self.most_slots = max(self.most_slots, self.state.slots.num_slots - self.state.slots.num_free)

    def _decode(self, order: DecodeInto) -> None:
        worker, now_s = self._workers[order.worker], self._clock.now_s
        units = [piece.unit for piece in order.pieces]
        for unit in units:
            if unit not in worker.units:
                worker.units[unit] = now_s + self._fetch_s(unit)
        begins_s = max(worker.free_s, *[worker.units[unit] for unit in units])
        worker.units = {unit: there_s for unit, there_s in worker.units.items() if there_s > now_s or unit == units[-1]}
        decoded_bytes = order.block.num_rows * self._fleet.workload.row_bytes
        worker.free_s = begins_s + decoded_bytes * self._pace.decode_s_per_byte * self._slowness
        self.rows_decoded += order.block.num_rows
        self._clock.at(worker.free_s, lambda: self._decoded(order))

    def _fetch_s(self, unit: int) -> float:
        self.requests.append((self._clock.now_s, int(self._fleet.unit_requests[unit])))
        took_s = 2 * self._pace.latency_s * self._luck.lognormvariate(0.0, 0.5)  # the footer, then the columns
        took_s += int(self._fleet.index.unit_compressed_bytes[unit]) / self._pace.link_bytes_per_s
        if self._trouble.one_in and self._luck.randrange(self._trouble.one_in) == 0:
            took_s += self._trouble.delay_s
        return took_s

    def _decoded(self, order: DecodeInto) -> None:
        self._tell(BlockWasDecoded(order.worker, order.handle))
        self._gather()


class RunInStep:
    """`num_ranks` of a fleet's ranks train `num_steps` steps from batch `position` on, each in step with all others."""

    def __init__(
        self, fleet: Fleet, *, num_ranks: int, num_steps: int, trouble: Trouble, pace: Pace, position: int = 0
    ) -> None:
        size = fleet.size()
        self._clock = clock = Clock()
        # Ranks of a fleet are alike, but for their data: those that are here are its first.
        self.loaders = [
            _Loader(fleet, size, rank, clock=clock, pace=pace, trouble=trouble, position=position)
            for rank in range(num_ranks)
        ]
        self.first_batch_s = 0.0
        self.waits_s: list[float] = []  # of each step but the first: until the last rank had its batch
        self.own_waits_s = [0.0] * num_ranks
        for step in range(num_steps):
            wanted_s = clock.now_s
            without = set(range(num_ranks))
            while without := self._without(without, since_s=wanted_s):
                clock.run_until(partial(self._has_one, without))
            if step:
                self.waits_s.append(clock.now_s - wanted_s)
            else:
                self.first_batch_s = clock.now_s
                self.own_waits_s = [0.0] * num_ranks
            clock.pass_time(fleet.workload.step_s)
        self.wall_s = clock.now_s - self.first_batch_s
        self.trained_s = num_steps * fleet.workload.step_s

    def _has_one(self, ranks: set[int]) -> bool:
        return any(self.loaders[rank].num_ahead for rank in ranks)

    def _without(self, ranks: set[int], *, since_s: float) -> set[int]:
        """Has ranks take a batch; returns those for which there is none."""
        took = {rank for rank in ranks if self.loaders[rank].take()}
        for rank in took:
            self.own_waits_s[rank] += self._clock.now_s - since_s
        return ranks - took

    @property
    def lost_share(self) -> float:
        """Of the time since the first batch, how much all ranks waited for the slowest."""
        return sum(self.waits_s) / self.wall_s

    @property
    def lost_alone(self) -> float:
        """The same of a rank by itself, on average."""
        return sum(self.own_waits_s) / len(self.own_waits_s) / self.wall_s

    def requests_per_s(self, begin_s: float, end_s: float) -> float:
        """Requests of a rank a second, on average, in a stretch of time."""
        requests = sum(number for loader in self.loaders for at_s, number in loader.requests if begin_s <= at_s < end_s)
        return requests / len(self.loaders) / (end_s - begin_s)
