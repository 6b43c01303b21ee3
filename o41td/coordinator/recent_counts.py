"""Counts over the last seconds: what makes a live view live. Pure; times are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["RecentCounts"]


class RecentCounts:
    """Counters that only grow, looked at now and then; says by how much they grew in the last `window_s` or so."""

    def __init__(self, *, window_s: float, every_s: float) -> None:
        """Keeps a look at the counters every `every_s`, as many as the window needs."""
        self._window_s = window_s
        self._every_s = every_s
        self._looks: deque[tuple[float, dict[str, float]]] = deque()

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another look."""
        return not self._looks or now_s - self._looks[-1][0] >= self._every_s

    def look(self, now_s: float, counts: Mapping[str, float]) -> None:
        """Keeps the counters' values; the one look that is older than the window stays, to compare with."""
        self._looks.append((now_s, dict(counts)))
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= self._window_s:
            self._looks.popleft()

    def growth(self, now_s: float, counts: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Returns (seconds since the look compared with, growth of each counter since then); zeros without a look.

        A counter that the look does not have grew from 0.
        """
        if not self._looks:
            return 0.0, dict.fromkeys(counts, 0.0)
        then_s, then = self._looks[0]
        return now_s - then_s, {name: value - then.get(name, 0.0) for name, value in counts.items()}
