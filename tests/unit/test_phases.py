"""Where a stream's time goes, out of its figures; and the clock by which workers count it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from o41td.phases import counts_of, phases_of, phases_table, profile_text
from o41td.workers.phase_clock import PhaseClock

FIGURES: dict[str, Any] = {
    "batches": 1200,
    "rows": 38400,
    "wait_s": 5.0,
    "gather_s": 3.0,
    "gather_in_wait_s": 1.0,
    "fetch_s": 2.0,
    "fetch_cpu_s": 0.5,
    "decode_s": 8.0,
    "decode_cpu_s": 7.5,
    "project_s": 4.0,
    "project_cpu_s": 4.0,
    "workers": [{"cpu_s": 7.0}, {"cpu_s": 6.5}],
    "coordinator": {"cpu_s": 0.25},
}


def found(**more: float) -> dict[tuple[str, str], tuple[float | None, float | None, float | None]]:
    """(seconds, share, CPU) of each phase of ten seconds with two workers."""
    phases = phases_of(counts_of(FIGURES, **more), elapsed_s=10.0, num_workers=2)
    return {(phase.process, phase.phase): (phase.wall_s, phase.share, phase.cpu_s) for phase in phases}


def test_the_time_of_each_kind_of_process_adds_up() -> None:
    """Two workers have 20 s and worked 14 of it; their 13.5 s of CPU are 12 at it and 1.5 else; the loop has 10 s."""
    phases = found(loop_cpu_s=6.0)
    assert phases["workers", "fetch"] == (2.0, 0.1, 0.5)
    assert phases["workers", "decode"] == (8.0, 0.4, 7.5)
    assert phases["workers", "project"] == (4.0, 0.2, 4.0)
    assert phases["workers", "idle"] == (6.0, 0.3, None)
    assert phases["workers", "else"] == (None, None, 1.5)
    assert phases["coordinator", "plan, messages"] == (None, None, 0.25)
    assert phases["loop", "gather ahead"] == (2.0, 0.2, None)
    assert phases["loop", "gather"] == (1.0, 0.1, None)
    assert phases["loop", "wait"] == (4.0, 0.4, None)
    assert phases["loop", "else"] == (5.0, 0.5, 6.0)
    assert found()["loop", "else"] == (5.0, 0.5, None)


def test_the_table_names_each_process_once_and_is_narrow() -> None:
    """A line a phase below the titles, numbers to the right, nothing for what is not known."""
    lines = phases_table(phases_of(counts_of(FIGURES), elapsed_s=10.0, num_workers=2)).splitlines()
    assert len(lines) == 11
    assert lines[2].split() == ["decode", "8.00", "40", "%", "7.50"]
    assert sum(line.startswith(("workers", "coordinator", "loop")) for line in lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 60


def test_a_profile_says_whose_it_is() -> None:
    """Rank, rows, batches and seconds stand above the table."""
    first, *rest = profile_text(FIGURES, "rank 3 of 8", 10.0).splitlines()
    assert first == "o41td profile of rank 3 of 8: 38,400 rows in 1,200 batches, 10.00 s"
    assert "\n".join(rest) == phases_table(phases_of(counts_of(FIGURES), elapsed_s=10.0, num_workers=2))


def _spin(seconds: float) -> None:
    """Works for so long."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


def test_laps_are_counted_where_they_end_and_the_rest_is_projection() -> None:
    """2 ms each of fetching, decoding, decoding and neither; CPU is never above the clock by more than its grain."""
    clock = PhaseClock()
    clock.begin()
    _spin(0.002)
    clock.fetched()
    _spin(0.002)
    clock.decoded()
    _spin(0.002)
    clock.begin()
    _spin(0.002)
    clock.decoded()
    rest_s, rest_cpu_s = clock.rest_s()
    assert clock.fetch_s >= 0.002
    assert clock.decode_s >= 0.004
    assert rest_s >= 0.002
    for wall_s, cpu_s in ((clock.fetch_s, clock.fetch_cpu_s), (clock.decode_s, clock.decode_cpu_s)):
        assert 0 <= cpu_s <= wall_s + 0.01
    assert rest_cpu_s == pytest.approx(rest_s, abs=rest_s + 0.01)
