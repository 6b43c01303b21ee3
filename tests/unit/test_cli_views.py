"""What the command line shows of loaders and of progress, on consoles of several kinds."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from o41td.cli.check import check_view
from o41td.cli.comparison import halves_of
from o41td.cli.console import open_console
from o41td.cli.pace import Figures, StageLeg
from o41td.cli.progress import LiveProgress, PlainProgress, progress_on
from o41td.cli.status import loaders_view
from o41td.cli.trace import batch_view

LOADER: dict[str, Any] = {
    "name": "job-17",
    "pid": 4711,
    "state": "streaming",
    "uptime_s": 754.2,
    "ranks": [
        {
            "rank": 0,
            "world_size": 256,
            "stage": 1,
            "stage_name": "annealing-mix",
            "step": 12_480,
            "stage_batch": 24_960,
            "stage_batches": 99_840,
            "batches": 12_480,
            "batches_per_s": 28.38,
            "rows_per_s": 58_120.4,
            "bytes_per_s": 476_122_000.0,
            "wait_fraction": 0.34,
            "ready_batches": 3,
            "dropped_rows": 7,
        }
    ],
    "workers": [
        {
            "id": 0,
            "pid": 4712,
            "state": "decoding",
            "restarts": 0,
            "rss_bytes": 80_000_000,
            "bytes_per_s": 240e6,
            "busy_fraction": 0.97,
            "reading": {"source": "mix/web", "shard": "/data/part-3.parquet", "row_group": 5, "for_s": 4.5},
        },
        {"id": 1, "pid": 4713, "state": "starting", "reading": None, "restarts": 2, "rss_bytes": 80_000_000},
    ],
    "sources": [
        {
            "name": "mix/web",
            "stage": 1,
            "is_current": True,
            "epoch": 3,
            "progress": 0.25,
            "rows": 61_440,
            "shards": 12,
            "decoded_rows": 200_000,
        }
    ],
    "arena": {"slots": 40, "free": 12, "bytes": 251_658_240},
    "memory": {"bound_bytes": 412_000_000, "used_bytes": 287_000_000},
    "verdict": "decoding is the limit: the loop waits for workers",
    "limit": "decoding",
    "evidence": ["the loop waits 34 % of the time", "workers are busy 97 % of it"],
    "advice": "Raise threads: 2 workers run, and the host has 8 cores",
}


def shown(view: object, width: int = 80) -> str:
    """What a console of `width` columns without colours shows."""
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(view)
    return out.getvalue()


def test_what_stores_and_caches_found_is_shown_by_source() -> None:
    """A source whose rows are kept by a node or a cache has its share of hits; others have no such column."""
    (source,) = LOADER["sources"]
    kept = {**source, "name": "mix/kept", "cache_hits": 97, "cache_misses": 3}
    text = shown(loaders_view([{**LOADER, "sources": [source, kept]}]))
    assert "shards  decoded  found" in text
    assert "mix/web       3  25 %  61,440      12  200,000      –" in text
    assert "mix/kept      3  25 %  61,440      12  200,000   97 %" in text
    assert "found" not in shown(loaders_view([LOADER]))


def test_a_loader_is_shown_with_verdict_ranks_workers_sources_and_memory() -> None:
    """Every live figure of a loader is on the screen, in 80 columns, with the evidence and what to change."""
    text = shown(loaders_view([LOADER]))
    told = " ".join(text.split())
    assert text.splitlines()[1:4] == [
        "  decoding is the limit: the loop waits for workers",
        "  the loop waits 34 % of the time, workers are busy 97 % of it",
        "  Raise threads: 2 workers run, and the host has 8 cores.",
    ]
    for part in ("job-17", "pid 4711, up 12 min 34 s", "0/256 annealing-mix 12,480 25 % 28 58,120 476 34 % 3 7"):
        assert part in told
    assert "0 decoding 97 % 240 76.3 MiB 0 4.50 s: group 5 of part-3.parquet" in told
    assert "1 starting – – 76.3 MiB 2" in told
    assert "mix/web 3 25 % 61,440 12 200,000" in told
    assert "arena 12 of 40 slots free, 240.0 MiB" in text
    assert "memory 273.7 MiB of at most 392.9 MiB" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_stores_bad_rows_and_ranks_that_are_served_have_their_words() -> None:
    """Each is told where there is something to tell, and the last fault of a store with it."""
    storage = {"requests": 1204, "retries": 1, "bytes_per_s": 126e6, "in_flight": 8, "last_error": "503 of s3://b/k"}
    told = shown(loaders_view([{**LOADER, "storage": storage, "bad_rows": 1, "served_ranks": [0, 1, 2]}]))
    told = " ".join(told.split())
    assert "job-17 pid 4711, up 12 min 34 s, served: 1 of 3 ranks" in told
    assert "storage 1,204 requests, 1 retry, 126 MB/s, 8 in flight; last fault: 503 of s3://b/k" in told
    assert "bad data: 1 row is replaced by others" in told
    quiet = shown(loaders_view([{**LOADER, "storage": storage | {"retries": 0, "last_error": None}, "bad_rows": 0}]))
    assert "storage 1,204 requests, 126 MB/s, 8 in flight\n" in quiet
    assert "bad data" not in quiet
    assert "served" not in quiet


def test_probes_stand_below_their_groups_with_what_to_do() -> None:
    """Within 80 columns, however long the advice."""
    probes = [
        {"group": "host", "name": "cores", "state": "ok", "found": "8 cores for 2 workers", "advice": ""},
        {"group": "host", "name": "shared memory", "state": "warn", "found": "1.0 MiB free", "advice": "Give " * 30},
        {"group": "mix/web", "name": "values", "state": "fail", "found": "7 do not fit", "advice": "Widen"},
    ]
    lines = shown(check_view({"probes": probes, "bound_bytes": 1 << 20, "first_batch_s": 0.5})).splitlines()
    assert [line.rstrip() for line in lines[:3]] == [
        "host",
        "  ok    cores          8 cores for 2 workers",
        "  warn  shared memory  1.0 MiB free",
    ]
    assert lines[-5].rstrip() == "mix/web"
    assert lines[-1] == "memory at most 1.0 MiB; first batch after about 0.50 s"
    assert max(map(len, lines)) <= 80


def test_in_a_pipe_nothing_is_wrapped_or_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 300 characters stays one, and a table's last column ends where its text does; COLUMNS is obeyed."""
    table = Table(box=None)
    table.add_column("a")
    table.add_row("x" * 300)
    table.add_row("short")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", paper := io.StringIO())
    open_console().print(table)
    assert [line.strip() for line in paper.getvalue().splitlines()] == ["a", "x" * 300, "short"]
    assert all(line == line.rstrip() for line in paper.getvalue().splitlines())
    for columns, width in (("90", 90), ("20", 72)):  # fewer than a table needs are left to the terminal to wrap
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys, "stdout", narrow := io.StringIO())
        open_console().print("y" * 100)
        assert max(map(len, narrow.getvalue().splitlines())) == width


@pytest.mark.parametrize("width", [80, 120, 1000])
def test_a_table_takes_the_room_there_is_and_no_more(width: int) -> None:
    """Long names are cut where the screen ends and nowhere else; no line is filled up with spaces to its edge."""
    name = "annealing-mix/common-crawl-2026-filtered-and-deduplicated-with-a-name-that-goes-on"
    (source,) = LOADER["sources"]
    text = shown(loaders_view([{**LOADER, "sources": [{**source, "name": name}]}]), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert (name in text) == (width > 80)
    narrow = next(line for line in lines if line.startswith("  rank"))
    assert narrow == narrow.rstrip()
    assert "  rank   stage            step  done" in narrow


def test_a_loader_that_opens_shows_how_far_it_is() -> None:
    """No ranks and no sources yet: the verdict, and what the workers do."""
    opening = {
        **LOADER, "state": "opening", "uptime_s": None, "ranks": [], "sources": [], "arena": None, "memory": {},
        "limit": "opening", "verdict": "it is being opened", "evidence": ["12 of 500 footers are read"], "advice": "",
        "workers": [{"id": 0, "state": "reading footers", "reading": None, "restarts": 0, "rss_bytes": 70_000_000}],
    }  # fmt: skip
    told = " ".join(shown(loaders_view([opening])).split())
    assert "it is being opened 12 of 500 footers are read" in told
    assert "0 reading footers – – 66.8 MiB 0" in told


def test_no_loader_says_how_one_starts() -> None:
    """An empty list is a sentence, not an empty table."""
    assert "open_batch_stream" in shown(loaders_view([]))


def test_a_loader_that_does_not_answer_is_still_listed() -> None:
    """Without any figures the name, the pid and the verdict are shown."""
    silent = {
        "name": "job",
        "pid": 1,
        "ranks": [],
        "workers": [],
        "sources": [],
        "memory": {},
        "verdict": "it does not answer",
        "limit": "silent",
        "evidence": [],
        "advice": "Look at its pid",
    }
    assert " ".join(shown(loaders_view([silent])).split()) == "job pid 1 it does not answer Look at its pid."


def test_two_loaders_of_one_name_are_told_apart_by_pid() -> None:
    """Jobs may share a name; both are listed."""
    text = shown(loaders_view([LOADER, {**LOADER, "pid": 5000}]))
    assert "pid 4711" in text
    assert "pid 5000" in text


def drive(progress: Any, figures: Figures) -> None:
    """Two legs of ten and five batches of 32 rows."""
    for leg, num_batches in ((StageLeg(stage=0, name="a-long-stage-name", expected_batches=10), 10),
                             (StageLeg(stage=1, name="mix"), 5)):  # fmt: skip
        progress.begin(leg, figures)
        for taken in range(1, num_batches + 1):
            figures.batches += 1
            figures.rows += 32
            progress.step(taken)
        progress.end()


def test_progress_without_a_terminal_is_a_plain_line_a_leg() -> None:
    """Files and pipes get whole lines without control characters."""
    out = io.StringIO()
    console = Console(file=out, width=80)
    progress = progress_on(console)
    assert isinstance(progress, PlainProgress)
    drive(progress, Figures())
    first, second = out.getvalue().splitlines()
    assert "a-long-stage-name  10/10 batches" in first
    assert "mix  5 batches" in second
    assert "\x1b" not in out.getvalue()


def test_progress_on_a_terminal_is_one_line_that_fits_80_columns() -> None:
    """With five-figure counts and a million rows a second nothing is cut or wrapped at 80 columns."""
    out = io.StringIO()
    progress = LiveProgress(Console(file=out, width=80, force_terminal=True, color_system=None))
    figures = Figures(batches=1)
    progress.begin(StageLeg(stage=0, name="a-long-stage-name", expected_batches=99_999), figures)
    progress._meter._start_s -= 1.0  # as if a second ago
    figures.rows, figures.nbytes, figures.wait_s = 1_234_567, 126_000_000, 0.5
    progress.step(99_998)
    progress.end()
    drawn = out.getvalue().split("\x1b[2K")[-1]
    assert "99,998/99,999 batches 1," in drawn
    assert "rows/s" in drawn
    assert drawn.rstrip("\x1b[?25h\n").endswith(" %")
    assert drawn.count("\n") == 1


def test_a_terminal_gets_the_live_line() -> None:
    """The kind of progress follows from where the output goes."""
    assert isinstance(progress_on(Console(file=io.StringIO(), force_terminal=True)), LiveProgress)


@pytest.mark.parametrize(
    ("batches", "first", "rest"),
    [
        ([10, 20], [(0, 10), (1, 5)], [(1, 15)]),
        ([20, 10], [(0, 15)], [(0, 5), (1, 10)]),
        ([10, 10], [(0, 10)], [(0, 0), (1, 10)]),
        ([3], [(0, 1)], [(0, 2)]),
    ],
)
def test_the_demo_stops_in_the_middle_of_all_batches(
    batches: list[int], first: list[tuple[int, int]], rest: list[tuple[int, int]]
) -> None:
    """The stop is behind the middle batch, in whichever stage that is; both halves together are the whole."""
    legs = [StageLeg(stage=i, name=str(i), num_batches=n, expected_batches=n) for i, n in enumerate(batches)]
    halves = halves_of(legs)
    assert [[(leg.stage, leg.num_batches) for leg in half] for half in halves] == [first, rest]


def test_texts_of_a_list_are_told_apart_by_their_ends():
    """`trace --show` of a list of texts: each on its line, the middle of a long one left out, twelve at most."""
    documents = [f"/data/{'x' * 80}/0.parquet#{number}" for number in range(14)]
    place = {"place": 0, "row": 3, "row_group": 0, "shard": "/a.parquet", "source": "s/web"}
    heading = {"batch": 0, "number": 0, "stage_name": "s", "lane": 0, "state": "ahead", "world_size": 1, "step": 0}
    text = shown(batch_view({**heading, "rows": [{**place, "values": {"documents": documents}}]}, ["documents"]), 120)
    assert [f"/0.parquet#{number}" in text for number in range(14)] == [True] * 12 + [False] * 2
    assert f"/data/{'x' * 13}…{'x' * 28}/0.parquet#0" in text
    assert "… and 2 more" in text
    assert "; 1 row\n" in text
