"""`o41td inspect`: files, manifests, configs."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import o41td, o41td_in_a_process
from o41td import ConfigError, CorruptDataError, DatasetWriter
from o41td.writing.inspecting import inspect_target

pytestmark = pytest.mark.usefixtures("forked_loaders")

LENGTHS = [0, 2, 4, 4, 10]
ROWS = [{"id": i, "tokens": list(range(length))} for i, length in enumerate(LENGTHS)]


@pytest.fixture
def manifest_uri(tmp_path):
    """A data set of one shard."""
    writer = DatasetWriter(tmp_path / "set" / "m.json")
    writer.save("train", "easy", ROWS, shard_id="0")
    return writer.commit_manifest()


def test_a_manifest(manifest_uri):
    """A manifest shows its splits and stages, and how the first shard of each split is laid out."""
    record = inspect_target(manifest_uri, rows=2)
    assert record["splits"]["train"]["records"] == 5
    assert record["splits"]["train"]["curriculum"] == {"easy": [1, 5]}
    (facts,) = record["files"]
    assert facts["rows"] == [{"id": 0, "tokens": []}, {"id": 1, "tokens": [0, 1]}]
    tokens = next(column for column in facts["layout"]["columns"] if column["name"] == "tokens")
    assert (tokens["packed"], tokens["encodings"]) == ("u8", ["PLAIN", "RLE"])
    assert facts["layout"]["row_group_rows"] == [5, 5, 5]


def test_a_config_on_the_command_line(manifest_uri, tmp_path):
    """A config shows the rows as delivered, with padding and cuts told and drawn."""
    config = {
        "fields": [{"name": "t", "source": "tokens", "dtype": "i32", "length": 4, "pad": -1}],
        "stages": [{"sources": [{"manifest_uri": manifest_uri, "split": "train", "name": "web"}], "batch_size": 2}],
    }
    path, picture = tmp_path / "c.json", tmp_path / "lengths.png"
    path.write_text(json.dumps(config))
    (facts,) = inspect_target(str(path), rows=3)["files"]
    assert facts["source"] == "web"
    assert facts["rows"] == [{"t": [-1] * 4}, {"t": [0, 1, -1, -1]}, {"t": [0, 1, 2, 3]}]
    lists = facts["lists"]["tokens"]
    assert sum(lists["counts"]) == 5
    assert (lists["least"], lists["median"], lists["most"]) == (0, 4, 10)
    assert round(lists["padding"], 9) == 0.3  # 6 of 20
    assert round(lists["cut"], 9) == 0.3  # 6 of 20
    shown = o41td_in_a_process("inspect", path, "--plot", picture)
    assert shown.code == 0, shown.err
    assert "30.0 % padding, 30.0 % of values cut" in shown.out
    assert f"drawnin{picture}" in "".join(shown.out.split())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_files_of_other_formats_and_bad_ones(tmp_path, parquet_testing):
    """A file of any input format is shown; damaged and encrypted ones are an error by name, never a crash."""
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (facts,) = inspect_target(str(lines), rows=1)["files"]
    assert (facts["format"], facts["layout"], facts["sampled_rows"]) == ("jsonl", None, 5)
    assert facts["columns"] == [["id", "int64"], ["tokens", "list<item: int64>"]]
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "b.parquet").read_bytes()[:-6])
    encrypted = tmp_path / "e.parquet"
    name = "encrypt_columns_plaintext_footer.parquet.encrypted"
    encrypted.write_bytes((parquet_testing / "data" / name).read_bytes())
    for path in (cut, encrypted):
        with pytest.raises(CorruptDataError, match=path.name):
            inspect_target(str(path), rows=1)


def test_a_file_without_rows(tmp_path):
    """It has none, and no columns, whatever number of rows is asked for; CSV has a header at least."""
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "none.csv").touch()
    done = o41td("inspect", tmp_path / "none.jsonl")
    assert (done.code, done.out.split("\n")[2:]) == (0, ["jsonl, 0 B, no rows", ""])
    done = o41td("inspect", tmp_path / "none.csv")
    assert done.code == 2
    assert "the file is empty, and CSV begins with a header" in done.err


def test_a_file_whose_suffix_does_not_tell(tmp_path):
    """Its format can be given, as to `write`; also that of lines whose name is a config's."""
    for name in ("a.txt", "a.json"):
        (tmp_path / name).write_text('{"x": 1}\n{"x": 2}\n')
        shown = o41td("inspect", tmp_path / name, "--format", "jsonl", "--json")
        assert shown.code == 0, shown.err
        assert json.loads(shown.out)["files"][0]["rows"] == [{"x": 1}, {"x": 2}]


def test_what_to_do_is_said_once(tmp_path):
    """A file that is cut short is named once, with one remedy, though a process of its own has read it."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "a.parquet").read_bytes()[:-6])
    with pytest.raises(CorruptDataError) as refused:
        inspect_target(str(cut), rows=1)
    told = str(refused.value)
    assert (told.count("Replace the "), told.count(str(cut))) == (1, 1)


def test_what_cannot_be_inspected(tmp_path):
    """An object in a store, and a checkpoint, are told apart from files that are not there."""
    with pytest.raises(ConfigError, match="only local files are read here"):
        inspect_target("s3://bucket/a.parquet", rows=1)
    checkpoint = tmp_path / "c.json"
    checkpoint.write_text('{"format": "o41td-checkpoint", "cursor": [[0, 1]]}')
    with pytest.raises(ConfigError, match="this is a checkpoint, which holds no rows"):
        inspect_target(str(checkpoint), rows=1)
