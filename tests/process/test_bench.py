"""`o41td bench` and `O41TD_PROFILE`, on streams that are over soon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shard_writer
from command_line import o41td, toml_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def test_a_config_is_measured_and_nothing_of_its_own_is_written(
    tmp_path: Path, write_shards: shard_writer.ShardWriter
) -> None:
    """64 rows in batches of 4, of which all but the first are measured; a bad row group is written down nowhere."""
    paths = write_shards([32, 32], row_group_rows=16)
    shard_writer.damage_row_group(paths[1], 1)
    own = tmp_path / "bad.jsonl"
    config = toml_config(
        tmp_path / "c.toml",
        [{"batch_size": 4, "sources": [("a", paths, 1.0)]}],
        threads=1,
        on_bad_data="replace",
        bad_data_budget=0.5,
        quarantine_file=str(own),
    )
    done = o41td("bench", config, "--json")
    record = json.loads(done.out)
    assert done.code == 0
    assert (record["threads"], record["batches"], record["rows"]) == (1, 15, 60)
    assert record["rows_per_s"] == pytest.approx(60 / record["measured_s"])
    assert record["bytes"] == 60 * (8 + 8 * 4 + 8)
    assert record["workers"] == []
    assert {phase["phase"] for phase in record["phases"] if phase["process"] == "workers"} == {
        "fetch", "decode", "project", "idle", "else",
    }  # fmt: skip
    assert record["limit"]
    assert not own.exists()


def test_other_numbers_of_workers_take_their_turns(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """With one worker, two are tried beside it, each twice; from the second stage on, which has 10 batches."""
    stages = [
        {"name": "first", "batch_size": 4, "sources": [("a", write_shards([16]), 1.0)]},
        {"name": "second", "batch_size": 4, "sources": [("b", write_shards([40], name="b"), 1.0)]},
    ]
    config = toml_config(tmp_path / "c.toml", stages, threads=1)
    record = json.loads(o41td("bench", config, "--workers", "--stage", "second", "--seconds", "0.4", "--json").out)
    assert [each["threads"] for each in record["workers"]] == [1, 2]
    assert [len(each["rows_per_s_of_runs"]) for each in record["workers"]] == [2, 2]
    assert record["batches"] == 2 * 9
    assert "threads" in record["advice"]
    unknown = o41td("bench", config, "--stage", "third")
    assert (unknown.code, unknown.out) == (2, "")


def test_a_profile_is_printed_at_close_and_only_when_asked_for(
    tmp_path: Path, write_shards: shard_writer.ShardWriter
) -> None:
    """On standard error, a table behind a line that counts rows and batches; standard output is as ever."""
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", write_shards([40]), 1.0)]}])
    profiled = o41td("run", config, "--json", env={"O41TD_PROFILE": "1"})
    assert (profiled.code, json.loads(profiled.out)["rows"]) == (0, 40)
    lines = profiled.err.splitlines()
    assert lines[0].startswith("o41td profile of rank 0 of 1: 40 rows in 10 batches, ")
    assert lines[1].split() == ["process", "phase", "seconds", "share", "CPU", "s"]
    assert lines[-1].split()[0] == "else"
    assert o41td("run", config, "--json", env={"O41TD_PROFILE": "0"}).err == ""
