"""`o41td pack`, streamed and traced back to its documents."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import o41td
from o41td import BatchStreamConfig, ManifestSource, ProjectedField, Shuffle, Stage, open_batch_stream
from o41td.cli.pack import pack_job_of, pack_record
from o41td.errors import ConfigError, SchemaError, ValueRefusedError
from o41td.manifest import read_manifest
from o41td.writing.packed_documents import PackJob, run_pack
from o41td.writing.packed_lists import unpacked

pytestmark = pytest.mark.usefixtures("forked_loaders")

LENGTH = 16


def tokens_of(row):
    """A document's tokens, which say where they are from; every ninth document is empty."""
    return [row * 100 + place + 1 for place in range(row % 9 * 5)]


@pytest.fixture
def documents(tmp_path):
    """Two Parquet files of 100 documents each, with masks."""
    for part in range(2):
        rows = range(part * 100, part * 100 + 100)
        table = pa.table(
            {
                "tokens": pa.array([tokens_of(row) for row in rows], pa.list_(pa.int64())),
                "mask": pa.array([[token % 2 == 0 for token in tokens_of(row)] for row in rows], pa.list_(pa.bool_())),
            }
        )
        pq.write_table(table, tmp_path / f"in-{part}.parquet")
    return tmp_path


def rows_of(report):
    """All sequences, in order."""
    shards = read_manifest(report.manifest_uri).shards_of("train")
    batches = [batch for shard in shards for batch in pq.ParquetFile(shard.uri).iter_batches()]
    return [row for batch in batches for row in unpacked(batch).to_pylist()]


@pytest.mark.parametrize("method", ["concatenate", "best-fit"])
def test_every_token_once_and_where_it_says(documents, tmp_path, method):
    """Sequences hold each token of each document once, and lengths, masks, positions and names say whose it is."""
    job = PackJob(
        inputs=[str(documents / "in-*.parquet")],
        manifest_uri=str(tmp_path / "out" / "m.json"),
        length=LENGTH,
        method=method,
        mask_column="mask",
        separator=7,
        shard_bytes=8000,
    )
    report = run_pack(job)
    seen = {}
    for row in rows_of(report):
        assert len(row["tokens"]) == len(row["loss_mask"]) == len(row["position_ids"]) == LENGTH
        at = 0
        for length, name in zip(row["lengths"], row["documents"], strict=True):
            place, _, span = name.partition("[")
            file, _, number = place.rpartition("#")
            number = int(number) + 100 * int(file.endswith("in-1.parquet"))
            start = int(span.partition(":")[0]) if span else 0
            whole = [*tokens_of(number), 7]
            assert row["tokens"][at : at + length] == whole[start : start + length]
            assert row["position_ids"][at : at + length] == list(range(length))
            mask = [token % 2 == 0 for token in tokens_of(number)]
            assert row["loss_mask"][at : at + length] == [*mask, mask[-1]][start : start + length]
            seen.setdefault(number, []).append((start, start + length))
            at += length
        assert row["tokens"][at:] == [0] * (LENGTH - at)
        assert row["loss_mask"][at:] == [False] * (LENGTH - at)
    for number in range(200):
        pieces = sorted(seen.get(number, []))
        wanted = len(tokens_of(number)) + 1 if tokens_of(number) else 0
        assert [end for _, end in pieces[:-1]] == [start for start, _ in pieces[1:]]
        assert (pieces[-1][1] if pieces else 0) == wanted
    counts = report.counts
    assert counts.tokens == sum(len(tokens_of(row)) + 1 for row in range(200) if tokens_of(row))
    assert counts.padding == counts.sequences * LENGTH - counts.tokens
    assert (counts.documents, counts.empty) == (177, 23)  # every ninth of 200, from the first on, is empty
    assert report.waste == counts.padding / (counts.sequences * LENGTH)
    again = run_pack(job)
    assert again.reused == len(report.shards) > 1
    assert again.counts == report.counts


def test_a_last_sequence_may_be_left_out(documents, tmp_path):
    """With drop_last what is left of the line is not padded but left out, and counted."""
    job = PackJob(
        inputs=[str(documents)],
        manifest_uri=str(tmp_path / "out" / "m.json"),
        length=LENGTH,
        method="concatenate",
        drop_last=True,
    )
    counts = run_pack(job).counts
    assert counts.padding == 0
    assert counts.dropped == counts.tokens % LENGTH
    assert counts.sequences == counts.tokens // LENGTH


def test_packed_sequences_stream_and_trace(documents, tmp_path):
    """A stream reads the sequences, and trace names the documents that a batch holds."""
    inputs = [str(documents / "in-0.parquet")]
    job = pack_job_of(inputs, str(tmp_path / "out"), layout="fast", shard_size="1MB", length=LENGTH)
    record = pack_record(run_pack(job), 0.0)
    source = ManifestSource(manifest_uri=record["manifest"], split="train")
    fields = [
        ProjectedField(name="tokens", dtype="i32", length=LENGTH),
        ProjectedField(name="loss_mask", dtype="bool", length=LENGTH),
        ProjectedField(name="lengths", dtype="i32", length=4),
    ]
    stage = Stage(sources=[source], batch_size=4, shuffle=Shuffle(buffer_rows=8))
    config = BatchStreamConfig(fields=fields, stages=[stage], seed=2)
    with open_batch_stream(config) as stream:
        batches = [batch.arrays() for batch in stream]
    assert sum(int(batch["loss_mask"].sum()) for batch in batches) == record["tokens"]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config.to_document()))
    traced = o41td("trace", path, "--batch", "0", "--show", "documents", "--show", "tokens", "--json")
    assert traced.code == 0, traced.err
    rows = json.loads(traced.out)["rows"]
    for row, tokens in zip(rows, batches[0]["tokens"], strict=True):
        assert row["values"]["tokens"] == tokens.tolist()
        name, _, span = row["values"]["documents"][0].partition("[")
        first = int(span.partition(":")[0]) if span else 0
        assert tokens[0] == tokens_of(int(name.rpartition("#")[2]))[first]
    assert np.count_nonzero(batches[0]["tokens"]) > 0


def test_what_cannot_be_packed(documents, tmp_path):
    """Columns that are no token lists, masks of other lengths, and settings that make no sense are refused by name."""
    uri = str(tmp_path / "out" / "m.json")
    with pytest.raises(ConfigError, match="no way to pack"):
        PackJob(inputs=[], manifest_uri=uri, length=4, method="worst-fit")
    with pytest.raises(SchemaError, match=r"there are tokens, mask.*Name the column of token lists with --column"):
        run_pack(PackJob(inputs=[str(documents)], manifest_uri=uri, length=4, column="text"))
    assert run_pack(PackJob(inputs=[str(documents)], manifest_uri=uri, length=4)).shards  # in the same folder
    bad = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"tokens": [[1], [2, -3]], "mask": [[True], [True]]}), bad)
    other = str(tmp_path / "bad" / "m.json")
    with pytest.raises(ValueRefusedError, match=r"-3 is no token.*row 1"):
        run_pack(PackJob(inputs=[str(bad)], manifest_uri=other, length=4))
    pq.write_table(pa.table({"tokens": [[1], [2, 3]], "mask": [[True], [True]]}), bad)
    third = str(tmp_path / "mask" / "m.json")
    with pytest.raises(ValueRefusedError, match="not as long as the tokens"):
        run_pack(PackJob(inputs=[str(bad)], manifest_uri=third, length=4, mask_column="mask"))
    pq.write_table(pa.table({"tokens": [[1], [2, 3]], "mask": [[1], [0, -100]]}), bad)
    fourth = str(tmp_path / "labels" / "m.json")
    with pytest.raises(ValueRefusedError, match=r"-100 in a mask, which is of true and false, or 1 and 0.*row 1"):
        run_pack(PackJob(inputs=[str(bad)], manifest_uri=fourth, length=4, mask_column="mask"))


def test_records_without_tokens(tmp_path):
    """Documents that are empty, null or without the key are counted as empty, however many stand together."""
    rows = [{"tokens": []}] * 1100 + [{}] * 1100 + [{"tokens": None}] * 7 + [{"tokens": [5, 6, 7]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = PackJob(inputs=[str(tmp_path / "in.jsonl")], manifest_uri=str(tmp_path / "out" / "m.json"), length=4)
    report = run_pack(job)
    assert (report.counts.documents, report.counts.empty) == (1, 2207)
    assert [row["tokens"] for row in rows_of(report)] == [[5, 6, 7, 0]]
