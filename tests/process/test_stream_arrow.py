"""Streams and batches through the Arrow PyCapsule interface, in the hands of those that read it."""

from __future__ import annotations

import nanoarrow
import numpy as np
import pyarrow as pa
import pytest

from o41td import BatchStream, BatchStreamConfig
from stream_reference import FIELDS, Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture(scope="module")
def config(module_shards) -> BatchStreamConfig:
    """97 rows in batches of 9, shuffled: eleven batches, the last of 7 rows."""
    return stream_config(stage_of(module_shards([37, 60], row_group_rows=11), batch_size=9, buffer_rows=24))


@pytest.fixture
def stream(opened) -> BatchStream:
    """The stream, at its beginning."""
    opened.seek(0)
    return opened


def all_rows(reference: Reference, first: int = 0) -> dict[str, list[object]]:
    """The values of all batches from one on, by field."""
    batches = [reference.arrays(number) for number in range(first, reference.num_batches())]
    return {field.name: np.concatenate([batch[field.name] for batch in batches]).tolist() for field in FIELDS}


def test_pyarrow_reads_a_stream_batch_by_batch(stream, reference):
    """What was read counts as handed out, and the stream itself goes on behind it."""
    reference.check(stream.next(), number=0)
    reader = pa.RecordBatchReader.from_stream(stream)
    assert reader.schema.field("tokens").type == pa.list_(pa.int32(), 8)
    for number in (1, 2):
        expected = {name: array.tolist() for name, array in reference.arrays(number).items()}
        assert reader.read_next_batch().to_pydict() == expected
    assert stream.checkpoint().batches_yielded == 3
    reference.check(stream.next(), number=3)
    assert reader.read_all().to_pydict() == all_rows(reference, first=4)
    assert stream.next() is None


def test_pyarrow_reads_a_batch_and_casts_it_where_it_is_asked_to(stream, reference):
    """A batch is a record batch of the same values, of the requested types where there is a cast."""
    batch = stream.next()
    expected = {name: array.tolist() for name, array in reference.arrays(0).items()}
    assert pa.record_batch(batch).to_pydict() == expected
    kinds = {"id": pa.float64(), "tokens": pa.list_(pa.int64(), 8), "score": pa.float64(), "flag": pa.bool_()}
    cast = pa.record_batch(batch, schema=pa.schema(kinds))
    assert {field.name: field.type for field in cast.schema} == kinds
    assert cast.to_pydict() == expected


def test_arrow_batches_never_change(stream, reference):
    """Record batches that outlive their batch keep its values while the stream goes on."""
    kept = [pa.record_batch(stream.next()) for _ in range(2)]
    assert sum(batch.num_rows for batch in stream) == 97 - 18
    assert [batch["id"].to_pylist() for batch in kept] == [reference.ids(0), reference.ids(1)]


def test_polars_reads_a_stream(stream, reference):
    """A data frame of the whole stage."""
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(stream)
    assert frame.schema["tokens"] == polars.Array(polars.Int32, 8)
    assert frame.to_dict(as_series=False) == all_rows(reference)


def test_duckdb_queries_a_stream(stream, reference):
    """A query over the variable that holds the stream."""
    duckdb = pytest.importorskip("duckdb")
    expected = all_rows(reference)
    with duckdb.connect() as database:
        database.register("batches", stream)
        found = database.execute("select count(*), sum(id), sum(tokens[1]), count(*) filter (flag) from batches")
        assert found.fetchall() == [
            (97, sum(expected["id"]), sum(row[0] for row in expected["tokens"]), sum(expected["flag"]))
        ]


def test_nanoarrow_reads_a_stream(stream, reference):
    """Structs of the fields, batch by batch."""
    chunks = list(nanoarrow.ArrayStream(stream))
    assert [len(chunk) for chunk in chunks] == [9] * 10 + [7]
    ids = [row["id"] for chunk in chunks for row in chunk.to_pylist()]
    assert ids == all_rows(reference)["id"]
