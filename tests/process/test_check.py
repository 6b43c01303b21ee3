"""`o41td check` over real shards: good ones, and such as a stream could not read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shard_writer
from command_line import o41td, toml_config
from record_writer import write_lines

pytestmark = pytest.mark.usefixtures("forked_loaders")


def check(config: Path) -> tuple[int, dict]:
    """The exit code, and what `--json` says."""
    done = o41td("check", config, "--json")
    assert done.err == ""
    return done.code, json.loads(done.out)


def config_of(tmp_path: Path, paths: list[Path], **keys: object) -> Path:
    """A config of these shards."""
    return toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", paths, 1.0)]}], **keys)


def found(record: dict, name: str) -> dict:
    """The one probe of this name."""
    (probe,) = [probe for probe in record["probes"] if probe["name"] == name]
    return probe


def test_good_shards(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """Row i has i mod 8 + 1 of 8 tokens, so 3.5 / 8 of whole eights is padding; nothing fails, and it exits 0."""
    code, record = check(config_of(tmp_path, write_shards([64, 32])))
    assert (code, record["state"]) == (0, "warn")
    assert found(record, "padding of tokens")["found"] == "44 % of its values"
    assert found(record, "page checksums")["state"] == "warn"
    assert record["bound_bytes"] > 0
    assert record["first_batch_s"] > 0


def test_a_value_that_does_not_fit(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """A token beyond 32 bits would end the stream: exit 1, with shard and row; where it is replaced, a warning."""
    (path,) = write_shards([20])
    table = pq.read_table(path)
    tokens = [[1]] * 13 + [[2**40]] + [[1]] * 6
    pq.write_table(table.set_column(1, "tokens", pa.array(tokens, pa.list_(pa.int64()))), path)
    code, record = check(config_of(tmp_path, [path]))
    probe = found(record, "values")
    assert (code, probe["state"]) == (1, "fail")
    assert probe["found"].startswith("1 of 20 sampled rows")
    assert "row 13" in probe["found"]


def test_records_that_cannot_be_had_are_counted(tmp_path: Path) -> None:
    """Of ten records one is null, two are text and one is no JSON: four do not fit, and the first is told."""
    lines = [b'{"id": %d}' % number for number in range(10)]
    lines[3], lines[5], lines[6], lines[8] = b'{"id": null}', b'{"id": "x"}', b'{"id": "y"}', b'{"id": '
    path = write_lines(tmp_path / "a.jsonl.gz", b"\n".join(lines))
    config = tmp_path / "c.json"
    stages = [{"batch_size": 2, "sources": [{"files": [str(path)]}]}]
    config.write_text(json.dumps({"fields": [{"name": "id", "dtype": "i64"}], "stages": stages}))
    code, record = check(config)
    probe = found(record, "values")
    assert (code, probe["state"]) == (1, "fail")
    assert probe["found"].startswith("4 of 10 sampled rows do not fit the fields; the first: the value is null")
    assert "row 3" in probe["found"]


def test_a_damaged_page(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """It is read in a process of its own, named, and the other samples are read all the same."""
    first, second = write_shards([16, 16])
    shard_writer.damage_row_group(first, 0)
    code, record = check(config_of(tmp_path, [first, second]))
    assert (code, found(record, "readable")["state"]) == (1, "fail")
    assert str(first) in found(record, "readable")["found"]
    assert found(record, "footers and schemas")["found"] == "2 shards of 1 source, all with the fields"
    assert found(record, "values")["found"] == "0 of 16 sampled rows do not fit the fields"


def test_a_schema_that_drifts(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """A shard without a field's column is a failed probe that names it."""
    first, second = write_shards([16, 16])
    pq.write_table(pq.read_table(second).drop_columns(["score"]), second)
    code, record = check(config_of(tmp_path, [first, second]))
    assert (code, record["state"]) == (1, "fail")
    assert str(second) in found(record, "footers and schemas")["found"]


def test_a_bound_above_the_limit(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """It fails here as it would at open, and the other probes are told too."""
    code, record = check(config_of(tmp_path, write_shards([16]), memory_limit_bytes=1 << 20))
    assert (code, found(record, "memory")["state"]) == (1, "fail")
    assert found(record, "values")["state"] == "ok"


def test_for_a_person(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """A table with advice; a wrong config is a wrong argument."""
    done = o41td("check", config_of(tmp_path, write_shards([16])))
    assert (done.code, done.err) == (0, "")
    assert "→" in done.out
    assert "first batch after about" in done.out
    assert o41td("check", tmp_path / "none.toml").code == 2


def test_index_shows_each_shard(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """Rows, row groups of 16 rows and bytes of each shard, one of none in a shard without rows."""
    paths = write_shards([40, 0, 16])
    done = o41td("index", config_of(tmp_path, paths), "--json")
    assert (done.code, done.err) == (0, "")
    (source,) = json.loads(done.out)
    assert (source["rows"], source["row_groups"]) == (56, 5)
    assert [(shard["rows"], shard["row_groups"]) for shard in source["shards"]] == [(40, 3), (0, 1), (16, 1)]
    assert [shard["bytes"] for shard in source["shards"]] == [path.stat().st_size for path in paths]
    assert all(shard["version"] for shard in source["shards"])


def test_index_looks_again_at_a_file_that_changed(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """Rewritten, grown, or replaced by another of the same size and time: what the cache had of it counts no more."""
    (path,) = write_shards([40], compression="none")
    (other,) = write_shards([40], compression="none", name="other", first_id=40)
    config = config_of(tmp_path, [path])

    def indexed() -> tuple[int, str]:
        (source,) = json.loads(o41td("index", config, "--json").out)
        return source["rows"], source["shards"][0]["version"]

    first = indexed()
    assert first[0] == 40
    assert indexed() == first
    before = path.stat()
    assert other.stat().st_size == before.st_size
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    assert indexed()[1] != first[1]
    write_shards([56])
    assert indexed()[0] == 56


def test_index_of_packed_lists(tmp_path: Path) -> None:
    """Lists that `write` has packed are told as lists, though one shard packs them in a byte and one in two."""
    for number, value in enumerate((7, 700)):
        pq.write_table(
            pa.table({"tokens": [[value] * 8] * 20, "mask": [[True] * 8] * 20}), tmp_path / f"{number}.parquet"
        )
        done = o41td("write", tmp_path / f"{number}.parquet", "--to", tmp_path / "out" / str(number), "--fast")
        assert done.code == 0, done.err
    (record,) = json.loads(o41td("index", tmp_path / "out" / "*" / "train" / "*.parquet", "--json").out)
    assert record["columns"] == [
        {"name": "tokens", "type": "list of integers, packed", "shards": 2},
        {"name": "mask", "type": "list of bools, packed", "shards": 2},
    ]


def test_index_of_bare_files(tmp_path: Path, write_shards: shard_writer.ShardWriter) -> None:
    """A folder without a config: rows of each shard, columns and where they differ; a damaged shard is told beside."""
    good = write_shards([40, 16])
    pq.write_table(pa.table({"id": [1], "label": [0.5]}), good[0].parent / "part-9.parquet")
    done = o41td("index", good[0].parent, "--json")
    assert (done.code, done.err) == (0, "")
    (record,) = json.loads(done.out)
    assert (record["rows"], record["row_groups"], record["encoding"]) == (57, 5, "parquet")
    assert [(shard["rows"], shard["bytes"]) for shard in record["shards"]][:2] == [
        (40, good[0].stat().st_size),
        (16, good[1].stat().st_size),
    ]
    assert {(column["name"], column["type"]): column["shards"] for column in record["columns"]} == {
        ("id", "int64"): 3,
        ("tokens", "list<element: int32>"): 2,
        ("score", "double"): 2,
        ("flag", "bool"): 2,
        ("label", "double"): 1,
    }
    good[1].write_bytes(b"no Parquet" * 9)
    done = o41td("index", *good)
    assert done.code == 1
    assert "no readable Parquet file" in done.out.replace("\n", " ")
    assert "tokens" in done.out
    done = o41td("index", *good, "--storage", tmp_path / "storage.toml")
    assert (done.code, done.out) == (2, "")
    assert "--storage goes with a config or a checkpoint; bare files are local ones" in " ".join(done.err.split())
