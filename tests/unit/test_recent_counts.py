"""Counts over the last seconds."""

from __future__ import annotations

from o41td.coordinator.recent_counts import RecentCounts


def test_growth_is_over_the_window_once_it_is_full():
    """A counter that grows by 3 a second for 30 s, then stands: after 10 s more it has not grown."""
    recent = RecentCounts(window_s=10, every_s=1)
    assert recent.growth(5.0, {"rows": 7.0}) == (0.0, {"rows": 0.0})
    for second in range(31):
        assert recent.is_due(100.0 + second)
        recent.look(100.0 + second, {"rows": 3.0 * second})
        assert not recent.is_due(100.5 + second)
    assert recent.growth(130.0, {"rows": 90.0}) == (10.0, {"rows": 30.0})
    for second in range(31, 42):
        recent.look(100.0 + second, {"rows": 90.0})
    assert recent.growth(141.0, {"rows": 90.0}) == (10.0, {"rows": 0.0})


def test_a_young_loader_is_looked_at_from_its_start():
    """Before the window is full, it reaches back to the first look; a new counter grew from nothing."""
    recent = RecentCounts(window_s=10, every_s=1)
    recent.look(0.0, {"rows": 0.0})
    recent.look(1.0, {"rows": 5.0})
    assert recent.growth(2.0, {"rows": 8.0, "work of worker 1": 1.5}) == (2.0, {"rows": 8.0, "work of worker 1": 1.5})
