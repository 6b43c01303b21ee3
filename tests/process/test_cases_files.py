"""Cases from public bug reports about files, folders and hosts, as whole streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from loader_processes import run_python
from o41td import MissingShardError, open_batch_stream
from stream_reference import ID_ONLY, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def test_a_folder_stands_for_its_shards_and_nothing_else(write_shards, tmp_path, open_stream):
    """J12: markers, hidden and temporary files are left out, sub-folders count, a dangling link is an error."""
    paths = write_shards([3, 4, 5])
    folder = tmp_path / "set"
    (folder / "sub").mkdir(parents=True)
    paths[0].rename(folder / "a.parquet")
    paths[1].rename(folder / "B.PARQUET")
    paths[2].rename(folder / "sub" / "c.parquet")
    for name in (
        "_SUCCESS",
        "_metadata",
        ".x.parquet.crc",
        "x.parquet.tmp",
        "_hidden.parquet",
        ".hidden.parquet",
        "notes.txt",
    ):
        (folder / name).write_text("not data")
    (folder / "empty").mkdir()
    (folder / "folder.parquet").mkdir()
    stream = open_stream(stream_config(stage_of([folder], batch_size=100), fields=ID_ONLY))
    assert [Path(shard.uri).name for shard in stream.sources[0].shards] == ["B.PARQUET", "a.parquet", "c.parquet"]
    assert ids_of([stream.next()]) == [3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10, 11]
    (folder / "z.parquet").symlink_to("nowhere")
    with pytest.raises(MissingShardError) as caught:
        open_batch_stream(stream_config(stage_of([folder])))
    assert caught.value.shard == str(folder / "z.parquet")


def test_names_are_taken_literally(write_shards, tmp_path, open_stream):
    """K1, J9: %, #, +, spaces, brackets, stars and CJK are themselves; file:// is decoded; each has its rows."""
    names = ["k=a%2312", "k=a#12", "a b", "a%20b", "a+b", "[x]", "st*r", "é漢字", "a?b"]
    paths = []
    for number, shard in enumerate(write_shards([1] * len(names))):
        folder = tmp_path / "odd" / names[number]
        folder.mkdir(parents=True)
        paths.append(shard.rename(folder / "x.parquet"))
    config = stream_config(stage_of(paths, batch_size=1), stage_of([path.as_uri() for path in paths], batch_size=1))
    stream = open_stream(config)
    assert ids_of(list(stream)) == list(range(len(names)))
    stream.advance(1)
    assert ids_of(list(stream)) == list(range(len(names)))
    checkpoint = stream.checkpoint()
    assert [Path(uri).parent.name for uri in checkpoint.sources[0].uris] == names
    stream.seek(3)
    state = json.loads(json.dumps(stream.state_dict()))
    stream.load_state_dict(state)
    assert stream.next()["id"].tolist() == [3]


def test_relative_paths_are_those_of_the_folder_at_open(write_shards, tmp_path, monkeypatch, open_stream):
    """A later chdir changes nothing."""
    paths = write_shards([8, 400])
    monkeypatch.chdir(paths[0].parent)
    stream = open_stream(stream_config(stage_of([path.name for path in paths]), block_rows=16))
    stream.next()
    monkeypatch.chdir(tmp_path)
    assert ids_of(list(stream)) == list(range(8, 408))
    assert stream.checkpoint().sources[0].uris[0] == str(paths[0])


def test_one_slow_shard_of_eight_delays_nothing_but_itself(write_shards, faulty_host, open_stream):
    """B9: each look at shard 3 takes 0.3 s: the order is kept, and the other worker decodes ahead meanwhile."""
    paths = write_shards([16] * 8)
    stream = open_stream(stream_config(stage_of(paths), threads=2, block_rows=16))
    assert ids_of(list(stream)) == list(range(128))
    faulty_host.order("part-00003.parquet", "sleep:0.3")
    stream.seek(0)
    assert ids_of(list(stream)) == list(range(128))
    assert faulty_host.times_done("part-00003.parquet") >= 1


def test_the_public_samples_stream_as_their_tables(parquet_testing, open_stream):
    """Delta-packed and byte-stream-split pages arrive as pyarrow reads them, lists with nulls by their policy."""
    import pyarrow.parquet as pq

    from o41td import ProjectedField

    for name, columns in (
        ("delta_binary_packed.parquet", {"bitwidth7": "i64", "int_value": "i32"}),
        (
            "byte_stream_split_extended.gzip.parquet",
            {"double_byte_stream_split": "f64", "int32_byte_stream_split": "i32"},
        ),
    ):
        path = parquet_testing / "data" / name
        fields = [ProjectedField(name=column, dtype=dtype) for column, dtype in columns.items()]
        batch = open_stream(stream_config(stage_of([path], batch_size=200), fields=fields)).next()
        table = pq.read_table(path, columns=list(columns))
        for column in columns:
            np.testing.assert_array_equal(batch[column], table[column].to_numpy())
    lists = ProjectedField(name="int64_list", dtype="i64", length=2, pad=-9, null=-1)
    path = parquet_testing / "data" / "list_columns.parquet"
    batch = open_stream(stream_config(stage_of([path], batch_size=3), fields=[lists])).next()
    assert batch["int64_list"].tolist() == [[1, 2], [-1, 1], [4, -9]]


def test_a_small_dev_shm_is_no_obstacle_and_never_a_signal(write_shards, tmp_path):
    """H1: /dev/shm of 1 MiB: the arena goes elsewhere, which is said once; no process dies of a signal."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True).returncode:
        pytest.skip("this host does not let us mount")
    config = stream_config(stage_of(write_shards([4000], row_group_rows=500), batch_size=100), block_rows=20_000)
    (tmp_path / "config.json").write_text(json.dumps(config.to_document()))
    script = (
        "import sys\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:\n"
        "    assert sum(batch.num_rows for batch in stream) == 4000\n"
        "    print(stream.stats()['arena']['kind'], len(stream.notices), '/dev/shm' in stream.notices[0])\n"
    )
    (tmp_path / "job.py").write_text(script)
    mount = (
        f"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec {os.sys.executable} {tmp_path}/job.py {tmp_path}/config.json"
    )
    ended = run_python("-c", f"import os; os.execv({unshare!r}, ['unshare', '-m', 'sh', '-c', {mount!r}])")
    assert (ended.code, ended.out) == (0, "memfd 1 True\n")
    assert ended.err.count("\n") == ended.err.count("/dev/shm cannot hold the arena") == 1
