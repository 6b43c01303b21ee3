"""Where the time of a block goes: fetching, decoding, projecting, each in wall clock and in CPU of the thread at it.

A stopwatch with laps: `begin` starts one, and the phase that ends it is named at its end, which begins the next. What
lies in no lap is projection. It is looked at a few times a piece, at a microsecond each.
"""

from __future__ import annotations

import time

__all__ = ["PhaseClock"]


class PhaseClock:
    """The clock of one block.

    Called by: the thread that decodes it, whose CPU is counted and no other's.

    Attributes:
        fetch_s: Wall clock spent fetching, in seconds, as are all.
        decode_s: Wall clock spent decoding.
        fetch_cpu_s: CPU spent fetching.
        decode_cpu_s: CPU spent decoding.
    """

    __slots__ = ("_began", "_lap", "decode_cpu_s", "decode_s", "fetch_cpu_s", "fetch_s")

    def __init__(self) -> None:
        """Starts now, and so does a lap."""
        self.fetch_s = self.decode_s = self.fetch_cpu_s = self.decode_cpu_s = 0.0
        self._began = self._lap = time.perf_counter(), time.thread_time()

    def begin(self) -> None:
        """Starts a lap."""
        self._lap = time.perf_counter(), time.thread_time()

    def fetched(self) -> None:
        """Ends a lap that was spent fetching."""
        wall_s, cpu_s = self._lap_s()
        self.fetch_s += wall_s
        self.fetch_cpu_s += cpu_s

    def decoded(self) -> None:
        """Ends a lap that was spent decoding."""
        wall_s, cpu_s = self._lap_s()
        self.decode_s += wall_s
        self.decode_cpu_s += cpu_s

    def rest_s(self) -> tuple[float, float]:
        """Returns wall clock and CPU since the start that lie in no lap."""
        now, now_cpu = time.perf_counter(), time.thread_time()
        began, began_cpu = self._began
        wall_s = now - began - self.fetch_s - self.decode_s
        return max(0.0, wall_s), max(0.0, now_cpu - began_cpu - self.fetch_cpu_s - self.decode_cpu_s)

    def _lap_s(self) -> tuple[float, float]:
        began, began_cpu = self._lap
        self._lap = now, now_cpu = time.perf_counter(), time.thread_time()
        return now - began, now_cpu - began_cpu
