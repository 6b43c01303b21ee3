"""What a running loader tells of itself: while it opens, while it streams, and once it has ended."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from command_line import DEADLINE_S, command, o41td, toml_config
from loader_processes import coordinator_pid, is_gone, wait_until
from o41td import open_batch_stream, resume_batch_stream
from o41td.runtime import list_loaders
from stream_reference import Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def listed(pid: int) -> dict[str, Any] | None:
    """The record of the loader whose coordinator has this pid."""
    return next((loader for loader in list_loaders() if loader["pid"] == pid), None)


def when_told(stream: Any, batches: int) -> dict[str, Any]:
    """The loader's record once it has heard that so many batches were taken."""

    def look() -> dict[str, Any] | None:
        loader = listed(coordinator_pid(stream))
        return loader if loader and loader["ranks"] and loader["ranks"][0]["batches"] == batches else None

    return wait_until(look, "the coordinator has not heard of the last batch")


def test_a_rank_is_told_by_step_batch_and_share_of_its_stage(module_shards):
    """100 rows in batches of 5, batch 2 excluded: behind 3 batches comes batch 4, step 3, a fifth of the stage."""
    config = stream_config(
        stage_of(module_shards([100]), batch_size=5, name="only"), exclude=[[2, 3]], prefetch_batches=4
    )
    reference = Reference(config)
    with open_batch_stream(config) as stream:
        for number in (0, 1, 3):
            reference.check(stream.next(), number=number, batch_index=number)
        loader = when_told(stream, 3)
        (rank,) = loader["ranks"]
        assert (rank["rank"], rank["world_size"], rank["stage_name"]) == (0, 1, "only")
        assert (rank["step"], rank["batch"], rank["stage_batch"], rank["stage_batches"]) == (3, 4, 4, 20)
        assert rank["rows"] == 15
        assert rank["ready_batches"] >= 1
        (source,) = loader["sources"]
        assert (source["name"], source["epoch"], source["progress"]) == ("only/source0", 0, 0.2)
        (worker,) = loader["workers"]
        assert worker["state"] in ("idle", "decoding")
        assert loader["state"] == "streaming"
        assert loader["verdict"]
        state = stream.checkpoint()
        pid = coordinator_pid(stream)
    wait_until(lambda: is_gone(pid), "the coordinator lives on")
    assert listed(pid) is None
    with resume_batch_stream(state) as stream:
        assert stream.next() is not None
        (rank,) = when_told(stream, 1)["ranks"]
        assert (rank["step"], rank["batch"], rank["stage_batch"]) == (4, 5, 5)


def test_batches_and_rows_are_counted_through_every_move(module_shards):
    """A seek starts no count anew or short: three batches of 4, then two, are five and 20 rows."""
    with open_batch_stream(stream_config(stage_of(module_shards([40], name="moves"), batch_size=4))) as stream:
        for _ in range(3):
            assert stream.next() is not None
        stream.seek(0)
        for _ in range(2):
            assert stream.next() is not None
        (rank,) = when_told(stream, 5)["ranks"]
        assert (rank["batches"], rank["rows"], rank["step"]) == (5, 20, 2)


def test_sources_of_an_endless_stage_count_their_epochs(module_shards):
    """Rows of 10 and 40 in equal shares, batches of 4: behind 15 batches the small one has given 3 epochs of 10."""
    small, large = module_shards([10], name="small"), module_shards([40], name="large")
    config = stream_config(stage_of(small, large, batch_size=4, buffer_rows=8, infinite=True), seed=3)
    taken = [0, 0]
    with open_batch_stream(config) as stream:
        for _ in range(15):
            for source in stream.next().coordinates()["source"].tolist():
                taken[source] += 1
        sources = when_told(stream, 15)["sources"]
    assert [source["epoch"] for source in sources] == [taken[0] // 10, taken[1] // 40]
    assert [source["progress"] for source in sources] == pytest.approx([taken[0] % 10 / 10, taken[1] % 40 / 40])


def test_a_loader_that_opens_is_listed_as_such(tmp_path, write_shards, faulty_host):
    """While a worker is stuck with a footer, status says how many are read; the entry goes with its owner."""
    shards = write_shards([10, 10, 10])
    faulty_host.order("part-00002.parquet", "SIGSTOP")
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", shards, 1.0)]}], threads=1)
    trainer = subprocess.Popen(command("run", config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def opening() -> dict[str, Any] | None:
            return next(
                (
                    loader
                    for loader in list_loaders()
                    if loader["name"] == f"pid{trainer.pid}-rank0" and loader["opening"]["footers"] == 2
                ),
                None,
            )

        loader = wait_until(opening, "the loader is not listed while it opens")
        assert (loader["state"], loader["limit"], loader["ranks"]) == ("opening", "opening", [])
        assert loader["opening"] == {"footers": 2, "of": 3}
        shown = o41td("status")
        assert "it is being opened 2 of 3 footers are read" in " ".join(shown.out.split())
    finally:
        trainer.kill()
        trainer.wait(DEADLINE_S)
    wait_until(lambda: listed(loader["pid"]) is None, "a loader that has ended is listed")


def test_prometheus_and_json_of_a_running_stream(module_shards):
    """Both name the loader, and can be narrowed to it; --prometheus goes with neither --json nor --watch."""
    config = stream_config(stage_of(module_shards([20], name="prom"), batch_size=5))
    with open_batch_stream(config) as stream, open_batch_stream(config, 1, 2) as another:
        stream.next()
        loader = when_told(stream, 1)
        scraped = o41td("status", "--prometheus")
        assert (scraped.code, scraped.err) == (0, "")
        assert f'pid="{loader["pid"]}",rank="0"}} 1\n' in scraped.out
        pids = {each["pid"] for each in json.loads(o41td("status", "--json").out)}
        assert {loader["pid"], coordinator_pid(another)} <= pids
        (named,) = json.loads(o41td("status", loader["name"], "--json").out)
        assert named["pid"] == loader["pid"]
        unknown = o41td("status", "nobody")
        assert (unknown.code, unknown.out) == (2, "")
        assert "is named 'nobody'" in unknown.err
        assert loader["name"] in unknown.err
    for other in ("--json", "--watch"):
        done = o41td("status", "--prometheus", other)
        assert (done.code, done.out) == (2, "")
        assert "--prometheus" in done.err
