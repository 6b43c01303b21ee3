"""The run that `scripts/simulate` walks: its ranks read the data once, and wait for what they are said to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def fleet(monkeypatch):
    """Four ranks over 2000 shards of about 64 rows of 4 KiB, a batch of 64 a second."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from simulated_fleet import Fleet, Workload

    workload = Workload(name="small", width=1024, unit_rows=64, batch_size=64, step_s=1.0)
    return Fleet(workload=workload, num_shards=2000, num_ranks=4, buffer_rows=32)


def test_lanes_read_all_rows_once_and_cut_row_groups_twice(fleet):
    """Lanes' rows add up to the data's, and their row groups to the data's and one for each that an edge cuts."""
    costs = [fleet.lane_cost(lane) for lane in range(4)]
    assert sum(cost.rows for cost in costs) == fleet.index.num_rows
    assert 2000 <= sum(cost.units for cost in costs) <= 2000 + 3
    twice = sum(cost.fetched_bytes for cost in costs) - int(fleet.index.unit_compressed_bytes.sum())
    assert 0 <= twice <= 3 * int(fleet.index.unit_compressed_bytes.max())
    assert all(cost.requests == 2 * cost.units for cost in costs)  # a footer, and one for columns of half a MiB


def test_ranks_in_step_wait_for_a_late_fetch_and_for_nothing_else(fleet):
    """A store that is always in time costs no step; fetches that are later than all that is ahead delay every rank."""
    from simulated_loader import Pace, RunInStep, Trouble

    calm = RunInStep(fleet, num_ranks=4, num_steps=300, trouble=Trouble(name="none"), pace=Pace())
    assert calm.lost_share == 0
    assert calm.wall_s == pytest.approx(300)
    assert all(loader.state.blocks_evicted == 0 for loader in calm.loaders)
    late = RunInStep(
        fleet, num_ranks=4, num_steps=300, trouble=Trouble(name="late", one_in=9, delay_s=900), pace=Pace()
    )
    assert max(late.waits_s) > 0
    assert late.lost_share >= late.lost_alone > 0
    assert late.wall_s == pytest.approx(300 + sum(late.waits_s))
