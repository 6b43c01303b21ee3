"""What a DatasetWriter wrote, streamed; and many writers at once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from o41td import (
    BatchStreamConfig,
    DatasetWriter,
    FileSource,
    ManifestSource,
    ProjectedField,
    Shuffle,
    Stage,
    open_batch_stream,
)
from o41td.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("forked_loaders")

NUM_ROWS = 300


def rows(start=0, stop=NUM_ROWS):
    """Rows with ragged tokens, a mask, fixed-length values, and null lists among them."""
    for i in range(start, stop):
        yield {
            "id": i,
            "tokens": None if i % 50 == 49 else [(i * 7 + k) % 60_000 for k in range(i % 9)],
            "mask": [k % 2 == 0 for k in range(i % 9)],
            "pixels": [float(i), i / 4, -i / 8],
            "score": i / 2,
        }


def config_of(source):
    """Every column; nothing in it knows how the shards are laid out."""
    fields = [
        ProjectedField(name="id", dtype="i64"),
        ProjectedField(name="tokens", dtype="i32", length=6, pad=-1, null=-2),
        ProjectedField(name="mask", dtype="bool", length=6),
        ProjectedField(name="pixels", dtype="f32", length=3),
        ProjectedField(name="score", dtype="f64"),
    ]
    stage = Stage(sources=[source], batch_size=16, shuffle=Shuffle(buffer_rows=64))
    return BatchStreamConfig(fields=fields, stages=[stage], seed=3)


def streamed(config):
    """All batches' arrays, end to end."""
    with open_batch_stream(config) as stream:
        batches = [batch.arrays() for batch in stream]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("layout", ["balanced", "fast", "lists"])
def test_every_layout_streams_the_same(layout, tmp_path):
    """One config reads every layout, from the manifest and from the files, as the values that were written."""
    writer = DatasetWriter(tmp_path / "set" / "m.json", layout=layout)
    for shard, start in enumerate(range(0, NUM_ROWS, 100)):
        writer.save("train", "all", rows(start, start + 100), shard_id=f"{shard}")
    uri = writer.commit_manifest()
    selection = ManifestSource(manifest_uri=uri, split="train", curriculum_stages=["all"])
    got = streamed(config_of(selection))
    order = np.argsort(got["id"])
    assert got["id"][order].tolist() == list(range(NUM_ROWS))
    for i, row in zip(range(NUM_ROWS), order):
        tokens = [(i * 7 + k) % 60_000 for k in range(i % 9)][:6]
        expected = [-2] * 6 if i % 50 == 49 else tokens + [-1] * (6 - len(tokens))
        assert got["tokens"][row].tolist() == expected
        assert got["mask"][row].tolist() == [k < i % 9 and k % 2 == 0 for k in range(6)]
        assert got["pixels"][row].tolist() == [i, i / 4, -i / 8]
        assert got["score"][row] == i / 2
    shards = [shard.uri for shard in read_manifest(uri).shards_of("train")]
    files = streamed(config_of(FileSource(files=shards)))
    assert all(np.array_equal(got[name], files[name]) for name in got)


SAVER = """
import sys
from o41td import DatasetWriter
writer = DatasetWriter(sys.argv[1])
for shard in range(8):
    rows = [{"id": shard * 10 + i, "tokens": [i] * 5} for i in range(10)]
    writer.save("train", None, rows, shard_id=f"{shard}")
print(writer.commit_manifest())
"""


def test_many_processes_save_the_same_shards(tmp_path):
    """Three processes that save all shards and commit at once leave one data set, each row once, and no drafts."""
    uri = tmp_path / "set" / "m.json"
    savers = [
        subprocess.Popen([sys.executable, "-P", "-c", SAVER, str(uri)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [saver.communicate(timeout=120)[0].strip() for saver in savers] == [str(uri)] * 3
    shards = read_manifest(str(uri)).shards_of("train")
    assert [shard.records for shard in shards] == [10] * 8
    assert sorted(path.name for path in uri.parent.iterdir()) == ["_o41td", "m.json", "train"]
    assert len(list((uri.parent / "train").iterdir())) == 8


KILLED = """
import os, signal, sys
from o41td import DatasetWriter
def rows():
    for i in range(5000):
        if i == 4000:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"id": i}
writer = DatasetWriter(sys.argv[1])
writer.save("train", None, [{"id": 0}], shard_id="0")
writer.save("train", None, rows(), shard_id="1")
"""


def test_a_killed_writer_leaves_no_half_shard(tmp_path):
    """After SIGKILL in the middle of a shard only the finished one is there, and saving goes on behind it."""
    uri = tmp_path / "set" / "m.json"
    assert subprocess.run([sys.executable, "-P", "-c", KILLED, str(uri)], timeout=120).returncode == -9
    writer = DatasetWriter(uri)
    assert [shard.shard_id for shard in writer.recover().shards] == ["0"]
    assert len(list((uri.parent / "train").iterdir())) == 1
    writer.save("train", None, [{"id": i} for i in range(5000)], shard_id="1")
    writer.commit_manifest()
    source = ManifestSource(manifest_uri=str(uri), split="train")
    config = BatchStreamConfig(
        fields=[ProjectedField(name="id", dtype="i64")], stages=[Stage(sources=[source], batch_size=100)]
    )
    assert sorted(streamed(config)["id"].tolist()) == sorted([0, *range(5000)])
