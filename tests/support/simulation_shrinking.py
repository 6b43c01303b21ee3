"""Cuts a simulation that fails down to the few steps that matter."""

from __future__ import annotations

from collections.abc import Sequence

from loader_simulation import Simulation, SimulationFailed, Step
from o41td.coordinator.state import LoaderState

__all__ = ["shortest_failure"]

_MAX_REPLAYS = 600


def shortest_failure(
    seed: int, steps: Sequence[Step], state_class: type[LoaderState] = LoaderState, *, lends: bool = False
) -> tuple[list[Step], SimulationFailed] | None:
    """Returns the shortest run found that still fails, and how; None where not even all of the steps do.

    Delta debugging: leave out halves, quarters, … single steps, for as long as the rest fails. A replay passes over
    steps that cannot be taken, and ends in the calm that any run ends in, so what is left of a run always makes sense.
    """
    best = _failure_of(seed, steps, state_class, lends)
    replays = 1
    size = len(best[0]) // 2 if best is not None else 0
    while best is not None and size and replays < _MAX_REPLAYS:
        at, is_shorter = 0, False
        while at < len(best[0]) and replays < _MAX_REPLAYS:
            replays += 1
            found = _failure_of(seed, [*best[0][:at], *best[0][at + size :]], state_class, lends)
            if found is not None and len(found[0]) < len(best[0]):
                best, is_shorter = found, True
            else:
                at += size
        size = size if is_shorter and size == 1 else size // 2
    return None if best is None else _failure_of(seed, best[0], state_class, lends)  # told as the steps that are left


def _failure_of(
    seed: int, steps: Sequence[Step], state_class: type[LoaderState], lends: bool
) -> tuple[list[Step], SimulationFailed] | None:
    simulation = Simulation(seed, state_class, lends=lends)
    try:
        simulation.replay(steps)
    except SimulationFailed as failed:
        return simulation.steps, failed
    return None
