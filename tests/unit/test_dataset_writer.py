"""Saving shards and publishing a manifest, in one process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import DatasetConflictError, DatasetWriter, StorageError
from o41td.errors import ConfigError, SchemaError, ValueRefusedError
from o41td.manifest import read_manifest
from o41td.writing.packed_lists import unpacked
from o41td.writing.row_spool import RowSpool

ROWS = [{"id": i, "tokens": list(range(i)), "score": i / 2} for i in range(5)]


@pytest.fixture
def writer(tmp_path):
    """A writer of an empty data set."""
    return DatasetWriter(tmp_path / "set" / "data-manifest-v1.json")


def rows_of(path):
    """A shard's rows, packed lists unpacked."""
    return [row for batch in pq.ParquetFile(path).iter_batches() for row in unpacked(batch).to_pylist()]


def test_a_shard_holds_its_records(writer, tmp_path):
    """What was saved is what the shard holds, and the returned facts are its own."""
    shard = writer.save("train", "easy", ROWS, shard_id="00000")
    path = tmp_path / "set" / shard.uri
    assert rows_of(path) == ROWS
    assert (shard.records, shard.row_groups, shard.size_bytes) == (5, (5,), path.stat().st_size)
    assert path.parent.name == "train"
    assert path.name.startswith("00000-")


def test_a_finished_shard_is_passed_over(writer):
    """Saving a shard that is finished does not begin its records, and gives what the first save gave."""
    first = writer.save("train", None, ROWS, shard_id="a")

    def untouched():
        raise AssertionError("nobody looks at these")
        yield {}

    assert writer.save("train", None, untouched(), shard_id="a") == first


def test_records_may_come_in_any_form(writer, tmp_path):
    """Dicts, tables, record batches and mixes of them make the same shard, byte for byte."""
    table = pa.Table.from_pylist(ROWS)
    forms = [iter(ROWS), table, table.to_batches()[0], [table.slice(0, 2), *ROWS[2:]], table.to_reader()]
    digests = {writer.save("train", None, form, shard_id=str(place)).sha256 for place, form in enumerate(forms)}
    assert len(digests) == 1


def test_packed_tables_are_taken_for_the_lists_they_hold(writer, tmp_path):
    """Tables of shards that pack different dtypes, which are of one type to Arrow, give the rows that were saved."""
    rows = [[{"x": [1, 2], "m": [True]}], [{"x": [100_000, -2], "m": []}]]
    shards = [writer.save("train", None, some, shard_id=str(place)) for place, some in enumerate(rows)]
    tables = [pq.read_table(tmp_path / "set" / shard.uri) for shard in shards]
    both = writer.save("train", None, tables, shard_id="both")
    assert rows_of(tmp_path / "set" / both.uri) == [*rows[0], *rows[1]]


def test_keys_may_be_missing_and_types_may_widen(writer, tmp_path):
    """A key that some records lack is null there, empty lists take the type of others, whole numbers become floats."""
    records = [{"a": 1, "x": []}] * 1500 + [{"b": 2.5, "x": [7], "a": 0.5}]
    shard = writer.save("train", None, records, shard_id="a")
    rows = rows_of(tmp_path / "set" / shard.uri)
    assert rows[0] == {"a": 1.0, "x": [], "b": None}
    assert rows[-1] == {"a": 0.5, "x": [7], "b": 2.5}


def test_types_that_do_not_agree_are_refused(writer, tmp_path):
    """A column of text and numbers is refused by name, and so is an integer that no float holds; nothing is left."""
    with pytest.raises(SchemaError, match="x"):
        writer.save("train", None, [{"x": 1}, {"x": "one"}], shard_id="a")
    with pytest.raises(SchemaError, match="x"):
        writer.save("train", None, [{"x": 2**53 + 1}] * 1024 + [{"x": 0.5}], shard_id="a")
    assert [path for path in (tmp_path / "set").rglob("*") if path.is_file()] == []


def test_an_error_of_the_users_own_passes_through(writer, tmp_path):
    """What the iterable of records raises reaches the caller as it is, and no draft is left."""

    def failing():
        yield ROWS[0]
        raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match="mine") as caught:
        writer.save("train", None, failing(), shard_id="a")
    assert not isinstance(caught.value, StorageError)
    assert [path for path in (tmp_path / "set").rglob("*") if path.is_file()] == []


def test_a_manifest_of_splits_and_stages(writer, tmp_path):
    """The manifest lists shards by id, stages as saved or as registered, and reads back through the reader."""
    for place, stage in enumerate(["easy", "hard", "easy"]):
        writer.save("train", stage, ROWS[: place + 1], shard_id=f"{place}")
    writer.save("validation", None, ROWS, shard_id="0")
    writer.register_curriculum("train", "final", ["2", "0"], metadata={"why": "last"})
    writer.register_split_order("train", ["2", "1", "0"])
    manifest = read_manifest(writer.commit_manifest())
    train = manifest.splits["train"]
    assert [shard.records for shard in train.shards] == [3, 2, 1]
    assert {name: [shard.records for shard in stage.shards] for name, stage in train.curriculum.items()} == {
        "easy": [3, 1],
        "hard": [2],
        "final": [3, 1],
    }
    assert train.curriculum["final"].metadata == {"why": "last"}
    assert [shard.row_groups for shard in manifest.shards_of("validation")] == [(5,)]


def test_committing_twice(writer):
    """Committing the same twice changes nothing; committing something else under the name is a conflict."""
    writer.save("train", None, ROWS, shard_id="0")
    uri = writer.commit_manifest()
    before = Path(uri).read_bytes()
    assert writer.commit_manifest() == uri
    writer.save("train", None, ROWS, shard_id="1")
    with pytest.raises(DatasetConflictError, match="another one"):
        writer.commit_manifest()
    assert Path(uri).read_bytes() == before


def test_registrations_that_contradict(writer):
    """Registering the same twice is nothing; otherwise, or of shards that are not there, is refused."""
    writer.save("train", "easy", ROWS, shard_id="0")
    writer.register_split_order("train", ["0"])
    writer.register_split_order("train", ["0"])
    with pytest.raises(DatasetConflictError):
        writer.register_split_order("train", ["0", "1"])
    with pytest.raises(DatasetConflictError, match="stage 'easy', not 'hard'"):
        writer.save("train", "hard", ROWS, shard_id="0")
    writer.register_curriculum("train", "hard", ["7"])
    with pytest.raises(ConfigError, match="'7', which is not finished"):
        writer.commit_manifest()


def test_an_order_must_name_every_shard(writer):
    """A registered order that leaves a finished shard out is refused when the manifest is built."""
    writer.save("train", None, ROWS, shard_id="0")
    writer.save("train", None, ROWS, shard_id="1")
    writer.register_split_order("train", ["1"])
    with pytest.raises(ConfigError, match="leaves out '0'"):
        writer.build_manifest()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "_under", "a b", "x" * 201])
def test_names_that_are_no_file_names(writer, name):
    """Ids that could leave the folder, or that listings pass over, are refused."""
    with pytest.raises(ConfigError, match="no good name"):
        writer.save("train", None, ROWS, shard_id=name)


def test_an_empty_shard_is_refused(writer):
    """A shard without records is refused, and so is a data set without shards."""
    with pytest.raises(ConfigError, match="no records"):
        writer.save("train", None, [], shard_id="0")
    with pytest.raises(ConfigError, match="nothing to publish"):
        writer.commit_manifest()


def test_recovery(writer, tmp_path):
    """A record whose shard was cut short is forgotten, a file that lost to another of its id is removed, both named."""
    kept = writer.save("train", None, ROWS, shard_id="0")
    cut = writer.save("train", None, ROWS[:2], shard_id="1")
    path = tmp_path / "set" / cut.uri
    path.write_bytes(path.read_bytes()[:-1])
    lost = tmp_path / "set" / "train" / f"0-{'0' * 16}.parquet"
    lost.write_bytes(b"of a process that ended")
    other = tmp_path / "set" / "train" / f"2-{'0' * 16}.parquet"
    other.write_bytes(b"somebody may be about to finish this one")
    recovery = writer.recover()
    assert [shard.shard_id for shard in recovery.shards] == ["0"]
    assert recovery.forgotten == ("_o41td/shards/train/1.json",)
    assert recovery.removed == (f"train/{lost.name}",)
    assert other.exists()
    assert (tmp_path / "set" / kept.uri).exists()
    again = writer.save("train", None, ROWS[:2], shard_id="1")
    assert again == cut


def test_records_in_other_encodings(tmp_path):
    """JSON lines and MessagePack shards are the same bytes for the same records; what JSON lacks is refused by name."""
    for encoding in ("jsonl.gz", "msgpack.zstf"):
        writer = DatasetWriter(tmp_path / encoding / "m.json", encoding)
        digests = {writer.save("train", None, ROWS, shard_id=name).sha256 for name in ("a", "b")}
        assert len(digests) == 1
        assert read_manifest(writer.commit_manifest()).data_format == encoding
    lines = DatasetWriter(tmp_path / "nan" / "m.json", "jsonl.gz")
    with pytest.raises(ValueRefusedError, match=r"row 1, column 'x'"):
        lines.save("train", None, [{"x": 1.0}, {"x": math.nan}], shard_id="a")


def test_a_large_shard_waits_on_disk(tmp_path):
    """Rows beyond what memory holds come back from the temporary file in order, whatever types they came in."""
    with RowSpool(tmp_path, memory_bytes=1000) as spool:
        for start in range(0, 600, 100):
            kind = pa.int64() if start < 300 else pa.float64()
            spool.add(pa.record_batch([pa.array(range(start, start + 100), kind)], ["x"]))
        tables = list(spool.tables(250))
        assert [len(table) for table in tables] == [250, 250, 100]
        values = np.concatenate([table["x"].to_numpy() for table in tables])
        assert values.tolist() == list(range(600))
        assert values.dtype == np.float64


def test_the_manifest_is_small_and_plain(writer):
    """The manifest's document has the keys of o41 manifests, version 1, and no others."""
    writer.save("train", None, ROWS, shard_id="0")
    document = json.loads(json.dumps(writer.build_manifest()))
    shard = document["splits"]["train"]["shards"][0]
    assert document["version"] == 1
    assert document["data_format"] == "parquet"
    assert set(shard) == {"uri", "records", "size_bytes", "etag", "row_groups"}
    assert not shard["uri"].startswith("/")
