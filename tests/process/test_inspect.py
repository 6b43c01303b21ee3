"""`o41td inspect`: files, manifests, configs."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq

from command_line import o41td
from o41td import DatasetWriter

LENGTHS = [0, 2, 4, 4, 10]
ROWS = [{"id": i, "tokens": list(range(length))} for i, length in enumerate(LENGTHS)]


def test_a_manifest_and_a_config(tmp_path):
    """A manifest shows splits, layout and lengths; a config shows the rows as delivered, with padding and cuts told."""
    writer = DatasetWriter(tmp_path / "set" / "m.json")
    writer.save("train", "easy", ROWS, shard_id="0")
    uri = writer.commit_manifest()
    done = o41td("inspect", uri, "--json", "--rows", "1")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["splits"]["train"]["records"] == 5
    assert record["splits"]["train"]["curriculum"] == {"easy": [1, 5]}
    (facts,) = record["files"]
    assert facts["rows"] == [{"id": 0, "tokens": []}]
    tokens = next(column for column in facts["layout"]["columns"] if column["name"] == "tokens")
    assert (tokens["packed"], tokens["encodings"]) == ("u8", ["PLAIN", "RLE"])
    assert facts["layout"]["row_group_rows"] == [5, 5, 5]
    config = {
        "fields": [{"name": "t", "source": "tokens", "dtype": "i32", "length": 4, "pad": -1}],
        "stages": [{"sources": [{"manifest_uri": uri, "split": "train", "name": "web"}], "batch_size": 2}],
    }
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    picture = tmp_path / "lengths.png"
    (facts,) = json.loads(o41td("inspect", path, "--json", "--rows", "3", "--plot", picture).out)["files"]
    assert facts["source"] == "web"
    assert facts["rows"] == [{"t": [-1] * 4}, {"t": [0, 1, -1, -1]}, {"t": [0, 1, 2, 3]}]
    lists = facts["lists"]["tokens"]
    assert sum(lists["counts"]) == 5
    assert (lists["least"], lists["median"], lists["most"]) == (0, 4, 10)
    assert round(lists["padding"], 9) == 0.3  # 6 of 20
    assert round(lists["cut"], 9) == 0.3  # 6 of 20
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = o41td("inspect", path)
    assert "30.0% padding, 30.0% of values cut" in shown.out


def test_files_of_other_formats_and_bad_ones(tmp_path, parquet_testing):
    """A file of any input format is shown; damaged and encrypted ones are an error by name, never a crash."""
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (facts,) = json.loads(o41td("inspect", lines, "--json").out)["files"]
    assert (facts["format"], facts["layout"], facts["sampled_rows"]) == ("jsonl", None, 5)
    assert facts["columns"] == [["id", "int64"], ["tokens", "list<item: int64>"]]
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "b.parquet").read_bytes()[:-6])
    encrypted = tmp_path / "e.parquet"
    name = "encrypt_columns_plaintext_footer.parquet.encrypted"
    encrypted.write_bytes((parquet_testing / "data" / name).read_bytes())
    for path in (cut, encrypted):
        done = o41td("inspect", path)
        assert done.code == 1
        assert str(path) in done.err
        assert "bug in o41td" not in done.err
