"""Ranks that share a served loader: the batches of private loaders, blocks decoded once, none held up by others."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from command_line import command, o41td
from loader_processes import wait_until
from o41td import Checkpoint, ConnectError, connect, open_batch_stream, resume_batch_stream
from o41td.joining import served_loader
from o41td.order import add_digests
from o41td.runtime import list_loaders
from served_loader import result_of, trainer, unused_name
from stream_reference import Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")
forked = pytest.mark.usefixtures("forked_programs")


def taken_in_step(streams):
    """What `result_of` says of trainers, of streams of this process that all take a batch, and then the next."""
    ids = [[] for _ in streams]
    while all(batches := [stream.next() for stream in streams]):
        for rank, batch in enumerate(batches):
            ids[rank].append(batch["id"].tolist())
    assert batches == [None] * len(streams)
    results = []
    for rank, stream in enumerate(streams):
        results.append({"ids": ids[rank], "digest": stream.order_digest, "dropped_rows": stream.dropped_rows})
        stream.close()
    return results


@pytest.mark.parametrize(("lanes", "are_processes"), [(None, False), (1, True), (3, False)])
def test_ranks_of_one_loader_get_what_private_loaders_give(write_shards, serve, join, lanes, are_processes):
    """Four ranks, on lanes of their own, one lane, and lanes in common: ids, digests and dropped rows."""
    config = stream_config(stage_of(write_shards([101, 60, 83]), batch_size=5, buffer_rows=24), lanes=lanes)
    reference = Reference(config, lanes=lanes or 4)
    served = serve(config, "--ranks", "4")
    if are_processes:
        results = [result_of(process) for process in [trainer(served.name, rank) for rank in range(4)]]
    else:
        results = taken_in_step([join(served.name, rank) for rank in range(4)])
    rounds = reference.num_batches() // 4
    for rank, result in enumerate(results):
        assert result["ids"] == [reference.ids(4 * k + rank) for k in range(rounds)]
    digests = [result["digest"] for result in results]
    assert add_digests(*digests) == add_digests(*[reference.digest(n, n) for n in range(4 * rounds)])
    ids = [row_id for result in results for batch in result["ids"] for row_id in batch]
    assert len(ids) + sum(result["dropped_rows"] for result in results) == 244
    code, told = served.end()
    assert code == 0
    *comings, last = told.splitlines()
    assert last == f"Terminated: {served.name} is served no more."
    came = [line.split(" (pid ")[0] for line in comings if "has come: " in line]
    assert sorted(came) == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert comings[-1].endswith("has left: 0 of 4 are here")


@forked
def test_eight_ranks_on_one_lane_decode_what_one_decodes(write_shards, serve, join):
    """8 row groups of 400 rows: 8 blocks and 3 200 rows are decoded for eight ranks in step, as for one alone."""
    config = stream_config(stage_of(write_shards([400] * 8), batch_size=10, buffer_rows=100), lanes=1, block_rows=400)
    reference = Reference(config)
    served = serve(config, "--ranks", "8")
    streams = [join(served.name, rank) for rank in range(8)]
    for k in range(40):
        for rank, stream in enumerate(streams):
            reference.check(stream.next(), number=8 * k + rank)
    figures = streams[3].stats()
    assert (figures["blocks_decoded"], figures["decoded_rows"]) == (8, 3200)
    assert [rank["rank"] for rank in figures["ranks"]] == list(range(8))
    with open_batch_stream(config) as alone:
        assert sum(batch.num_rows for batch in alone) == 3200
        assert alone.stats()["blocks_decoded"] == 8


@forked
def test_a_rank_that_takes_nothing_holds_up_no_other(write_shards, serve, join):
    """One lane, slots of 16 rows: rank 0 goes to the end while rank 1 stands still, and rank 1 gets all of its own."""
    config = stream_config(stage_of(write_shards([300, 300]), batch_size=10, buffer_rows=50), lanes=1, block_rows=16)
    reference = Reference(config)
    served = serve(config, "--ranks", "2")
    slow, fast = join(served.name, 1), join(served.name, 0)
    reference.check(slow.next(), number=1)
    reference.check_rest(fast, position=0, rank=0, world_size=2)
    (loader,) = [loader for loader in list_loaders() if loader["name"] == served.name]
    assert [(rank["rank"], rank["step"] > 5) for rank in loader["ranks"]] == [(0, True), (1, False)]
    for k in range(1, 30):
        reference.check(slow.next(), number=2 * k + 1)
    assert slow.next() is None


@forked
def test_a_connected_stream_moves_and_resumes_as_any_other(write_shards, serve, join, tmp_path):
    """seek, skip, advance, state_dict; a checkpoint goes on with private loaders of another world size, and back."""
    config = stream_config(
        stage_of(write_shards([200], name="a"), batch_size=4, buffer_rows=32),
        stage_of(write_shards([90], name="b", first_id=1000), batch_size=6, infinite=True),
        lanes=2,
    )
    reference = Reference(config)
    served = serve(config, "--ranks", "2")
    streams = [join(served.name, rank) for rank in range(2)]
    for rank, stream in enumerate(streams):
        stream.seek(10)
        stream.skip(2)
        reference.check(stream.next(), number=14 + rank)
        stream.advance(1)
        reference.check(stream.next(), number=rank, stage=1, batch_index=16 + rank)
        stream.advance(0)
        reference.check(stream.next(), number=16 + rank, stage=0, batch_index=18 + rank)
    assert streams[0].checkpoint().cursor == streams[1].checkpoint().cursor
    streams[1].checkpoint().save(tmp_path / "c.json")
    with resume_batch_stream(tmp_path / "c.json") as alone:
        reference.check(alone.next(), number=18, batch_index=20)
        state = alone.state_dict()
    for rank, stream in enumerate(streams):
        stream.load_state_dict(state)
        reference.check(stream.next(), number=19 + rank, batch_index=21 + rank)
    assert Checkpoint.load(tmp_path / "c.json").config["lanes"] == 2


def test_a_rank_that_comes_early_waits_until_the_loader_is_open(write_shards, tmp_path, join):
    """connect() as soon as the name is there, while footers are still read; what the loader is doing is listed."""
    config = stream_config(stage_of(write_shards([64] * 4), batch_size=4))
    path, name = tmp_path / "config.json", unused_name()
    path.write_text(json.dumps(config.to_document()))
    process = subprocess.Popen(command("serve", path, "--name", name), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: served_loader(name), "the name is not there")
        stream = join(name, 0)
        Reference(config).check(stream.next(), number=0)
        stream.close()
        (loader,) = wait_until(
            lambda: [found for found in list_loaders() if found["name"] == name and not found["ranks"]],
            "a rank is left",
        )
        assert (loader["verdict"], loader["served_ranks"]) == ("no rank is connected", [0])
    finally:
        process.terminate()
        out, _err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out.startswith(f"Ready: {name} serves rank 0 of 1".encode())


@forked
def test_a_loader_is_up_before_anybody_has_come(write_shards, serve):
    """Its time counts from its own start, not from the first rank's."""
    served = serve(stream_config(stage_of(write_shards([64]), batch_size=4)))
    (loader,) = [found for found in list_loaders() if found["name"] == served.name]
    assert not loader["ranks"]
    assert 0 < loader["uptime_s"] < 600


@forked
def test_who_cannot_connect_is_told_why(write_shards, serve, join):
    """A rank that is taken, one that is not served, a name that is not there, a private loader's name."""
    config = stream_config(stage_of(write_shards([64]), batch_size=4))
    served = serve(config, "--ranks", "2-3", "--world-size", "4")
    reference = Reference(config, lanes=4)
    first = join(served.name, 3)
    with pytest.raises(ConnectError, match=f"rank 3 is taken by process {os.getpid()}"):
        connect(served.name, rank=3)
    with pytest.raises(ConnectError, match="rank 0 is not served here, ranks 2, 3 are"):
        connect(served.name, rank=0)
    with pytest.raises(ConnectError, match=f"'nobody'.*{served.name}"):
        connect("nobody", rank=0)
    with open_batch_stream(config) as private:
        name = private.stats()["name"]
        with pytest.raises(ConnectError, match=name):
            connect(name, rank=0)
    reference.check(first.next(), number=3)
    first.close()
    reference.check(join(served.name, 3).next(), number=3)


@forked
def test_what_cannot_be_served_is_refused_with_its_reason(write_shards, serve, tmp_path):
    """A name that is taken, a name that is none, senseless ranks, shards that are not there: code 2 or 1."""
    config = stream_config(stage_of(write_shards([64]), batch_size=4))
    served = serve(config, "--ranks", "2")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    taken = o41td("serve", path, "--name", served.name)
    assert (taken.code, taken.out) == (2, "")
    assert f"process {served.process.pid}" in taken.err
    assert o41td("serve", path, "--name", "a/b").code == 2
    assert o41td("serve", path, "--name", unused_name(), "--ranks", "8-15").code == 2
    path.write_text(json.dumps(stream_config(stage_of([tmp_path / "nothing.parquet"])).to_document()))
    missing = o41td("serve", path, "--name", unused_name())
    assert missing.code == 1
    assert "nothing.parquet" in missing.err
    assert "Traceback" not in missing.err
