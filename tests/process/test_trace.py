"""`o41td trace`: forwards from a batch to its rows, and backwards from a row to its batches; with values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import shard_writer
from command_line import o41td, o41td_on_a_terminal, toml_config
from o41td import BatchStreamConfig, Checkpoint, open_batch_stream
from o41td.outline import Outline, read_outline
from o41td.tracing import batch_of_step, trace_batch, trace_row
from o41td.verifying import compare_streams
from stream_reference import ID_ONLY, Reference

pytestmark = pytest.mark.usefixtures("forked_loaders")

EXCLUDED = [[4, 7]]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Ids 0 to 97 in three shards, and 1000 to 1040 in two, in row groups of 11 and 7 rows."""
    write = shard_writer.ShardWriter(tmp_path_factory.mktemp("shards"))
    return {
        "web": write([37, 1, 60], name="web", row_group_rows=11),
        "code": write([25, 16], name="code", first_id=1000, row_group_rows=7),
    }


@pytest.fixture(scope="module")
def path(shards: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A listed stage of 98 rows in batches of 9, batches 4 to 6 excluded, then an endless mix in batches of 4."""
    stages: list[dict[str, Any]] = [
        {"name": "listed", "batch_size": 9, "sources": [("web", shards["web"], 1.0)]},
        {
            "name": "endless", "batch_size": 4, "infinite": True, "shuffle": 12,
            "sources": [("web", shards["web"], 3.0), ("code", shards["code"], 1.0)],
        },
    ]  # fmt: skip
    return toml_config(
        tmp_path_factory.mktemp("config") / "c.toml", stages, seed=5, threads=1, lanes=2, exclude=EXCLUDED
    )


@pytest.fixture(scope="module")
def outline(path: Path) -> Outline:
    """The config's outline."""
    return read_outline(path)


@pytest.fixture(scope="module")
def checkpoint(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Behind both stages: the 8 batches that are left of the first, and 60 of the second."""
    saved = tmp_path_factory.mktemp("saved") / "saved.json"
    with open_batch_stream(BatchStreamConfig.load(path)) as stream:
        while stream.next() is not None:
            pass
        stream.advance("endless")
        stream.skip(60)
        stream.checkpoint().save(saved)
    return saved


def ids_of(record: dict[str, Any], shards: dict[str, list[Path]]) -> list[int]:
    """The ids of a traced batch's rows, read by pyarrow; each lies in the row group that is told."""
    first_id = dict(zip(map(str, shards["web"] + shards["code"]), [0, 37, 38, 1000, 1025], strict=True))
    group_rows = {"web": 11, "code": 7}
    for row in record["rows"]:
        assert divmod(row["row"], group_rows[row["source"].partition("/")[2]]) == (
            row["row_group"],
            row["row_in_group"],
        )
    return [first_id[row["shard"]] + row["row"] for row in record["rows"]]


def test_a_batch_is_traced_to_its_rows(outline, path, shards):
    """Every kind of batch: of the listed stage, excluded, and of the endless stage behind it."""
    reference = Reference(BatchStreamConfig.load(path).model_copy(update={"fields": ID_ONLY}))
    #  98 rows in two lanes of 49 are 6 batches each: 12, of which 3 are passed over; the stage's last is batch 11.
    for batch, stage, number in ((0, 0, 0), (5, 0, 5), (11, 0, 11), (12, 1, 0), (75, 1, 63)):
        record = trace_batch(outline, batch)
        assert (record["stage"], record["number"]) == (stage, number)
        assert ids_of(record, shards) == reference.ids(number, stage)
    assert trace_batch(outline, 5)["state"] == "excluded"
    assert [trace_batch(outline, batch)["step"] for batch in (0, 3, 7, 12)] == [0, 3, 4, 9]


def test_a_row_is_traced_to_its_batches(outline, checkpoint, shards):
    """Where a row is said to come, the batch has it; a checkpoint knows every time so far, excluded or not."""
    so_far = read_outline(checkpoint)
    behind = so_far.cursor.batches
    comes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for batch in range(behind):
        for row in trace_batch(outline, batch)["rows"]:
            comes.setdefault((row["shard"], row["row"]), []).append((batch, row["place"]))
    for shard, row in [(str(shards["web"][0]), 0), (str(shards["web"][2]), 59), (str(shards["code"][1]), 7)]:
        record = trace_row(so_far, shard, row)
        assert record["so_far"]
        found = [(come["batch"], come["place"]) for come in record["occurrences"]]
        assert found == comes[shard, row]
        for come in record["occurrences"]:
            assert come["state"] == ("excluded" if 4 <= come["batch"] < 7 else "delivered")
    ahead = trace_row(outline, "code/part-00001.parquet", 7, epochs=3)
    assert [come["epoch"] for come in ahead["occurrences"]] == [0, 1, 2]
    assert {come["source"] for come in ahead["occurrences"]} == {"endless/code"}


def test_steps_of_ranks_count_what_is_not_excluded(path):
    """Two ranks: rank 1's step 2 is batch 8, since 4 to 6 are passed over; tracing it tells the same step and rank."""
    two = read_outline(path, world_size=2)
    taken = [0, 1, 2, 3, 7, 8, 9, 10]
    for step in range(4):
        for rank in range(2):
            batch = batch_of_step(two, step, rank)
            assert batch == taken[2 * step + rank]
            record = trace_batch(two, batch)
            assert (record["step"], record["rank"], record["world_size"]) == (step, rank, 2)
    #  9 batches are left of the first stage: the ninth has no partner, so the second stage begins with batch 11.
    assert trace_batch(two, 11)["stage_name"] == "endless"
    assert trace_batch(two, 11)["number"] == 0
    dropped = trace_row(two, "web/part-00002.parquet", 59)["occurrences"]
    assert [(come["stage_name"], come["state"], come["batch"]) for come in dropped][-1] == ("listed", "dropped", None)


def test_values_are_shown_by_column_or_field(path, shards):
    """`--show` prints what the shards hold, whole lists in JSON."""
    done = o41td("trace", path, "--batch", "13", "--show", "id", "--show", "tokens", "--json")
    assert (done.code, done.err) == (0, "")
    record = json.loads(done.out)
    assert [row["values"]["id"] for row in record["rows"]] == ids_of(record, shards)
    for row in record["rows"]:
        table = pq.read_table(row["shard"], columns=["tokens"])
        assert row["values"]["tokens"] == table["tokens"][row["row"]].as_py()


@pytest.mark.usefixtures("forked_programs")
def test_a_person_sees_the_batch_and_the_row_in_80_columns(path, checkpoint):
    """The heading says where the batch stands, and nothing is wider than the terminal."""
    shown = o41td_on_a_terminal("trace", path, "--batch", "12", "--show", "id", env={"NO_COLOR": "1"})
    assert shown.code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.out)
    assert "batch 12: batch 0 of stage endless, lane 0; step 9; 4 rows" in text
    assert max(len(line) for part in text.splitlines() for line in part.split("\r")) <= 80
    backwards = o41td_on_a_terminal(
        "trace", checkpoint, "--shard", "web/part-00000.parquet", "--row", "3", env={"NO_COLOR": "1"}
    )
    assert backwards.code == 0
    assert "listed/web" in backwards.out
    assert "endless/web" in backwards.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "none of them is given"),
        (["--batch", "1", "--step", "1"], "--batch and --step"),
        (["--shard", "x"], "go together"),
        (["--batch", "1", "--epochs", "2"], "--epochs goes with"),
        (["--shard", "x", "--row", "1", "--show", "id"], "--show goes with"),
        (["--step", "1", "--rank", "2", "--world-size", "2"], "rank"),
        (["--shard", "part-00000.parquet", "--row", "1"], "may mean"),
        (["--shard", "gone.parquet", "--row", "1"], "is none of"),
        (["--shard", "web/part-00001.parquet", "--row", "1"], "none of the 1 rows"),
        (["--batch", "3", "--show", "colour"], "has no column 'colour'; it has id, tokens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_question_that_makes_no_sense_exits_2(path, arguments, said):
    """One line that says what does."""
    done = o41td("trace", path, *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_batch_beyond_the_end_exits_2(tmp_path, shards):
    """A finite stream of 98 rows in batches of 49 has batches 0 and 1."""
    finite = toml_config(tmp_path / "c.toml", [{"batch_size": 49, "sources": [("web", shards["web"], 1.0)]}], threads=1)
    done = o41td("trace", finite, "--batch", "2")
    assert done.code == 2
    assert "`batch`: 2, and the stages stage0 have 2 for 1 rank, from 0" in done.err


def test_a_shard_damaged_after_it_was_indexed_hurts_nothing_but_the_answer(tmp_path, write_shards):
    """The values cannot be read: exit 1 with the shard's name; without --show the trace is as before."""
    (shard,) = write_shards([20])
    config = toml_config(tmp_path / "c.toml", [{"batch_size": 4, "sources": [("a", [shard], 1.0)]}], threads=1)
    assert o41td("trace", config, "--batch", "0").code == 0
    data = bytearray(shard.read_bytes())
    data[4:600] = b"\xff" * 596
    shard.write_bytes(data)
    assert o41td("trace", config, "--batch", "0").code == 0
    done = o41td("trace", config, "--batch", "0", "--show", "id")
    assert (done.code, done.out) == (1, "")
    assert str(shard) in done.err


def test_a_checkpoint_is_the_same_stream_as_its_config(path, checkpoint, outline):
    """However far it is; and `verify` says so in a word."""
    assert compare_streams(outline, read_outline(checkpoint))["identical"]
    done = o41td("verify", path, checkpoint)
    assert (done.code, done.out, done.err) == (0, "identical\n", "")


def test_a_checkpoint_with_another_past_parts_where_the_past_does(path, checkpoint, tmp_path):
    """One that advanced after 3 batches parts at batch 3, from one that took 9 of the first stage."""
    other = tmp_path / "other.json"
    with open_batch_stream(BatchStreamConfig.load(path)) as stream:
        stream.skip(3)
        stream.advance("endless")
        stream.skip(2)
        stream.checkpoint().save(other)
    done = o41td("verify", checkpoint, other, "--json")
    assert done.code == 1
    record = json.loads(done.out)
    assert (record["first"]["batch"], record["first"]["why"]) == (3, "taken of another stage")
    assert Checkpoint.load(other).batches_yielded == 5
