"""`on_bad_data="replace"`: other rows of the source stand in for those that cannot be had, the same for everyone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import BadDataBudgetError, FileSource, ProjectedField, resume_batch_stream
from shard_writer import damage_row_group
from stream_reference import ID_ONLY, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def _lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def damaged(write_shards):
    """Three shards of 64 rows in row groups of 16; rows 32 to 47 of the second (ids 96 to 111) cannot be read."""
    paths = write_shards([64, 64, 64])
    damage_row_group(paths[1], 2)
    return paths


def test_a_bad_row_group_is_replaced_alike_for_every_rank_and_block_size(damaged, open_stream, tmp_path):
    """Batches and digest stay; the bad ids do not come, but good ones in their places, the same ones always."""
    stage = stage_of(damaged, buffer_rows=32)
    options = {"fields": ID_ONLY, "lanes": 2, "on_bad_data": "replace", "bad_data_budget": 0.1}
    config = stream_config(stage, quarantine_file=str(tmp_path / "bad.jsonl"), **options)
    stream = open_stream(config)
    batches = list(stream)
    planned = [[(shard, row) for _, shard, row in batch.coordinates().tolist()] for batch in batches]
    ids = [batch["id"].tolist() for batch in batches]
    assert [len(batch) for batch in ids] == [8] * 24
    replaced = []
    for places, got in zip(planned, ids, strict=True):
        for (shard, row), row_id in zip(places, got, strict=True):
            if shard == 1 and 32 <= row < 48:
                replaced.append(row_id)
            else:
                assert row_id == 64 * shard + row
    assert len(replaced) == 16
    assert not set(replaced) & set(range(96, 112))
    assert len(set(replaced)) == 16, "neighbours have neighbouring stand-ins"
    assert stream.stats()["bad_rows"] == 16
    other = open_stream(stream_config(stage, quarantine_file=str(tmp_path / "x"), block_rows=7, threads=2, **options))
    assert [batch["id"].tolist() for batch in other] == ids
    ranks = [
        open_stream(stream_config(stage, quarantine_file=str(tmp_path / "y"), **options), rank=rank, world_size=2)
        for rank in range(2)
    ]
    for rank, of_rank in enumerate(ranks):
        assert [batch["id"].tolist() for batch in of_rank] == ids[rank::2]
    total = sum(of_rank.order_digest for of_rank in ranks) % 2**64
    assert other.order_digest == stream.order_digest == total
    (line,) = _lines_of(tmp_path / "bad.jsonl")
    assert (line["shard"], line["row_group"], line["rows"]) == (str(damaged[1]), 2, [[32, 48]])
    assert (line["num_rows"], line["error"], line["source"]) == (16, "CorruptDataError", "stage0/source0")
    assert str(damaged[1]) in line["why"]
    assert len(_lines_of(tmp_path / "y")) >= 1


def test_a_resume_and_a_later_epoch_replace_alike(damaged, open_stream, tmp_path):
    """A stream resumed in the middle goes on as the first did; the second epoch names no row twice."""
    config = stream_config(
        stage_of(damaged, batch_size=16, buffer_rows=32, infinite=True),
        fields=ID_ONLY,
        block_rows=16,
        on_bad_data="replace",
        bad_data_budget=0.2,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    stream = open_stream(config)
    first = [stream.next()["id"].tolist() for _ in range(7)]
    checkpoint = stream.checkpoint()
    rest = [stream.next()["id"].tolist() for _ in range(30)]
    assert not {row_id for batch in first + rest for row_id in batch} & set(range(96, 112))
    with resume_batch_stream(checkpoint) as resumed:
        assert [resumed.next()["id"].tolist() for _ in range(30)] == rest
    assert [line["num_rows"] for line in _lines_of(tmp_path / "bad.jsonl")] == [16, 16]  # one of each stream


def test_of_values_that_do_not_fit_only_their_rows_are_replaced(tmp_path, open_stream, caplog):
    """Rows 21 and 37 hold 2^31, row 22 a null: the others of their row groups arrive as they are."""
    values = [row if row not in (21, 22, 37) else None if row == 22 else 2**31 for row in range(64)]
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), tmp_path / "a.parquet", row_group_size=16)
    config = stream_config(
        stage_of([tmp_path / "a.parquet"]),
        fields=[ProjectedField(name="id", dtype="i32")],
        on_bad_data="replace",
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    ids = ids_of(list(open_stream(config)))
    assert [row for row, row_id in enumerate(ids) if row_id != row] == [21, 22, 37]
    assert not {2**31, 21, 22, 37} & {ids[row] for row in (21, 22, 37)}
    told = sorted((line["row_group"], tuple(map(tuple, line["rows"]))) for line in _lines_of(tmp_path / "bad.jsonl"))
    assert told == [(1, ((21, 23),)), (2, ((37, 38),))]
    assert "2 rows are replaced by others of their source" in caplog.text
    assert "1 row is replaced by another of its source" in caplog.text


def test_of_many_bad_row_groups_the_log_tells_twenty(tmp_path, open_stream, caplog):
    """Row 0 of each of 23 row groups does not fit: all are in the file, and the last warning says where the rest is."""
    values = [2**31 if row % 16 == 0 else row for row in range(23 * 16)]
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), tmp_path / "a.parquet", row_group_size=16)
    config = stream_config(
        stage_of([tmp_path / "a.parquet"]),
        fields=[ProjectedField(name="id", dtype="i32")],
        on_bad_data="replace",
        bad_data_budget=0.1,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    assert len(ids_of(list(open_stream(config)))) == 23 * 16
    assert sum(line["num_rows"] for line in _lines_of(tmp_path / "bad.jsonl")) == 23
    warnings = [record.getMessage() for record in caplog.records if "replaced" in record.getMessage()]
    assert len(warnings) == 20
    assert [str(tmp_path / "bad.jsonl") in warning for warning in warnings] == [False] * 19 + [True]


def test_a_bad_line_of_a_shard_of_records_is_replaced_alone(tmp_path, open_stream):
    """Lines 0 and 5 are no JSON and line 9 lacks the key: three rows are replaced, and all others are there."""
    lines = [json.dumps({"id": row}) for row in range(40)]
    lines[0], lines[5], lines[9] = "[]", "{broken", "{}"
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    config = stream_config(
        stage_of(FileSource(files=[str(path)])),
        fields=ID_ONLY,
        on_bad_data="replace",
        bad_data_budget=0.1,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    ids = ids_of(list(open_stream(config)))
    assert [row for row, row_id in enumerate(ids) if row_id != row] == [0, 5, 9]
    assert {ids[0], ids[5], ids[9]} <= set(range(40)) - {0, 5, 9}


@pytest.mark.parametrize("block_rows", [7, 240])
def test_many_bad_lines_cost_none_of_the_good_ones(tmp_path, open_stream, block_rows):
    """Every fourth of 240 lines is no record or lacks the key: those alone are replaced, whatever a block holds."""
    lines = [json.dumps({"id": row}) if row % 4 < 3 else "{broken" if row % 8 == 3 else "{}" for row in range(240)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    config = stream_config(
        stage_of(FileSource(files=[str(path)])),
        fields=ID_ONLY,
        block_rows=block_rows,
        on_bad_data="replace",
        bad_data_budget=0.25,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    stream = open_stream(config)
    ids = ids_of(list(stream))
    assert [row for row, row_id in enumerate(ids) if row_id != row] == list(range(3, 240, 4))
    assert all(row_id % 4 < 3 for row_id in ids)
    assert stream.stats()["bad_rows"] == 60


def test_more_bad_rows_than_the_budget_end_the_stream(damaged, open_stream, tmp_path):
    """16 of 192 rows are more than a twentieth: what comes before them arrives, then an error that says so."""
    config = stream_config(
        stage_of(damaged),
        fields=ID_ONLY,
        on_bad_data="replace",
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    stream = open_stream(config)
    assert ids_of([stream.next() for _ in range(12)]) == list(range(96))
    with pytest.raises(BadDataBudgetError, match="16 of the 192 rows") as caught:
        stream.next()
    assert caught.value.source == "stage0/source0"
    assert "bad_data_budget" in str(caught.value)
    with pytest.raises(BadDataBudgetError):
        stream.next()


def test_the_reason_told_is_the_one_that_exceeded_the_budget(tmp_path, open_stream):
    """One of 40 records may be bad: the first, no JSON, is; the second bad one, without the field, ends the stream."""
    lines = [json.dumps({"id": row}) for row in range(40)]
    lines[3], lines[20] = "{broken", "{}"
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    config = stream_config(
        stage_of(FileSource(files=[str(path)])),
        fields=ID_ONLY,
        block_rows=40,
        on_bad_data="replace",
        bad_data_budget=1 / 40,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    with pytest.raises(BadDataBudgetError, match=r"^2 of the 40 rows.*the last reason: .*row 20\b"):
        list(open_stream(config))


def test_a_file_that_cannot_be_written_stops_nothing(damaged, open_stream, tmp_path, caplog):
    """Where the quarantine file cannot be made, the log says so and the rows are replaced."""
    config = stream_config(
        stage_of(damaged),
        fields=ID_ONLY,
        on_bad_data="replace",
        bad_data_budget=0.1,
        quarantine_file=str(tmp_path / "nowhere" / "bad.jsonl"),
    )
    assert len(ids_of(list(open_stream(config)))) == 192
    assert "16 rows are replaced by others of their source" in caplog.text
    assert "not written to" in caplog.text
