"""`o41td plan`: figures worked out by hand, differences, and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import shard_writer
from command_line import o41td, o41td_in_a_process, toml_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 rows of `web` in two shards and 60 of `books` in one, in row groups of 16."""
    folder = tmp_path_factory.mktemp("plan")
    write = shard_writer.ShardWriter(folder)
    write([50, 50], name="web", row_group_rows=16)
    write([60], name="books", first_id=1000, row_group_rows=16)
    return folder


def curriculum(folder: Path, name: str, *, batch_size: int = 16, **keys: object) -> Path:
    """100 rows in batches of 8, then both sources 1 : 3, then both without end."""
    web, books = (sorted((folder / source).iterdir()) for source in ("web", "books"))
    mixed = [("web", web, 1.0), ("books", books, 3.0)]
    stages = [
        {"name": "easy", "batch_size": 8, "sources": [("web", web, 1.0)]},
        {"name": "mix", "batch_size": batch_size, "shuffle": 32, "sources": mixed},
        {"name": "endless", "batch_size": 16, "infinite": True, "sources": mixed},
    ]
    return toml_config(folder / name, stages, threads=1, **keys)


def test_a_plan_by_hand(folder):
    """Two ranks, batches 4 and 5 excluded: what each stage gives, drops and passes over, and when sources end."""
    done = o41td("plan", curriculum(folder, "a.toml", exclude=[[4, 6]]), "--world-size", "2", "--json")
    assert (done.code, done.err) == (0, "")
    record = json.loads(done.out)
    assert (record["exclude"], record["steps"]) == ([[4, 6]], None)
    easy, mix, endless = record["stages"]
    #  50 rows in each of two lanes: 7 batches each, 14 in all, of which 12 are left: 6 steps; nothing is dropped.
    assert (easy["batches"], easy["excluded_batches"], easy["steps_per_rank"]) == (14, 2, 6)
    assert (easy["dropped_rows"], easy["dropped_rows_all_ranks"]) == (0, 0)
    assert (easy["first_batch"], mix["first_batch"], endless["first_batch"]) == (0, 14, 24)
    #  80 rows in each lane: 5 batches each.
    assert (mix["batches"], mix["excluded_batches"], mix["steps_per_rank"]) == (10, 0, 5)
    web, books = mix["sources"]
    assert (web["rows"], web["shards"], web["row_groups"], web["share"]) == (100, 2, 8, 0.25)
    assert (web["last_batch"], web["epochs"], web["epoch_batches"]) == (9, 1, None)
    #  Footers, and a column chunk for each of three fields in each row group: 2 + 8 * 3 and 1 + 4 * 3.
    assert [source["requests"] for source in mix["sources"]] == [26, 13]
    #  80 rows are less than the 256 over which the mix is exact: within them both sources come to the end.
    assert books["last_batch"] in (8, 9)
    #  A batch of 16 has 4 of web and 12 of books.
    assert [source["epoch_batches"] for source in endless["sources"]] == [25, 5]
    assert (endless["batches"], endless["steps_per_rank"], endless["sources"][0]["last_batch"]) == (None, None, None)


def test_two_plans_are_compared_figure_by_figure(folder):
    """A smaller batch: other batches, steps and memory; each with both values, and nothing that is equal."""
    a, b = curriculum(folder, "a.toml"), curriculum(folder, "b.toml", batch_size=8)
    done = o41td("plan", a, "--diff", b, "--json")
    assert (done.code, done.err) == (0, "")
    differences = {path: (old, new) for path, old, new in json.loads(done.out)}
    assert differences["stages[1].batch_size"] == (16, 8)
    assert differences["stages[1].batches"] == (10, 20)
    assert not any(path.startswith("stages[0]") for path in differences)
    shown = o41td("plan", a, "--diff", b)
    assert "stages[1].batch_size" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert o41td("plan", a, "--diff", a).out == "the plans are the same\n"


def test_the_curriculum_is_drawn(folder, tmp_path):
    """A PNG of the whole curriculum; the plan is printed as ever."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    done = o41td_in_a_process("plan", curriculum(folder, "a.toml"), "--plot", picture)
    assert (done.code, done.err) == (0, "")
    assert f"drawn in {picture}" in done.out.replace("\n", "")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    assert (width, height) == (1500, 630)


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_read(folder, tmp_path, monkeypatch):
    """No matplotlib, no such kind, no such folder: one line, exit 2."""
    config = curriculum(folder, "a.toml")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)  # as Python has it, no such package
        done = o41td("plan", config, "--plot", tmp_path / "out.png")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'o41td[plot]'" in done.err
    pytest.importorskip("matplotlib")
    for impossible in (tmp_path / "out.txt", tmp_path / "absent" / "out.png"):
        done = o41td("plan", config, "--plot", impossible)
        assert (done.code, done.out) == (2, "")
        assert str(impossible) in done.err
