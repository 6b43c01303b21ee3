"""Patience: how long the coordinator waits for a worker, and how often it tries to start one. Pure; clocks are told."""

from __future__ import annotations

from collections import Counter

__all__ = ["PatientClock", "StartFailures"]

_LONGEST_STEP_S = 0.5
_TRIES_A_WORKER = 3
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_HOPELESS_AFTER_S = 5.0


class PatientClock:
    """A monotonic clock that leaves out the time in which this process itself did not run.

    A job that is suspended (Ctrl-Z, a scheduler's SIGSTOP, a laptop that sleeps) goes on with all its processes at
    once; measured by this clock, none of them has been slow meanwhile. It is told the time at every turn of a loop, at
    most half a second apart, so a longer step means that the loop did not turn.
    """

    def __init__(self, monotonic_s: float) -> None:
        """Starts at 0."""
        self.now_s = 0.0
        self._told_s = monotonic_s

    def tick(self, monotonic_s: float) -> None:
        """Notes what the system's monotonic clock says now."""
        self.now_s += min(_LONGEST_STEP_S, max(0.0, monotonic_s - self._told_s))
        self._told_s = monotonic_s


class StartFailures:
    """Counts workers that died before they were ready, and says when to try again and when to give up.

    Given up is only where no worker lives, three times as many as there are to be have died since anything went well,
    and there is a reason to think that the next will not do better: the last one left by itself (a broken install),
    or it has gone on for five seconds. A worker that was killed from outside says little about the next.
    """

    def __init__(self, num_workers: int) -> None:
        """Nothing has failed yet."""
        self._limit = _TRIES_A_WORKER * num_workers
        self._in_a_row: Counter[int] = Counter()
        self._since_progress = 0
        self._first_s = 0.0

    def note_failure(self, worker: int, now_s: float) -> None:
        """A worker died before it was ready."""
        if not self._since_progress:
            self._first_s = now_s
        self._since_progress += 1
        self._in_a_row[worker] += 1

    def note_ready(self, worker: int) -> None:
        """A worker is ready."""
        del self._in_a_row[worker]
        self.note_progress()

    def note_progress(self) -> None:
        """A worker, any worker, finished something."""
        self._since_progress = 0

    def pause_s(self, worker: int) -> float:
        """Returns how long to wait with the next start of this worker: nothing at first, then longer each time."""
        failures = self._in_a_row[worker]
        return 0.0 if failures < 2 else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (failures - 2))

    def are_hopeless(self, now_s: float, *, left_by_itself: bool) -> bool:
        """Returns whether to give up, where no worker lives; `left_by_itself` is about the last failure."""
        return self._since_progress >= self._limit and (left_by_itself or now_s - self._first_s >= _HOPELESS_AFTER_S)
