"""Figures in Prometheus' text format, read back by a small parser of that format."""

from __future__ import annotations

import re
from typing import Any

from o41td.prometheus import prometheus_text

SAMPLE = re.compile(r'^([a-z][a-z0-9_]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\} (-?[0-9.e+-]+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def samples_in(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a text; each is declared by a HELP and a TYPE line before it, and comes once."""
    declared: set[str] = set()
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in declared
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            declared.add(name)
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            name, labels, value = match.groups()
            assert name in declared
            key = name, frozenset((label, _unescaped(text)) for label, text in LABEL.findall(labels))
            assert key not in found
            found[key] = float(value)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def test_every_figure_is_a_sample_of_its_loader() -> None:
    """Counters end in _total, labels name loader, rank, worker and source, and odd names are escaped."""
    loader: dict[str, Any] = {
        "name": 'a "job"\\\n', "pid": 7, "state": "streaming", "limit": "loop",
        "ranks": [{"rank": 0, "step": 12, "rows": 340, "wait_s": 0.25}],
        "workers": [{"id": 1, "rss_bytes": 80_000_000, "restarts": 2}],
        "sources": [{"name": "mix/web", "epoch": 3, "progress": None, "rows": 61_440}],
        "memory": {"bound_bytes": 400, "used_bytes": 300}, "arena": {"slots": 8, "free": 0}, "decode_s": 1234.5678,
        "storage": {"requests": 90, "retries": 2, "received_bytes": 10**9, "in_flight": 4}, "bad_rows": 0,
    }  # fmt: skip
    found = samples_in(prometheus_text([loader]))
    own = ("loader", 'a "job"\\\n'), ("pid", "7")
    assert found["o41td_loader", frozenset({*own, ("state", "streaming"), ("limit", "loop")})] == 1
    assert found["o41td_rank_step", frozenset({*own, ("rank", "0")})] == 12
    assert found["o41td_rank_rows_total", frozenset({*own, ("rank", "0")})] == 340
    assert found["o41td_rank_wait_seconds_total", frozenset({*own, ("rank", "0")})] == 0.25
    assert found["o41td_worker_restarts_total", frozenset({*own, ("worker", "1")})] == 2
    assert found["o41td_source_epoch", frozenset({*own, ("source", "mix/web")})] == 3
    assert found["o41td_arena_free_slots", frozenset(own)] == 0
    assert found["o41td_storage_received_bytes_total", frozenset(own)] == 1e9
    assert found["o41td_bad_rows_total", frozenset(own)] == 0
    assert found["o41td_decode_seconds_total", frozenset(own)] == 1234.57
    assert not any(name == "o41td_source_epoch_ratio" for name, _ in found)


def test_a_loader_without_figures_is_up_and_no_loader_is_an_empty_text() -> None:
    """One that opens has its state; none have no lines at all."""
    loader = {
        "name": "x",
        "pid": 1,
        "state": "opening",
        "limit": "opening",
        "ranks": [],
        "workers": [],
        "sources": [],
        "memory": {},
    }
    ((name, labels),) = samples_in(prometheus_text([loader]))
    assert name == "o41td_loader"
    assert ("state", "opening") in labels
    assert prometheus_text([]) == ""
