"""The soak's short form: one lap of a real stream under chaos."""

from __future__ import annotations

import json
from pathlib import Path

from loader_processes import run_python

SOAK = Path(__file__).parents[2] / "scripts" / "soak.py"


def test_one_lap_under_chaos_gives_every_batch_and_leaves_nothing():
    """Kills, stops and a full /dev/shm about every half second: every batch is that of the undisturbed run."""
    ended = run_python("-P", str(SOAK), "0", "--seed", "5", "--every", "0.5", "--batches", "240", "--json")
    assert ended.code == 0, ended.out + ended.err
    report = json.loads(ended.out.splitlines()[-1])
    assert report["outcome"] == "every batch as in the undisturbed run"
    assert report["laps"] == 1
    assert report["batches"] >= 240
    assert not any(value for name, value in report.items() if name.startswith("leaked"))
    assert sum(value for name, value in report.items() if name.startswith("survived")) > 0
    assert ended.err == ""
