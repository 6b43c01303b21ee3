"""Checkpoints: the text, its damage, the file, and what differs."""

import copy
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from o41td.checkpoint import Checkpoint, SourceRecord, differences
from o41td.config import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage
from o41td.document_differences import differences_of
from o41td.errors import CheckpointError


def make_config(**changes):
    """An ordinary config of two stages."""
    stage = Stage(
        sources=[FileSource(files=["data/*.parquet"], weight=3.0)], batch_size=32, shuffle=Shuffle(buffer_rows=64)
    )
    keys = {
        "fields": [
            ProjectedField(name="tokens", source="ids", dtype="i32", length=2048),
            ProjectedField(name="y", dtype="f64"),
        ],
        "stages": [stage, Stage(sources=[FileSource(files=["more/*.parquet"])], batch_size=8, name="hard")],
        "seed": 2**64 - 1,
        "lanes": 8,
    }
    return BatchStreamConfig(**{**keys, **changes})


def make_source(shards=3, stage=0):
    """A source of shards with names, counts, sizes and versions as they are in practice."""
    return SourceRecord(
        name=f"stage{stage}/source0",
        stage=stage,
        source=0,
        uris=tuple(f"/data/corpus/train/part-{i:05d}-of-00064.parquet" for i in range(shards)),
        rows=tuple(100_000 + i for i in range(shards)),
        size_bytes=tuple(1_000_000_000 + 7919 * i for i in range(shards)),
        versions=tuple(hashlib.blake2b(bytes([i]), digest_size=8).hexdigest() for i in range(shards)),
    )


def make_checkpoint(**changes):
    """A checkpoint in the middle of a stream."""
    keys = {
        "order_version": 1,
        "config": make_config().to_document(),
        "sources": (make_source(), make_source(1, stage=1)),
        "cursor": ((0, 5), (1, 3), (0, 2**40)),
        "batches_yielded": 2**40 + 8,
        "rows_yielded": 2**45,
        "epochs": {"stage0/source0": 3, "stage1/source0": 0},
        "order_digest": 0xFEDCBA9876543210,
        "rank": 3,
        "world_size": 8,
    }
    return Checkpoint(**{**keys, **changes})


def test_json_and_back():
    """The text gives an equal checkpoint, and the same text again."""
    checkpoint = make_checkpoint()
    text = checkpoint.to_json()
    assert Checkpoint.from_json(text) == checkpoint
    assert Checkpoint.from_json(text.encode()) == checkpoint
    assert Checkpoint.from_json(text).to_json() == text
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")


def test_the_text_is_json_with_a_checksum_anyone_can_check():
    """The checksum is blake2b-64 of all bytes above its line, and 64 bits of digest are hexadecimal text."""
    text = make_checkpoint().to_json()
    body, _, last = text.partition('\n"checksum": ')
    assert json.loads(text)["order_digest"] == {"rank": 3, "world_size": 8, "value": "fedcba9876543210"}
    assert last == f'"{hashlib.blake2b(body.encode(), digest_size=8).hexdigest()}"\n}}\n'


def test_a_document_is_plain_and_new():
    """state_dict's form survives JSON, and changing it changes nothing here."""
    checkpoint = make_checkpoint()
    document = checkpoint.to_document()
    before = copy.deepcopy(document)
    assert Checkpoint.from_document(json.loads(json.dumps(document))) == checkpoint
    document["config"]["stages"][0]["batch_size"] = 1
    document["cursor"].append([0, 1])
    document["sources"][0]["rows"][0] = 0
    document["epochs"]["x"] = 1
    assert checkpoint.to_document() == before
    assert Checkpoint.from_document(before).config is not before["config"]


def test_64_shards_fit_in_8_kilobytes():
    """An ordinary config over 64 shards makes a small document, with every URI back in full."""
    checkpoint = make_checkpoint(sources=(make_source(64),))
    text = checkpoint.to_json()
    assert len(text) < 8 * 1024
    assert Checkpoint.from_json(text).sources[0].uris[63] == "/data/corpus/train/part-00063-of-00064.parquet"


@pytest.mark.parametrize(
    "uris", [(), ("a",), ("a", "a"), ("ab", "a"), ("a", "ba"), ("aba", "ababa"), ("é/1", "é/2"), ("x",)]
)
def test_uris_come_back_whatever_they_share(uris):
    """Factoring out common beginnings and ends loses nothing."""
    none = (None,) * len(uris)
    record = SourceRecord(name="s", stage=0, source=0, uris=uris, rows=(0,) * len(uris), size_bytes=none, versions=none)
    assert SourceRecord.from_document(record.to_document()) == record


def test_numpy_numbers_are_written_as_numbers():
    """Counts that come from arrays do not break the text."""
    checkpoint = make_checkpoint(
        batches_yielded=np.int64(8), cursor=((np.int64(0), np.int64(8)),), epochs={"a": np.int32(1)}
    )
    assert Checkpoint.from_json(checkpoint.to_json()).batches_yielded == 8


def test_truncated_at_every_byte():
    """Each proper beginning of the text is refused as empty or cut short."""
    text = make_checkpoint().to_json()
    for length in range(len(text)):
        with pytest.raises(CheckpointError, match="empty" if length == 0 else "cut short"):
            Checkpoint.from_json(text[:length])


def test_every_flipped_byte():
    """A text with any one byte changed is refused, whatever the byte becomes."""
    data = make_checkpoint().to_json().encode()
    for index in range(len(data)):
        for mask in (0x01, 0x20, 0x80):
            damaged = bytearray(data)
            damaged[index] ^= mask
            with pytest.raises(CheckpointError):
                Checkpoint.from_json(bytes(damaged))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("\n", "empty"),
        ("{}", "not an o41td checkpoint"),
        ('{"model": 1}', "not an o41td checkpoint"),
        ("PK\x03\x04 a torch file", "not an o41td checkpoint"),
        (b"\x80\x04\x95 a pickle", "not an o41td checkpoint"),
    ],
)
def test_what_is_no_checkpoint(text, reason):
    """Other files are refused as what they are."""
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint.from_json(text)


def test_a_newer_format_is_named():
    """A later format version is refused as newer, not as damaged, with both versions."""
    text = make_checkpoint(format_version=2).to_json()
    with pytest.raises(CheckpointError, match="format version 2; this o41td reads up to 1"):
        Checkpoint.from_json(text)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.pop("cursor"), "lacks `cursor`"),
        (lambda d: d.update(extra=1), "unknown `extra`"),
        (lambda d: d.update(format="other"), "not an o41td checkpoint"),
        (lambda d: d.update(format_version=True), "format_version"),
        (lambda d: d.update(batches_yielded=-1), "batches_yielded"),
        (lambda d: d.update(rows_yielded=1.0), "rows_yielded"),
        (lambda d: d.update(cursor=[[0]]), "cursor"),
        (lambda d: d.update(cursor=7), "cursor"),
        (lambda d: d["order_digest"].update(value="xyz"), "order_digest"),
        (lambda d: d["order_digest"].update(value=5), "value"),
        (lambda d: d["order_digest"].update(rank=-1), "rank"),
        (lambda d: d.update(order_digest="fedcba9876543210"), "order_digest"),
        (lambda d: d.update(epochs={"a": "b"}), "epochs"),
        (lambda d: d.update(config=[]), "config"),
        (lambda d: d["sources"][0]["rows"].pop(), "different lengths"),
        (lambda d: d["sources"][0].pop("versions"), "lacks `versions`"),
        (lambda d: d["sources"][0]["uris"].__setitem__(0, 3), "wrong kind"),
        (lambda d: d.update(sources=[3]), "not a table"),
    ],
)
def test_a_document_that_is_not_whole(change, named):
    """A state dict with a wrong part is refused by the part's name."""
    document = make_checkpoint().to_document()
    change(document)
    with pytest.raises(CheckpointError, match=named):
        Checkpoint.from_document(document)


def test_save_and_load(tmp_path):
    """A saved file loads, replaces an older one, and leaves nothing else in the folder."""
    path = tmp_path / "ckpt.json"
    make_checkpoint(rank=0).save(path)
    make_checkpoint(rank=1).save(str(path))
    assert Checkpoint.load(path).rank == 1
    assert os.listdir(tmp_path) == ["ckpt.json"]


def test_save_needs_no_folder_in_the_path(tmp_path, monkeypatch):
    """A bare file name means the current folder."""
    monkeypatch.chdir(tmp_path)
    make_checkpoint().save("ckpt.json")
    assert Checkpoint.load("ckpt.json") == make_checkpoint()


def test_modes_and_links_stay(tmp_path):
    """A new file gets 0644, an existing one keeps its mode, a link keeps pointing."""
    path, link = tmp_path / "real.json", tmp_path / "latest.json"
    make_checkpoint().save(path)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    link.symlink_to("real.json")
    make_checkpoint(rank=5).save(link)
    assert path.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()
    assert Checkpoint.load(path).rank == 5


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    """An error while writing neither harms the old file nor leaves a new one."""
    path = tmp_path / "ckpt.json"
    make_checkpoint(rank=0).save(path)

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointError, match="cannot be saved: No space") as caught:
        make_checkpoint(rank=1).save(path)
    assert caught.value.path == str(path)
    assert Checkpoint.load(path).rank == 0
    assert os.listdir(tmp_path) == ["ckpt.json"]


def test_leavings_of_killed_writers_go_after_an_hour(tmp_path):
    """A save removes its own kind of temporary file if it is old, and nothing else."""
    old, fresh, other = tmp_path / ".c.json.aaa.tmp", tmp_path / ".c.json.bbb.tmp", tmp_path / ".d.json.ccc.tmp"
    for file in (old, fresh, other):
        file.write_text("half", encoding="ascii")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    make_checkpoint().save(tmp_path / "c.json")
    assert sorted(os.listdir(tmp_path)) == [".c.json.bbb.tmp", ".d.json.ccc.tmp", "c.json"]


def test_load_names_the_file(tmp_path):
    """A file that is missing or damaged is named in the error."""
    path = tmp_path / "ckpt.json"
    with pytest.raises(CheckpointError, match="no such checkpoint file") as caught:
        Checkpoint.load(path)
    assert caught.value.path == str(path)
    path.write_text(make_checkpoint().to_json()[:-20], encoding="ascii")
    with pytest.raises(CheckpointError, match="cut short") as caught:
        Checkpoint.load(path)
    assert str(path) in str(caught.value)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.load(tmp_path)


SAVE_FOR_EVER = """
import sys
from o41td.checkpoint import Checkpoint
print("ready", flush=True)
rank = 0
while True:
    rank = 1 - rank
    Checkpoint(order_version=1, config={"pad": "x" * 200000}, sources=(), cursor=(), batches_yielded=0, rows_yielded=0,
               rank=rank, world_size=2).save(sys.argv[1])
"""


def test_a_kill_while_saving_leaves_a_whole_file(tmp_path):
    """SIGKILL at any moment of a save loop leaves a file that loads."""
    path = tmp_path / "ckpt.json"
    make_checkpoint().save(path)
    deadline_s = time.monotonic() + 60
    for extra_saves in range(6):
        process = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        inode = path.stat().st_ino
        for _ in range(extra_saves + 1):
            while path.stat().st_ino == inode:
                assert time.monotonic() < deadline_s, "the writer makes no progress"
            inode = path.stat().st_ino
        process.kill()
        process.wait()
        process.stdout.close()
        assert Checkpoint.load(path).rank in (0, 1)


def test_a_config_that_agrees_has_no_differences():
    """Threads and memory may change on a resume, and lanes left out take the checkpoint's."""
    checkpoint = make_checkpoint()
    other = make_config(threads=7, prefetch_batches=9, memory_limit_bytes="2GB", lanes=None)
    assert differences(checkpoint, other.to_document()) == []
    assert differences(checkpoint, other.to_document(), keys=["threads"]) == [("threads", 2, 7)]


def test_stages_in_another_order_are_told_as_that():
    """The names in both orders, and not what differs at each place; a stage without a name is called by its place."""
    stage, other = ({"name": name, "batch_size": size, "sources": []} for name, size in (("warm", 8), ("mix", 16)))
    checkpoint = replace(make_checkpoint(), config={"stages": [stage, other, {"sources": [1]}]})
    found = differences(checkpoint, {"stages": [other, {"sources": [1]}, stage]}, keys=["stages"])
    assert found == [("stages", ["warm", "mix", "stage2"], ["mix", "stage2", "warm"])]
    assert len(differences(checkpoint, {"stages": [other, stage, {"sources": [2]}]}, keys=["stages"])) > 2


def test_differences_are_named_with_both_values():
    """Each differing key comes with its path, the checkpoint's value and the other's."""
    stage = Stage(sources=[FileSource(files=["data/*.parquet"], weight=1.0)], batch_size=64)
    other = make_config(
        seed=1, lanes=4, stages=[stage], fields=[ProjectedField(name="tokens", source="ids", dtype="i64", length=8)]
    )
    found = {path: (old, new) for path, old, new in differences(make_checkpoint(), other.to_document())}
    assert found["seed"] == (2**64 - 1, 1)
    assert found["lanes"] == (8, 4)
    assert found["fields[0].dtype"] == ("i32", "i64")
    assert found["fields[0].length"] == (2048, 8)
    assert found["fields[1]"][1] is None
    assert found["stages[0].batch_size"] == (32, 64)
    assert found["stages[0].sources[0].weight"] == (3.0, 1.0)
    assert found["stages[0].shuffle"] == ({"buffer_rows": 64}, None)
    assert found["stages[1]"][1] is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])]),
        ({"a": 1}, {}, [("a", 1, None)]),
        ({}, {"b": {"c": 2}}, [("b", None, {"c": 2})]),
        ({"f": list(range(100))}, {"f": [*range(50), *range(51, 101)]}, [("f", [50], [100])]),
        ({"f": [*range(20)]}, {"f": [1, 0, *range(2, 20)]}, [("f[0]", 0, 1)]),
        ({"f": [1] * 20}, {"f": [1] * 21}, [("f.length", 20, 21)]),
    ],
)
def test_differences_of_documents(old, new, expected):
    """Long lists differ by what only one of them has."""
    assert differences_of(old, new) == expected
