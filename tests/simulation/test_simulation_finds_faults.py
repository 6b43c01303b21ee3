"""The simulation is worth its time: state machines with a fault are found out, and the story of it is short."""

from __future__ import annotations

import pytest

from faulty_loaders import FAULTY_LENDERS, FAULTY_LOADERS
from loader_simulation import Simulation, SimulationFailed
from o41td.coordinator.state import LoaderState
from simulation_shrinking import shortest_failure

SEEDS = range(0, 2000, 10)  # over many cases


FAULTY = [(each, False) for each in FAULTY_LOADERS] + [(each, True) for each in FAULTY_LENDERS]


def _first_failure(state_class: type[LoaderState], *, lends: bool) -> Simulation | None:
    for seed in SEEDS:
        simulation = Simulation(seed, state_class, lends=lends)
        try:
            simulation.run()
        except SimulationFailed:
            return simulation
    return None


@pytest.mark.parametrize(("state_class", "lends"), FAULTY, ids=[each.__name__ for each, _ in FAULTY])
def test_each_fault_is_found_within_200_runs_and_told_in_few_steps(state_class, lends):
    """Some invariant or record is wrong in one of 200 runs; a run that is cut down still fails, alone and each time."""
    failed = _first_failure(state_class, lends=lends)
    assert failed is not None
    shortest = shortest_failure(failed.seed, failed.steps, state_class, lends=lends)
    assert shortest is not None
    steps, failure = shortest
    assert len(steps) <= min(len(failed.steps), 40)
    story = str(failure).splitlines()
    assert story[0].startswith(f"seed {failed.seed}: ")
    assert all(f"  {step.name}" in story for step in steps)
    with pytest.raises(SimulationFailed) as again:
        Simulation(failed.seed, state_class, lends=lends).replay(steps)
    assert str(again.value) == str(failure)
    assert isinstance(again.value.__cause__, AssertionError), "the fault is no fault but a mistake in it"


def test_a_run_is_replayed_step_by_step():
    """The steps that a good run took, taken again, check as many batches and end as well."""
    simulation = Simulation(7)
    simulation.run()
    again = Simulation(7)
    again.replay(simulation.steps)
    assert again.steps == simulation.steps
    assert again.batches_checked == simulation.batches_checked
