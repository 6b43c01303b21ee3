"""`o41td write`, as a function and as a command."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import command, o41td
from loader_processes import wait_until
from o41td import DatasetConflictError, DatasetWriter
from o41td.cli.failure import UsageProblem
from o41td.cli.write import write_job_of
from o41td.errors import ConfigError, O41Error
from o41td.manifest import read_manifest
from o41td.writing.conversion import WriteJob, run_write
from o41td.writing.packed_lists import unpacked

pytestmark = pytest.mark.usefixtures("forked_loaders")

NUM_ROWS = 3000


@pytest.fixture
def lines(tmp_path):
    """Two files of JSON lines with NUM_ROWS rows in all."""
    for part in range(2):
        rows = [
            {"id": i, "doc": i // 7, "tokens": [i % 1000 + k for k in range(i % 12)]}
            for i in range(part * NUM_ROWS // 2, (part + 1) * NUM_ROWS // 2)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"in-{part}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return str(tmp_path / "in-*.jsonl.gz")


def job_of(lines, to, **settings):
    """A job with small shards."""
    settings = {"splits": {"train": 1.0}, "shard_bytes": 60_000, **settings}
    return WriteJob(inputs=[lines], manifest_uri=str(to / "m.json"), **settings)


def rows_of(manifest_uri, split="train"):
    """Rows of a split in the order of its shards."""
    shards = read_manifest(manifest_uri).shards_of(split)
    batches = [batch for shard in shards for batch in pq.ParquetFile(shard.uri).iter_batches()]
    return [row for batch in batches for row in unpacked(batch).to_pylist()]


def test_rows_in_order(lines, tmp_path):
    """Without a shuffle the shards hold the rows as they were read, and the report counts them."""
    report = run_write(job_of(lines, tmp_path / "out"))
    rows = rows_of(report.manifest_uri)
    assert [row["id"] for row in rows] == list(range(NUM_ROWS))
    assert rows[25] == {"id": 25, "doc": 3, "tokens": [25]}
    assert report.rows == NUM_ROWS
    assert len(report.shards) == len(read_manifest(report.manifest_uri).shards_of("train")) > 2


def test_shuffle_and_splits(lines, tmp_path):
    """Splits share the rows out, rows of one document together; a shuffle moves them; the same job gives the same."""
    job = job_of(lines, tmp_path / "a", splits={"train": 0.8, "validation": 0.2}, split_by="doc", shuffle=True, seed=3)
    report = run_write(job)
    train, validation = rows_of(report.manifest_uri), rows_of(report.manifest_uri, "validation")
    assert sorted(row["id"] for row in train + validation) == list(range(NUM_ROWS))
    assert not {row["doc"] for row in train} & {row["doc"] for row in validation}
    assert 0.1 < len(validation) / NUM_ROWS < 0.3
    ids = [row["id"] for row in train]
    assert ids != sorted(ids)
    again = run_write(replace(job, manifest_uri=str(tmp_path / "b" / "m.json"), threads=1))
    assert [shard.sha256 for shard in again.shards] == [shard.sha256 for shard in report.shards]
    other = run_write(replace(job, manifest_uri=str(tmp_path / "c" / "m.json"), seed=4))
    assert rows_of(other.manifest_uri) != train
    assert other.digest == report.digest


def test_parquet_is_laid_out_anew(lines, tmp_path):
    """A packed data set is itself an input: unpacked, laid out otherwise, and still the same rows."""
    packed = run_write(job_of(lines, tmp_path / "packed"))
    job = job_of(str(tmp_path / "packed" / "train"), tmp_path / "lists", encoding="jsonl.gz")
    assert run_write(job).digest == packed.digest


def test_a_data_set_of_several_splits_is_no_input(lines, tmp_path):
    """Its splits would become one without a word: it is refused by their names; their folders are inputs."""
    run_write(job_of(lines, tmp_path / "set", splits={"train": 0.5, "validation": 0.5}))
    with pytest.raises(ConfigError, match="several splits, train, validation"):
        run_write(job_of(str(tmp_path / "set"), tmp_path / "out"))
    run_write(job_of(str(tmp_path / "set" / "train"), tmp_path / "out"))


def test_the_output_is_no_input(lines, tmp_path):
    """A data set below the folder that it is made of can be gone on with; in the folder itself it is refused."""
    inside = job_of(str(Path(lines).parent), tmp_path / "out", encoding="jsonl.gz")
    first = run_write(inside)
    again = run_write(inside)
    assert (again.rows, again.reused) == (NUM_ROWS, len(first.shards))
    with pytest.raises(ConfigError, match="is an input, and where the data set goes"):
        run_write(job_of(str(tmp_path), tmp_path))


def test_only_some_columns(lines, tmp_path):
    """Columns that are named are kept, in that order; one that is not there is refused."""
    report = run_write(job_of(lines, tmp_path / "out", columns=["tokens", "id"]))
    assert list(rows_of(report.manifest_uri)[0]) == ["tokens", "id"]
    with pytest.raises(ConfigError, match="no column 'nope'; there are id, doc, tokens"):
        run_write(job_of(lines, tmp_path / "other", columns=["nope"]))


def test_another_job_is_refused(lines, tmp_path):
    """A folder that was begun with other settings or inputs is left as it is; the error, code 2, says what differs."""
    run_write(job_of(lines, tmp_path / "out"))
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*"))
    with pytest.raises(DatasetConflictError, match="other seed, shuffle"):
        run_write(job_of(lines, tmp_path / "out", shuffle=True, seed=1))
    Path(tmp_path / "in-0.jsonl.gz").write_bytes(gzip.compress(b'{"id": 1}\n'))
    with pytest.raises(DatasetConflictError, match="other inputs"):
        run_write(job_of(lines, tmp_path / "out"))
    typed = o41td("write", lines, "--to", tmp_path / "out" / "m.json")
    assert (typed.code, typed.out) == (2, "")
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")) == before


def test_a_job_that_failed_before_its_first_shard_claims_nothing(lines, tmp_path):
    """What was wrong is put right, and the same folder taken: nothing in it was made of the former settings."""
    with pytest.raises(ConfigError, match="no column 'nope'"):
        run_write(job_of(lines, tmp_path / "out", columns=["nope"]))
    assert not (tmp_path / "out").exists()
    run_write(job_of(lines, tmp_path / "out", columns=["id"]))


def test_a_job_that_comes_to_nothing_leaves_no_folder_that_it_made(lines, tmp_path):
    """Of a/b/out, made for it, nothing stays; of a folder that was there, with what it holds, all does."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": 1}\n{"id": ')
    found = tmp_path / "found"
    (found / "train").mkdir(parents=True)
    for to in (tmp_path / "a" / "b" / "out", found):
        for arguments in (("write", bad), ("write", bad, "--shuffle"), ("pack", bad, "--length", "4")):
            assert o41td(*arguments, "--to", to).code != 0
            assert not (tmp_path / "a").exists()
            assert [path.name for path in found.rglob("*")] == ["train"]


def test_a_job_that_is_asked_to_end_leaves_nothing_unfinished(tmp_path):
    """SIGTERM before the first shard is finished: one line, 143, and neither a claim nor a folder stays."""
    rows = pa.table({"tokens": pa.array([list(range(50))] * 200_000, pa.list_(pa.int32()))})
    pq.write_table(rows, tmp_path / "in.parquet", row_group_size=5000)
    words = command("write", tmp_path / "in.parquet", "--to", tmp_path / "a" / "out")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "a" / "out" / "_o41td" / "job.json").exists, "the folder is claimed")
        process.terminate()
        out, err = process.communicate(timeout=110)
    assert (process.returncode, out, err.splitlines()[-1:]) == (143, "", ["Terminated."])
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_inputs_without_rows_are_told_and_claim_nothing(tmp_path):
    """Of files without a row, or rows without a token, no data set is made: exit 2, in words about the inputs."""
    (tmp_path / "none.jsonl").touch()
    pq.write_table(pa.table({"tokens": pa.array([[], []], pa.list_(pa.int32()))}), tmp_path / "empty.parquet")
    for arguments, said in (
        (("write", tmp_path / "none.jsonl"), "the inputs have no rows"),
        (("pack", tmp_path / "none.jsonl", "--length", "4"), "the inputs have no tokens"),
        (("pack", tmp_path / "empty.parquet", "--length", "4"), "the inputs have no tokens"),
    ):
        done = o41td(*arguments, "--to", tmp_path / "out")
        assert (done.code, done.out) == (2, "")
        assert said in done.err
        assert not (tmp_path / "out").exists()


def test_a_shard_that_could_not_be_saved_leaves_no_folder(tmp_path):
    """Also where a program saves shards one by one; what an earlier shard lies in stays."""
    writer = DatasetWriter(tmp_path / "new" / "m.json")
    for records in ([], [{"id": 1}, 7]):
        with pytest.raises(O41Error):
            writer.save("train", None, records, shard_id="one")
        assert list(tmp_path.iterdir()) == []
    writer.save("train", None, [{"id": 1}], shard_id="one")
    before = sorted((tmp_path / "new").rglob("*"))
    with pytest.raises(O41Error):
        writer.save("train", None, [], shard_id="two")
    assert sorted((tmp_path / "new").rglob("*")) == before


def test_shares_that_do_not_add_up(lines, tmp_path):
    """Splits whose shares do not add up to 1 are refused before anything is read."""
    with pytest.raises(ConfigError, match="add up to 1"):
        job_of(lines, tmp_path, splits={"train": 0.9, "validation": 0.2})


KILLED = """
import os, signal, sys
from o41td.writing.conversion import WriteJob, run_write
def on_progress(at):
    if at.shards == 3:
        os.kill(os.getpid(), signal.SIGKILL)
job = WriteJob(inputs=[sys.argv[1]], manifest_uri=sys.argv[2], splits={"train": 1.0}, shard_bytes=60_000)
run_write(job, on_progress=on_progress)
"""


def test_a_killed_job_goes_on(lines, tmp_path):
    """A job killed with no manifest, run again, passes over what is finished, and ends as if never killed."""
    killed = tmp_path / "killed"
    command = [sys.executable, "-P", "-c", KILLED, lines, str(killed / "m.json")]
    assert subprocess.run(command, timeout=120).returncode == -9
    assert not (killed / "m.json").exists()
    resumed = run_write(job_of(lines, killed))
    whole = run_write(job_of(lines, tmp_path / "whole"))
    assert resumed.reused >= 3
    assert [shard.sha256 for shard in resumed.shards] == [shard.sha256 for shard in whole.shards]
    assert (killed / "m.json").read_bytes() == (tmp_path / "whole" / "m.json").read_bytes()
    assert sorted(path.name for path in killed.iterdir()) == ["_o41td", "m.json", "train"]


def test_the_command(lines, tmp_path):
    """The command writes, and reports in JSON what it wrote."""
    done = o41td("write", lines, "--to", tmp_path / "out", "--shard-size", "60KB", "--fast", "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["rows"] == NUM_ROWS
    assert record["splits"]["train"]["rows"] == NUM_ROWS
    assert record["reused_shards"] == 0
    assert len(read_manifest(record["manifest"]).splits["train"].shards) == record["shards"]


@pytest.mark.parametrize(
    "wrong",
    [{"splits": ["train"]}, {"splits": ["a=0.5", "a=0.5"]}, {"layout": "best"}, {"shard_size": "much"}],
    ids=str,
)
def test_arguments_that_make_no_sense(wrong):
    """Splits without shares or named twice, unknown layouts and sizes are refused before anything is read."""
    settings = {"splits": None, "layout": "fast", "shard_size": "1MB", "row_group_size": None, **wrong}
    with pytest.raises((UsageProblem, ConfigError)):
        write_job_of(["in.jsonl"], "out", **settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--split-by", "nope"], "there is no column 'nope'; there are"),
        (["--split-by", "nope", "--split", "a=0.5", "--split", "b=0.5"], "there is no column 'nope'; there are"),
        (["--format", "nope"], "'nope' is no format; give one of parquet, arrow, csv"),
        (["--encoding", "node"], "'node' is no encoding; give one of parquet, jsonl.gz, msgpack.zstf."),
        (["--layout", "lists", "--fast"], "--fast is --layout fast, and --layout lists is given"),
        (["--to", "a.txt"], "--to a.txt: this is a file; name a folder, or a manifest that ends in .json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_that_make_no_sense(lines, tmp_path, arguments, said):
    """What was typed wrong is told in one line, and no data set comes of it."""
    (tmp_path / "a.txt").write_text("a file")
    to = [] if "--to" in arguments else ["--to", "out"]
    done = o41td("write", lines, *to, *arguments, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.glob("out/**/*.*"))


def test_splits_go_by_a_column_that_is_not_kept(lines, tmp_path):
    """The column that decides a row's split need not be written."""
    halves = {"a": 0.5, "b": 0.5}
    run_write(job_of(lines, tmp_path / "all", splits=halves, split_by="id"))
    run_write(job_of(lines, tmp_path / "kept", splits=halves, split_by="id", columns=["tokens"]))
    whole, kept = (rows_of(str(tmp_path / name / "m.json"), "a") for name in ("all", "kept"))
    assert 0 < len(whole) < NUM_ROWS
    assert kept == [{"tokens": row["tokens"]} for row in whole]
