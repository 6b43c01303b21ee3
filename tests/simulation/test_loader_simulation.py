"""Hundreds or thousands of loaders' lives, each from a seed.

`O41TD_SIMULATION_SEED=123 pytest tests/simulation` runs one again, `O41TD_SIMULATION_RUNS=2000` runs that many: some
twenty seconds. Without either it is every seventh of those, which meets all of their cases.
"""

from __future__ import annotations

import os

import pytest

from loader_simulation import Simulation, SimulationFailed
from simulation_shrinking import shortest_failure

RUNS = os.environ.get("O41TD_SIMULATION_RUNS")
ONE = os.environ.get("O41TD_SIMULATION_SEED")
SEEDS = [int(ONE)] if ONE else range(int(RUNS)) if RUNS else range(0, 2000, 7)
PARTS = min(10, len(SEEDS))


@pytest.mark.parametrize("lends", [False, True], ids=["copied", "lent"])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_life_of_a_loader_ends_well(part, lends):
    """Whatever dies, stalls, moves or comes late: each batch holds the order's records, invariants hold, all ends."""
    batches = 0
    start, stop = len(SEEDS) * part // PARTS, len(SEEDS) * (part + 1) // PARTS
    for seed in SEEDS[start : stop : 2 if lends else 1]:
        simulation = Simulation(seed, lends=lends)
        try:
            simulation.run()
        except SimulationFailed as failed:
            shortest = shortest_failure(seed, simulation.steps, lends=lends)
            raise (failed if shortest is None else shortest[1]) from None
        batches += simulation.batches_checked
    assert batches >= (stop - start) // 2
