"""A seeded scheduler that drives the real `LoaderState` and `BlockTable` with real plans, fake workers and consumers.

At each step it picks one of the things that could happen next: a worker becomes ready, decodes, is heard, dies, stalls,
or is reaped with its last messages; a consumer gathers, gives back what it borrowed, tells of either, moves, leaves or
comes back; a message of long ago arrives. After a number of such steps there is calm: everyone does what is asked,
nobody dies or moves, and the stream must come to its end. Every invariant is checked after every event.

The arena is a list with the record that each row holds, spoilt from the moment a worker may write there, so a batch
that is gathered too late, too early or from the wrong rows does not show the records that the order says.

A run is a list of `Step`s, so a run that fails is replayed without some of them: see `simulation_shrinking`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from o41td.coordinator.block_table import Block, BlockTable
from o41td.coordinator.events import (
    BatchesWereGathered,
    BlockKey,
    DecodeInto,
    Event,
    FoundBadRows,
    KillWorker,
    RankAttached,
    RankLeft,
    SendBatches,
    SlotsWereHeld,
    StartWorker,
    TimePassed,
    WorkerBecameReady,
)
from o41td.coordinator.state import LoaderState
from simulated_case import SimulatedCase, SimulatedStage, case_of
from simulated_consumer import FakeConsumer
from simulated_worker import FakeWorker

__all__ = ["Simulation", "SimulationFailed", "Step"]

_STALL_S = 100.0
_CALM_STEPS = 6000
_CASES_SHARE = 50  # runs that share a case, whose oracle and plans are worked out once
_TIME = "time passes"

Action = Callable[[Random], None]


class SimulationFailed(AssertionError):
    """What went wrong, with the seed and the story of the last events."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens, by its name among those that could; `luck` seeds what is left to chance in it."""

    name: str
    luck: int


class Simulation:
    """One run: everything that happens is a function of the seed, or of the seed and the steps that are replayed."""

    def __init__(self, seed: int, state_class: type[LoaderState] = LoaderState, *, lends: bool = False) -> None:
        """`state_class` may be a state machine with a fault, to see it found.

        With `lends` it is a loader of one rank, which borrows batches that lie in one piece, and often goes back.
        """
        self.seed = seed
        self.story: list[str] = []
        self.steps: list[Step] = []
        self.batches_checked = 0
        self._random = random = Random(seed)
        self._case: SimulatedCase = case_of(seed // _CASES_SHARE, is_plain=lends)
        self._num_ranks = 1 if lends else random.choice([1, 1, 2, 2, 3])
        self._world_size = self._num_ranks + self._case.ranks_elsewhere
        self._in_step = random.random() < 0.6
        self._prefetch = random.randint(1, 2)
        self._table = BlockTable(self._case.block_rows)
        self._num_slots = self._num_ranks * self._case.most_blocks + random.choice([0, 0, 0, 0, 1, 3, 20])
        most_lent = random.randint(1, 2) if lends else 0
        may_hold = [most_lent] * len(self._case.stages)
        self._keeps_loans = lends and random.random() < 0.3  # as long as it may
        self._num_slots += most_lent
        window = random.randint(1, 5)
        self._state = state_class(
            table=self._table,
            num_slots=self._num_slots,
            workers=random.randint(1, 3),
            lookahead=random.randint(1, 2),
            window_batches=window,
            ahead_rows=random.choice([0, 10, 40]),
            stall_timeout_s=_STALL_S,
            crash_error=self._crash_error,
            stand_ins=self._case.stand_ins(),
            num_ranks=self._num_ranks,
            lent_slots=may_hold,
        )
        self._arena: list[Any] = [None] * (self._num_slots * self._case.block_rows)
        self._workers = {number: FakeWorker(number, self._case, self._arena) for number in self._state.workers}
        self._blamed: set[tuple[int, int, int]] = set()  # good units that deaths and stalls have fallen on
        self._consumers = [
            FakeConsumer(
                rank,
                self._world_size,
                self._case,
                self._arena,
                window,
                self._blamed,
                may_hold=may_hold,
            )
            for rank in range(self._num_ranks)
        ]
        self._deaths_left = random.choice([0, 2, 6, 12])
        self._moves_left = random.choice([1, 3, 6] if lends else [0, 1, 3])
        self._lends = lends
        self._places: list[tuple[SimulatedStage, int]] = []  # of all ranks, the last one last
        self._num_chaotic = random.randint(0, 60)
        self._deaths_on: Counter[BlockKey] = Counter()
        self._now_s = 0.0
        self._late: list[BatchesWereGathered] = []

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs to the end.

        Raises:
            SimulationFailed: Something is not as it must be.
        """
        with self._failures_told():
            self._move_all(self._random)
            for _ in range(self._num_chaotic):
                self._choose({**self._legal(), **self._chaotic(), **self._always()})
            self._calm_down()

    def replay(self, steps: Iterable[Step]) -> None:
        """Takes those of the steps that can be taken, then runs to the end.

        Raises:
            SimulationFailed: Something is not as it must be.
        """
        with self._failures_told():
            self._move_all(self._random)
            for step in steps:
                action = {**self._legal(), **self._chaotic(), **self._always()}.get(step.name)
                if action is not None:
                    self._take(step, action)
            self._calm_down()

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            notes = "\n  ".join(getattr(error, "__notes__", ()))
            story = "\n  ".join(self.story[-80:])
            raise SimulationFailed(f"seed {self.seed}: {error!r}\n  {notes}\n  {story}") from error

    def _choose(self, actions: dict[str, Action]) -> None:
        name = self._random.choice(list(actions))
        self._take(Step(name, self._random.getrandbits(32)), actions[name])

    def _take(self, step: Step, action: Action) -> None:
        self.steps.append(step)
        self.story.append(step.name)
        action(Random(step.luck))

    def _calm_down(self) -> None:
        self.story.append("-- calm --")
        for _ in range(_CALM_STEPS):
            if all(consumer.is_done and not consumer.outbox for consumer in self._consumers):
                break
            actions = self._legal()
            if self._state.has_more_to_plan:
                actions |= self._always()
            assert actions, f"nothing can happen any more; ranks {self._stuck()}"
            self._choose(actions)
        assert all(consumer.is_done for consumer in self._consumers), f"no end; ranks {self._stuck()}"
        self._leave_all()

    def _stuck(self) -> list[tuple[int, bool, int, int]]:
        return [(c.rank, c.is_done, c.num_announced, c.gathered) for c in self._consumers]

    def _leave_all(self) -> None:
        """Once all ranks are gone and all workers have answered, nothing is held."""
        for consumer in self._consumers:
            self._give_all_back(consumer)
            while consumer.outbox:
                self._tell(consumer.outbox.popleft()())
            self._tell(RankLeft(consumer.rank))
        while busy := [worker for worker in self._workers.values() if worker.orders or worker.outbox or worker.dead]:
            self._advance(busy[0])
        assert self._state.slots.num_free == self._num_slots, "slots are held for nobody"
        assert not len(self._table), "blocks are kept for nobody"

    def _advance(self, worker: FakeWorker) -> None:
        if worker.dead:
            self._reap(worker, self._random)
        elif worker.outbox:
            self._tell(worker.outbox.popleft())
        else:
            worker.work()

    # ---- what the coordinator's shell does -------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        instructions = self._state.handle(event)
        self._state.validate()
        for instruction in instructions:
            match instruction:
                case DecodeInto():
                    self._note(f"worker {instruction.worker} decodes {instruction.handle} {instruction.key}")
                    self._workers[instruction.worker].take(instruction)
                case StartWorker():
                    self._workers[instruction.worker] = FakeWorker(instruction.worker, self._case, self._arena)
                case KillWorker():
                    self._note(f"kill worker {instruction.worker}")
                    self._workers[instruction.worker].dead = True
                case FoundBadRows():
                    unit = (instruction.stage, instruction.source, instruction.unit)
                    self._note(f"rows {instruction.rows.tolist()} of {unit} are found bad")
                    assert self._case.is_replacing
                    if unit not in self._case.lost_units:
                        self._blamed.add(unit)
                case SendBatches():
                    self._note(f"rank {instruction.rank} is sent {[batch.number for batch in instruction.batches]}")
                    self._consumers[instruction.rank].hear(instruction)
                case _:
                    self._note(f"{instruction}")
                    self._consumers[instruction.rank].hear(instruction)

    def _note(self, what: str) -> None:
        self.story.append(f"    -> {what}")

    @staticmethod
    def _crash_error(block: Block, piece: int, cause: str, exit_code: int | None) -> dict[str, Any]:
        assert block.kills == 3
        is_known = block.current_piece is not None or len(block.pieces) == 1
        blamed = [block.pieces[piece]] if is_known else block.pieces
        units = {(block.key.stage, block.key.source, each.unit) for each in blamed}
        fields = {"detail": "it dies of it"}
        return {"kind": "WorkerCrashError", "fields": fields, "units": units, "cause": cause, "exit_code": exit_code}

    # ---- what can happen -------------------------------------------------------------------------------------------

    def _always(self) -> dict[str, Action]:
        return {_TIME: lambda _luck: self._tell(TimePassed(self._now_s))}

    def _legal(self) -> dict[str, Action]:
        actions: dict[str, Action] = {}
        for worker in self._workers.values():
            name = f"worker {worker.number}"
            if worker.outbox:
                actions[f"{name} is heard"] = lambda _luck, w=worker: self._tell(w.outbox.popleft())
            if worker.dead:
                actions[f"{name} is reaped"] = lambda luck, w=worker: self._reap(w, luck)
            elif not worker.ready:
                actions[f"{name} is ready"] = lambda _luck, w=worker: self._become_ready(w)
            elif worker.orders:
                actions[f"{name} works"] = lambda _luck, w=worker: w.work()
        for consumer in self._consumers:
            name = f"rank {consumer.rank}"
            if consumer.outbox:
                actions[f"{name} is heard"] = lambda _luck, c=consumer: self._tell(c.outbox.popleft()())
            if consumer.announced and self._may_gather(consumer):
                actions[f"{name} gathers"] = lambda luck, c=consumer: self._gather(c, luck)
            if consumer.loans and not self._keeps_loans:
                actions[f"{name} gives back"] = lambda luck, c=consumer: c.give_back(luck)
            if consumer.held_told != consumer.held:
                actions[f"{name} tells of what it holds"] = lambda _luck, c=consumer: self._tell_held(c)
            if consumer.told < consumer.asked:
                actions[f"{name} tells of what it gathered"] = lambda _luck, c=consumer: self._acknowledge(c)
        return actions

    def _chaotic(self) -> dict[str, Action]:
        actions: dict[str, Action] = {}
        if self._deaths_left:
            for worker in self._workers.values():
                if not worker.dead:
                    actions[f"worker {worker.number} dies"] = lambda luck, w=worker: self._die(w, luck)
            actions["a long time passes"] = self._stall
        if self._moves_left:
            actions["ranks move"] = self._move
            for consumer in self._consumers:
                if consumer.stage is not None:
                    actions[f"rank {consumer.rank} leaves"] = lambda _luck, c=consumer: self._leave(c)
        for consumer in self._consumers:
            if consumer.told < consumer.gathered:
                actions[f"rank {consumer.rank} tells unasked"] = lambda _luck, c=consumer: self._acknowledge(c)
            if consumer.stage is None:
                actions[f"rank {consumer.rank} comes back"] = lambda luck, c=consumer: self._come_back(c, luck)
        if self._late:
            actions["a message of long ago is heard"] = self._repeat_late
        return actions

    # ---- workers ---------------------------------------------------------------------------------------------------

    def _become_ready(self, worker: FakeWorker) -> None:
        worker.ready = True
        self._tell(WorkerBecameReady(worker.number))

    def _die(self, worker: FakeWorker, luck: Random) -> None:
        self._deaths_left -= 1
        worker.die(luck)

    def _reap(self, worker: FakeWorker, luck: Random) -> None:
        """What it had sent still counts; then it is told that it is gone."""
        while worker.outbox:
            self._tell(worker.outbox.popleft())
        if worker.orders:
            self._deaths_on[worker.orders[0].key] += 1
        self._tell(worker.last_breath(luck))
        for block in self._table:
            assert block.kills <= self._deaths_on[block.key], f"blamed for what it did not do: {block.told()}"

    def _stall(self, luck: Random) -> None:
        self._deaths_left -= 1
        self._now_s += _STALL_S * luck.choice([0.6, 1.5])
        self._tell(TimePassed(self._now_s))

    # ---- consumers -------------------------------------------------------------------------------------------------

    def _may_gather(self, consumer: FakeConsumer) -> bool:
        """In step, no trainer gets further ahead of the slowest than its prefetched batches."""
        if not self._in_step:
            return True
        others = [other.gathered for other in self._consumers if other is not consumer and not other.is_done]
        return consumer.gathered < min(others, default=consumer.gathered) + self._prefetch

    def _gather(self, consumer: FakeConsumer, luck: Random) -> None:
        for _ in range(luck.randint(1, len(consumer.announced))):
            consumer.gather_next()
            self.batches_checked += 1
            if not self._may_gather(consumer):
                return

    def _tell_held(self, consumer: FakeConsumer) -> None:
        if consumer.held_told == consumer.held:
            return
        consumer.held_told = held = consumer.held

        def told() -> Event:
            assert self._state.can_be_held(held), f"{sorted(held)} cannot be held"
            return SlotsWereHeld(held)

        consumer.outbox.append(told)

    def _give_all_back(self, consumer: FakeConsumer) -> None:
        while consumer.loans:
            consumer.give_back(self._random)
        self._tell_held(consumer)

    def _acknowledge(self, consumer: FakeConsumer) -> None:
        self._tell_held(consumer)
        consumer.told = consumer.gathered
        event = BatchesWereGathered(consumer.rank, consumer.generation, consumer.told)
        consumer.outbox.append(lambda: event)

    def _move(self, luck: Random) -> None:
        self._moves_left -= 1
        if self._in_step:
            self._move_all(luck)
        else:
            stage = luck.choice(self._case.stages)
            self._serve(luck.choice(self._consumers), stage, luck.choice(stage.positions), luck)

    def _move_all(self, luck: Random) -> None:
        """To some place, or once more to that of before, of which something may still be in the arena."""
        if not self._places or not self._lends or luck.random() < 0.4:
            stage = luck.choice(self._case.stages)
            self._places.append((stage, luck.choice(stage.positions)))
        stage, position = self._places[-1]
        for consumer in self._consumers:
            self._serve(consumer, stage, position, luck)

    def _come_back(self, consumer: FakeConsumer, luck: Random) -> None:
        stage = luck.choice(self._case.stages)
        self._serve(consumer, stage, luck.choice(stage.positions), luck)

    def _serve(self, consumer: FakeConsumer, stage: SimulatedStage, position: int, luck: Random) -> None:
        if consumer.generation:
            self._late.append(BatchesWereGathered(consumer.rank, consumer.generation, luck.randint(0, 6)))
        self._tell_held(consumer)
        consumer.want(stage, position)
        consumer.generation += 1
        rank, generation = consumer.rank, consumer.generation
        self._note(f"rank {rank} wants stage {stage.number} from {position} on (generation {generation})")

        def attached() -> Event:
            plan = stage.plan(
                self._table,
                self._case.block_rows,
                position=position,
                rank=rank,
                world_size=self._world_size,
                burst_rows=self._case.burst_rows,
            )
            return RankAttached(rank, generation, plan)

        consumer.outbox.append(attached)

    def _leave(self, consumer: FakeConsumer) -> None:
        self._moves_left -= 1
        self._give_all_back(consumer)
        consumer.want(None)
        event = RankLeft(consumer.rank)
        consumer.outbox.append(lambda: event)

    def _repeat_late(self, luck: Random) -> None:
        """A message that was overtaken by its rank's next move; the same may come again."""
        event = luck.choice(self._late)
        served = self._state.ranks.get(event.rank)
        if served is None or event.generation < served.generation:
            self._note(f"rank {event.rank} told of {event.gathered} in generation {event.generation}")
            self._tell(event)
