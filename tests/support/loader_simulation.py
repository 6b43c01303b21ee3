"""A seeded scheduler that drives the real `LoaderState`, `RankPlan` and `BlockTable` with fake workers and consumers.

At each step it picks one of the events that could happen next: a worker becomes ready, finishes, refuses, dies or
stalls; a consumer gathers, tells of it, seeks, leaves or comes back; a message arrives late. After a number of such
steps there is calm: everyone does what is asked, nobody dies or moves, and the stream must come to its end.

The arena is a list with the record that each row holds, spoilt from the moment a worker may write there, so a batch
that is gathered too late, too early or from the wrong rows does not show the records that the order says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from o41td.coordinator.block_table import Block, BlockTable
from o41td.coordinator.events import (
    BadRows,
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    KillWorker,
    PieceWasBegun,
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
from o41td.coordinator.state import LoaderState
from simulated_case import SimulatedCase, SimulatedStage, case_of

__all__ = ["Simulation", "SimulationFailed", "shortest_failure"]

_STALL_S = 100.0
_CALM_EVENTS = 6000
_CASES_SHARE = 100  # runs that share a case, whose oracle is worked out once

Action = tuple[str, Callable[[], None]]


class SimulationFailed(AssertionError):
    """What went wrong, with the seed and the story of the last events."""


@dataclass
class FakeWorker:
    """A worker process: what it was told to decode; `killed` ones die at some later event."""

    number: int
    ready: bool = False
    killed: bool = False
    orders: deque[DecodeInto] = field(default_factory=deque)


@dataclass
class FakeConsumer:
    """A rank's trainer. `outbox` are messages on their way to the coordinator, which keeps their order."""

    rank: int
    world_size: int
    stage: SimulatedStage | None = None
    position: int = 0
    generation: int = 0
    announced: deque[tuple[int, list[int]]] = field(default_factory=deque)
    num_announced: int = 0
    gathered: int = 0
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


class Simulation:
    """One run. Everything that happens is a function of `seed` and `chaos`, the number of steps before the calm."""

    def __init__(self, seed: int, chaos: int | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.case: SimulatedCase = case_of(seed // _CASES_SHARE)
        self.story: list[str] = []
        random = self.random
        self.num_ranks = random.choice([1, 1, 1, 2, 3])
        self.world_size = self.num_ranks + random.choice([0, 0, 1, 2])
        self.in_step = random.random() < 0.6
        self.prefetch = random.randint(1, 2)
        self.burst_rows = random.choice([8, 24, 72])
        self.table = BlockTable(self.case.block_rows)
        self.num_slots = self.num_ranks * self.case.most_blocks + random.choice([0, 0, 0, 1, 3, 20])
        self.state = LoaderState(
            table=self.table,
            num_slots=self.num_slots,
            workers=random.randint(1, 3),
            lookahead=random.randint(1, 2),
            window_batches=random.randint(1, 5),
            ahead_rows=random.choice([0, 10, 40]),
            stall_timeout_s=_STALL_S,
            crash_error=self._crash_error,
            num_ranks=self.num_ranks,
        )
        self.arena: list[Any] = [None] * (self.num_slots * self.case.block_rows)
        self.workers = {number: FakeWorker(number) for number in self.state.workers}
        self.consumers = [FakeConsumer(rank, self.world_size) for rank in range(self.num_ranks)]
        self.deaths_left = random.choice([0, 0, 2, 6])
        self.moves_left = random.choice([0, 1, 3])
        self.now_s = 0.0
        self.chaos = random.randint(0, 40) if chaos is None else chaos
        self.late: list[BatchesWereGathered] = []
        self.batches_checked = 0

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs to the end.

        Raises:
            SimulationFailed: Something is not as it must be.
        """
        try:
            self._move_all()
            for _ in range(self.chaos):
                self._step(self._legal() + self._chaotic())
            self.story.append("-- calm --")
            for _ in range(_CALM_EVENTS):
                if all(consumer.is_done and not consumer.outbox for consumer in self.consumers):
                    break
                actions = self._legal()
                assert actions, f"nothing can happen any more; ranks {self._stuck()}"
                self._step(actions)
            assert all(consumer.is_done for consumer in self.consumers), f"no end; ranks {self._stuck()}"
            self._leave_all()
        except Exception as error:
            story = "\n  ".join(self.story[-60:])
            raise SimulationFailed(f"seed {self.seed}, chaos {self.chaos}: {error!r}\n  {story}") from error

    def _stuck(self) -> list[tuple[int, bool, int, int]]:
        return [(c.rank, c.is_done, c.num_announced, c.gathered) for c in self.consumers]

    def _step(self, actions: list[Action]) -> None:
        if actions:
            name, action = self.random.choice(actions)
            self.story.append(name)
            action()
        if self.random.random() < 0.5:
            self._tell(TimePassed(self.now_s))
        if self.late and self.random.random() < 0.1:
            self._repeat_late()

    def _tell(self, event: Event) -> None:
        instructions = self.state.handle(event)
        self.state.validate()
        for instruction in instructions:
            match instruction:
                case DecodeInto():
                    self._spoil(instruction)
                    self.workers[instruction.worker].orders.append(instruction)
                    self.story.append(
                        f"    -> worker {instruction.worker} decodes {instruction.handle} {instruction.key}"
                    )
                case SendBatches():
                    self._announce(instruction)
                case SendEnd() | SendFailure():
                    self._conclude(instruction)
                case StartWorker():
                    self.workers[instruction.worker] = FakeWorker(instruction.worker)
                case KillWorker():
                    self.workers[instruction.worker].killed = True
                    self.story.append(f"    -> kill worker {instruction.worker}")

    def _legal(self) -> list[Action]:
        actions: list[Action] = []
        for worker in self.workers.values():
            if worker.killed:
                actions.append((f"worker {worker.number} is dead: killed", lambda w=worker: self._exit(w)))
            elif not worker.ready:
                actions.append((f"worker {worker.number} is ready", lambda w=worker: self._become_ready(w)))
            elif worker.orders:
                actions.append((f"worker {worker.number} answers", lambda w=worker: self._answer(w)))
        for consumer in self.consumers:
            if consumer.outbox:
                actions.append((f"rank {consumer.rank}'s message arrives", lambda c=consumer: self._deliver(c)))
            if consumer.announced and self._may_gather(consumer):
                actions.append((f"rank {consumer.rank} gathers", lambda c=consumer: self._gather(c)))
            if consumer.told < consumer.gathered:
                actions.append(
                    (f"rank {consumer.rank} tells of {consumer.gathered}", lambda c=consumer: self._acknowledge(c))
                )
        return actions

    def _repeat_late(self) -> None:
        """A message that was overtaken by its rank's next move; the same may come again."""
        event = self.random.choice(self.late)
        served = self.state.ranks.get(event.rank)
        if served is None or event.generation < served.generation:
            self.story.append(
                f"rank {event.rank} told of {event.count} in generation {event.generation}, it is heard now"
            )
            self._tell(event)

    def _chaotic(self) -> list[Action]:
        actions: list[Action] = []
        if self.deaths_left:
            actions += [(f"worker {w.number} dies", lambda w=w: self._die(w)) for w in self.workers.values()]
            actions.append(("a long time passes", self._stall))
        if self.moves_left:
            actions.append(("ranks move", self._move))
            actions.append(("a rank leaves", self._leave))
        return actions

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _spoil(self, order: DecodeInto) -> None:
        first = order.slot * self.case.block_rows
        self.arena[first : first + self.case.block_rows] = [f"spoilt by {order.key}"] * self.case.block_rows

    def _become_ready(self, worker: FakeWorker) -> None:
        worker.ready = True
        self._tell(WorkerBecameReady(worker.number))

    def _answer(self, worker: FakeWorker) -> None:
        order = worker.orders.popleft()
        units = {
            (order.key.stage, order.key.source, piece.unit)
            for number, piece in enumerate(order.pieces)
            if number not in order.without
        }
        for number, piece in enumerate(order.pieces):
            if number in order.without:
                continue
            if order.careful:
                self._tell(PieceWasBegun(worker.number, order.handle, number))
            if (order.key.stage, order.key.source, piece.unit) in self.case.deadly_units:
                worker.orders.appendleft(order)
                self._exit(worker)
                return
        if units & self.case.refused_units:
            whole = BadRows(np.arange(order.block.num_rows), {"units": units})
            self._tell(BlockWasRefused(worker.number, order.handle, (whole,)))
            return
        index = self.case.stages[order.key.stage].sources[order.key.source]
        bad = []
        slot_row = {row: place for place, row in enumerate(order.block.rows_in_slot().tolist())}
        for number, piece in enumerate(order.pieces):
            if number in order.without:
                continue
            unit = (order.key.stage, order.key.source, piece.unit)
            if unit in self.case.bad_units:
                stop = piece.block_row + piece.row_stop - piece.row_start
                bad.append(BadRows(np.arange(piece.block_row, stop), {"units": {unit}}))
                continue
            first = order.slot * self.case.block_rows
            shard, shard_row = int(index.unit_shard[piece.unit]), int(index.unit_first_row[piece.unit])
            for place, row in enumerate(range(piece.row_start, piece.row_stop)):
                at = first + slot_row[piece.block_row + place]
                self.arena[at] = (index.source, shard, shard_row + row)
        self._tell(BlockWasDecoded(worker.number, order.handle, tuple(bad)))

    def _die(self, worker: FakeWorker) -> None:
        self.deaths_left -= 1
        order = worker.orders[0] if worker.orders else None
        if order is not None and order.careful and self.random.random() < 0.7:
            begun = [number for number in range(len(order.block.pieces)) if number not in order.without]
            self._tell(PieceWasBegun(worker.number, order.handle, self.random.choice(begun)))
        self._exit(worker)

    def _exit(self, worker: FakeWorker) -> None:
        for order in worker.orders:
            self._spoil(order)  # to its last breath it may have written there
        worker.orders.clear()
        worker.killed = False
        cause, code = self.random.choice([("SIGKILL", -9), ("SIGSEGV", -11), ("it exited", 0), ("it exited", 1)])
        self._tell(WorkerExited(worker.number, cause, code))

    def _stall(self) -> None:
        self.deaths_left -= 1
        self.now_s += _STALL_S * self.random.choice([0.6, 1.5])
        self._tell(TimePassed(self.now_s))

    @staticmethod
    def _crash_error(block: Block, piece: int, cause: str, exit_code: int | None) -> dict[str, Any]:
        assert block.kills == 3
        is_known = block.current_piece is not None or len(block.planned.pieces) == 1
        blamed = [block.planned.pieces[piece]] if is_known else block.planned.pieces
        units = {(block.key.stage, block.key.source, each.unit) for each in blamed}
        return {"units": units, "cause": cause, "exit_code": exit_code}

    # ---- consumers -------------------------------------------------------------------------------------------------

    def _may_gather(self, consumer: FakeConsumer) -> bool:
        """In step, no trainer gets further ahead of the slowest than its prefetched batches."""
        if not self.in_step:
            return True
        others = [other.gathered for other in self.consumers if other is not consumer and not other.is_done]
        return consumer.gathered < min(others, default=consumer.gathered) + self.prefetch

    def _announce(self, send: SendBatches) -> None:
        consumer = self.consumers[send.rank]
        if send.generation != consumer.generation or consumer.stage is None:
            return
        assert send.stage == consumer.stage.number
        for batch, rows in zip(send.batches, send.arena_rows, strict=True):
            expected = consumer.next_number
            assert batch.number == expected, f"rank {consumer.rank} is sent {batch.number}, not {expected}"
            consumer.num_announced += 1
            if batch.number < consumer.stage.num_batches:
                consumer.announced.append((batch.number, rows.tolist()))
        self.story.append(f"    -> rank {consumer.rank} is sent {[batch.number for batch in send.batches]}")

    def _conclude(self, told: SendEnd | SendFailure) -> None:
        consumer = self.consumers[told.rank]
        if told.generation != consumer.generation or consumer.stage is None:
            return
        assert consumer.ended is None
        assert consumer.failed is None
        number, order = consumer.next_number, consumer.stage.order
        self.story.append(f"    -> rank {consumer.rank}: {told}")
        if isinstance(told, SendEnd):
            rounds = order.rounds(consumer.position, self.world_size)
            assert consumer.num_announced == rounds, f"ended after {consumer.num_announced} of {rounds}"
            assert told.dropped_rows == order.dropped_rows(consumer.position, consumer.rank, self.world_size)
            consumer.ended = told.dropped_rows
            return
        consumer.failed = told.error
        if number < consumer.stage.num_batches:
            source, unit, _ = order.coordinates(number)
            needed = [(consumer.stage.number, s, u) for s, u in zip(source.tolist(), unit.tolist(), strict=True)]
            assert told.error["units"] & set(needed), f"batch {number} needs {needed}, not {told.error}"
            if not (self.case.refused_units | self.case.deadly_units or "cause" in told.error):
                first_bad = next(unit for unit in needed if unit in self.case.bad_units)
                assert told.error["units"] == {first_bad}

    def _gather(self, consumer: FakeConsumer) -> None:
        assert consumer.stage is not None
        for _ in range(self.random.randint(1, len(consumer.announced))):
            number, rows = consumer.announced.popleft()
            found = [self.arena[row] for row in rows]
            assert found == consumer.stage.records[number], (
                f"batch {number}: {found}, not {consumer.stage.records[number]}"
            )
            consumer.gathered += 1
            self.batches_checked += 1
            if not self._may_gather(consumer):
                return

    def _acknowledge(self, consumer: FakeConsumer) -> None:
        consumer.told = consumer.gathered
        event = BatchesWereGathered(consumer.rank, consumer.generation, consumer.told)
        consumer.outbox.append(lambda: event)

    def _deliver(self, consumer: FakeConsumer) -> None:
        self._tell(consumer.outbox.popleft()())

    def _move(self) -> None:
        self.moves_left -= 1
        if self.in_step:
            self._move_all()
        else:
            consumer = self.random.choice(self.consumers)
            stage = self.random.choice(self.case.stages)
            self._serve(consumer, stage, self.random.randint(0, stage.num_batches))

    def _move_all(self) -> None:
        stage = self.random.choice(self.case.stages)
        position = self.random.choice([0, 0, self.random.randint(0, stage.num_batches)])
        for consumer in self.consumers:
            self._serve(consumer, stage, position)

    def _serve(self, consumer: FakeConsumer, stage: SimulatedStage, position: int) -> None:
        if consumer.generation:
            count = self.random.randint(0, 6)
            self.late.append(BatchesWereGathered(consumer.rank, consumer.generation, count))
        consumer.stage, consumer.position = stage, position
        consumer.generation += 1
        consumer.announced.clear()
        consumer.num_announced = consumer.gathered = consumer.told = 0
        consumer.ended = consumer.failed = None
        rank, generation = consumer.rank, consumer.generation
        self.story.append(f"    rank {rank} wants stage {stage.number} from {position} on (generation {generation})")

        def attached() -> Event:
            plan = stage.plan(
                self.table,
                self.case.block_rows,
                position=position,
                rank=rank,
                world_size=self.world_size,
                burst_rows=self.burst_rows,
            )
            return RankAttached(rank, generation, plan)

        consumer.outbox.append(attached)

    def _leave(self) -> None:
        self.moves_left -= 1
        consumer = self.random.choice(self.consumers)
        consumer.stage = None
        consumer.announced.clear()
        consumer.told = consumer.gathered
        event = RankLeft(consumer.rank)
        consumer.outbox.append(lambda: event)

    def _leave_all(self) -> None:
        """Once all ranks are gone and all workers have answered, nothing is held."""
        for consumer in self.consumers:
            self._tell(RankLeft(consumer.rank))
        for worker in self.workers.values():
            while self.state.workers[worker.number].queue:
                self._answer(self.workers[worker.number])
        assert self.state.slots.num_free == self.num_slots
        assert not len(self.table)


def shortest_failure(seed: int, chaos: int) -> SimulationFailed | None:
    """Returns the failure of the run with the fewest chaotic steps that still fails; None where none does."""
    for steps in range(chaos + 1):
        try:
            Simulation(seed, steps).run()
        except SimulationFailed as failed:
            return failed
    return None
