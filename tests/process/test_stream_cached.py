"""Streams with `cache_dir`: the same bytes, less decoded, whatever becomes of the cache."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from loader_processes import worker_pids
from o41td.cli.status import loaders_view
from o41td.prometheus import prometheus_text
from o41td.runtime import list_loaders
from shard_writer import damage_row_group
from stream_reference import Reference, contents_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

UNITS = 6


@pytest.fixture
def shards(write_shards):
    """Three shards of two row groups of 600 rows: more than are decoded together."""
    return write_shards([1200] * 3, row_group_rows=600)


def config_of(paths, cache_dir, **keys):
    """A shuffled stage, in blocks that cut the row groups."""
    stage = stage_of(paths, batch_size=50, buffer_rows=500)
    return stream_config(stage, cache_dir=None if cache_dir is None else str(cache_dir), block_rows=250, **keys)


def kept_in(folder: Path) -> list[Path]:
    """The cache's files."""
    return sorted(folder.rglob("*.block"))


def test_another_seed_and_other_blocks_find_everything(shards, tmp_path, open_stream):
    """What one stream kept serves one of another seed, rank split and block size, whose batches are the right ones."""
    config = config_of(shards, tmp_path / "cache")
    cold = open_stream(config)
    assert Reference(config).check_rest(cold, position=0) == 3600
    assert cold.stats()["cache"]["misses"] == len(kept_in(tmp_path / "cache")) == UNITS
    config = config_of(shards, tmp_path / "cache", seed=99, lanes=2).model_copy(update={"block_rows": 400})
    warm = open_stream(config, rank=1, world_size=2)
    assert Reference(config).check_rest(warm, position=0, rank=1, world_size=2) == 1800
    cache = warm.stats()["cache"]
    assert (cache["misses"], cache["written_bytes"], cache["failure"]) == (0, 0, "")
    assert cache["hits"] >= UNITS // 2
    assert cache["read_bytes"] > 1800 * 8
    assert [(source["cache_hits"], source["cache_misses"]) for source in warm.stats()["sources"]] == [
        (cache["hits"], 0)
    ]
    (loader,) = (each for each in list_loaders() if each["pid"] == warm.stats()["coordinator"]["pid"])
    assert loader["cache"] == cache
    console = Console(width=100)
    with console.capture() as shown:
        console.print(loaders_view([loader]))
    assert f"cache 100 % of {cache['hits']} units found" in shown.get()
    assert f'o41td_cache_hits_total{{loader="{loader["name"]}",pid="{loader["pid"]}"}} {cache["hits"]}' in (
        prometheus_text([loader])
    )


def test_loaders_side_by_side_whose_workers_are_killed_share_a_cache(shards, tmp_path, open_stream):
    """Two loaders fill one cache, and each worker dies at it: all bytes are right, and so are those found then."""
    configs = [config_of(shards, tmp_path / "cache", seed=seed) for seed in (1, 2, 1)]
    references = [Reference(config) for config in configs]
    streams = [open_stream(config) for config in configs[:2]]
    for number in range(72):
        for stream, reference in zip(streams, references, strict=False):
            reference.check(stream.next(), number=number)
            if number == 7:
                os.kill(worker_pids(stream)[0], signal.SIGKILL)
    warm = open_stream(configs[2])
    references[2].check_rest(warm, position=0)
    cache = warm.stats()["cache"]
    assert (cache["misses"], cache["broken_files"]) == (0, 0)


@pytest.mark.parametrize("limit_bytes", [None, 100_000])
def test_a_cache_that_cannot_keep_what_it_should_costs_nothing_else(shards, tmp_path, open_stream, caplog, limit_bytes):
    """Where the folder cannot be made, one warning says so; where it holds two units, others go; no byte is wrong."""
    cache_dir = tmp_path / "cache"
    if limit_bytes is None:
        cache_dir.touch()
    caplog.set_level(logging.WARNING)
    config = config_of(shards, cache_dir, threads=2, cache_limit_bytes=limit_bytes)
    stream = open_stream(config)
    assert Reference(config).check_rest(stream, position=0) == 3600
    cache = stream.stats()["cache"]
    assert cache["misses"] >= UNITS or limit_bytes is None
    told = [record.message for record in caplog.records if "no more blocks are kept" in record.message]
    if limit_bytes is None:
        assert len(told) == 1
        assert "Not a directory" in told[0]
        assert "Not a directory" in cache["failure"]
    else:
        assert told == []
        assert cache["evicted_files"] > 0
        assert sum(path.stat().st_size for path in kept_in(cache_dir)) <= limit_bytes


def test_bad_rows_are_replaced_alike_by_a_cold_and_a_warm_cache(shards, tmp_path, open_stream):
    """A damaged row group's rows have the same stand-ins without a cache, with a cold and with a warm one."""
    damage_row_group(shards[1], 1)
    batches, lines = [], []
    for number, cache_dir in enumerate((None, tmp_path / "cache", tmp_path / "cache")):
        quarantine = tmp_path / f"{number}.jsonl"
        keys = {"on_bad_data": "replace", "bad_data_budget": 0.5, "quarantine_file": str(quarantine)}
        batches.append(contents_of(open_stream(config_of(shards, cache_dir, **keys))))
        found = [json.loads(line) for line in quarantine.read_text().splitlines()]
        lines.append(sorted((line["row_group"], line["rows"], line["why"]) for line in found))
    assert batches[0] == batches[1] == batches[2]
    assert lines[0] == lines[1] == lines[2]
    assert len(kept_in(tmp_path / "cache")) == UNITS - 1
