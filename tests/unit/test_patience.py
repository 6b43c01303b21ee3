"""How long the coordinator waits, and how often it tries: on clocks that are told."""

from __future__ import annotations

import pytest

from o41td.coordinator.patience import PatientClock, StartFailures


def test_the_clock_leaves_out_the_time_in_which_the_loop_did_not_turn():
    """Turns of 0.1 and 0.5 s count; an hour between two turns counts half a second, a step back nothing."""
    clock = PatientClock(1000.0)
    times = []
    for now_s in (1000.1, 1000.6, 4600.6, 4600.7, 4600.0, 4600.2):
        clock.tick(now_s)
        times.append(round(clock.now_s, 6))
    assert times == [0.1, 0.6, 1.1, 1.2, 1.2, 1.4]


def test_a_worker_is_started_at_once_after_its_first_failure_and_ever_later_then():
    """Pauses of 0, 0.1, 0.2, 0.4 … 5 s; another worker has its own; being ready ends the row."""
    failures = StartFailures(2)
    pauses = []
    for _ in range(9):
        failures.note_failure(0, 0.0)
        pauses.append(failures.pause_s(0))
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert failures.pause_s(1) == 0.0
    failures.note_progress()
    assert failures.pause_s(0) == 5.0
    failures.note_ready(0)
    assert failures.pause_s(0) == 0.0


@pytest.mark.parametrize(
    ("left_by_itself", "last_s", "hopeless"), [(True, 0.1, True), (False, 4.9, False), (False, 5, True)]
)
def test_three_failures_a_worker_are_hopeless_if_they_left_or_it_goes_on(left_by_itself, last_s, hopeless):
    """Two workers, six failures: hopeless at once where they left by themselves, after 5 s where they were killed."""
    failures = StartFailures(2)
    for _ in range(5):
        failures.note_failure(0, 0.0)
    assert not failures.are_hopeless(100.0, left_by_itself=True)
    failures.note_failure(1, last_s)
    assert failures.are_hopeless(last_s, left_by_itself=left_by_itself) is hopeless


def test_progress_begins_the_count_anew():
    """Five failures, something finished, five more: not hopeless; the sixth, 5 s after the first of its row, is."""
    failures = StartFailures(2)
    for start_s in (0.0, 10.0):
        for _ in range(5):
            failures.note_failure(0, start_s)
        assert not failures.are_hopeless(start_s + 9, left_by_itself=True)
        failures.note_progress()
    for _ in range(6):
        failures.note_failure(1, 20.0)
    assert not failures.are_hopeless(24.0, left_by_itself=False)
    assert failures.are_hopeless(25.0, left_by_itself=False)
