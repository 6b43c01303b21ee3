"""What `o41td bench` makes of its figures."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from o41td.benchmark import worker_counts, workers_advice
from o41td.cli.bench import bench_view


def reached(threads: int, rows_per_s: float, refused: str = "", spread: float = 100) -> dict[str, Any]:
    """A number of workers and what it reached."""
    return {
        "threads": threads,
        "rows_per_s": rows_per_s,
        "rows_per_s_of_runs": [] if refused else [rows_per_s - spread, rows_per_s + spread],
        "bytes_per_s": 2000 * rows_per_s,
        "workers_cpu_s_per_gb": 12.34,
        "refused": refused,
    }


RECORD: dict[str, Any] = {
    "rank": 3,
    "world_size": 16,
    "threads": 2,
    "cores": 8,
    "measured_s": 9.03,
    "batches": 8642,
    "rows": 553_088,
    "bytes": 1_137_000_000,
    "batches_per_s": 957.0,
    "rows_per_s": 61_250.0,
    "bytes_per_s": 126e6,
    "first_batch_s": 0.412,
    "phases": [{"process": "workers", "phase": "decode", "wall_s": 15.2, "share": 0.84, "cpu_s": 15.1}],
    "workers": [],
    "verdict": "decoding is the limit: the loop waits for workers",
    "limit": "decoding",
    "evidence": ["the loop waits 91 % of the time", "workers are busy 97 % of it"],
    "advice": "Set threads to 3: that gave 38 % more rows a second here",
}


def shown(record: dict[str, Any], width: int = 80) -> str:
    """What a console of `width` columns shows."""
    out = io.StringIO()
    Console(file=out, width=width, no_color=True, highlight=False).print(bench_view(record, "my.toml"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("threads", "compare", "counts"), [(2, False, [2]), (2, True, [1, 2, 3]), (1, True, [1, 2]), (8, True, [1, 8, 9])]
)
def test_workers_are_compared_with_one_and_with_one_more(threads: int, compare: bool, counts: list[int]) -> None:
    """The config's own number alone, unless others are asked for; none comes twice."""
    assert worker_counts(threads, compare=compare) == counts


@pytest.mark.parametrize(
    ("compared", "advice"),
    [
        ([reached(1, 500), reached(2, 1000), reached(3, 1380)], "Set threads to 3: that gave 38 % more"),
        ([reached(1, 960), reached(2, 1000), reached(3, 1050)], "Set threads to 1: one worker gave 96 % of what 2 did"),
        (
            [reached(1, 500), reached(2, 1000), reached(3, 1380, spread=300)],
            "Leave threads as they are: 3 workers gave",
        ),
        ([reached(1, 500), reached(2, 1000), reached(3, 1050)], "Leave threads as they are: 3 workers gave 105 %"),
        ([reached(1, 500), reached(2, 1000), reached(3, 0, "no memory")], "Leave threads as they are"),
        ([reached(1, 500, "no memory"), reached(2, 1000), reached(3, 0, "no memory")], ""),
        ([reached(1, 0), reached(2, 0), reached(3, 0)], ""),  # over before anything could be measured
        ([], ""),
    ],
)
def test_the_number_of_workers_is_judged_by_what_others_gave(compared: list[dict[str, Any]], advice: str) -> None:
    """A tenth more, in every run, is worth a worker; where one does as well as two, one will do."""
    found = workers_advice(2, compared)
    assert found.startswith(advice)
    assert bool(found) == bool(advice)


def test_one_worker_is_never_advised_to_be_one() -> None:
    """Of one and two workers, two are advised or one is left as it is."""
    assert workers_advice(1, [reached(1, 1000), reached(2, 1900)]).startswith("Set threads to 2")
    assert workers_advice(1, [reached(1, 1000), reached(2, 900)]).startswith("Leave threads as they are: 2 workers")


def test_for_a_person_it_fits_a_terminal() -> None:
    """Rates, first batch, verdict with evidence and advice, phases, and the workers that were tried."""
    compared = [reached(1, 31_000), reached(2, 61_250), reached(3, 0, "the bound of 3.1 GiB is above what is allowed")]
    for width in (80, 160):
        text = shown(RECORD | {"workers": compared}, width)
        assert max(map(len, text.splitlines())) <= width
        for part in ("my.toml  rank 3 of 16, 2 workers on 8 cores", "61,250 rows/s, 126 MB/s, 957 batches/s",
                     "first batch 0.41 s after open; then 8,642 batches in 9.03 s", "decoding is the limit",
                     "Set threads to 3", "15.20      84 %     15.10", "as configured", "above what is"):  # fmt: skip
            assert part in text
    assert "rough" not in shown(RECORD)
    assert "rough" in shown(RECORD | {"measured_s": 0.4})
