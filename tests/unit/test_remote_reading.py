"""Readers over remote objects give what they give over files, and ask for what they need once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memory_objects import memory_objects
from o41td.errors import ChangedDataError, CorruptDataError
from o41td.fields import FieldPlan
from o41td.workers.block_fetcher import BlockFetcher
from o41td.workers.messages import DecodeBlock
from o41td.workers.piece import SourceFormat
from o41td.workers.ranges import column_ranges
from o41td.workers.reader_pool import ReaderPool
from o41td.workers.record_count import count_records
from o41td.workers.row_values import values_of_rows
from o41td.workers.shard_facts import FactsShelf
from o41td.workers.shard_sample import look_at_sample
from record_writer import ENCODINGS, write_records

URI = "memory://remote-reading/a"
FIELDS = [FieldPlan(name="id", source="id", dtype="i64"), FieldPlan(name="x", source="x", dtype="f64")]
ROWS, GROUP = 6000, 1500
IDS = np.arange(ROWS)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Four row groups of three columns, of which the middle one is not read."""
    table = pa.table({"id": IDS, "unread": IDS * 3, "x": IDS / 2})
    pq.write_table(table, tmp_path / "a", row_group_size=GROUP, compression="none", use_dictionary=False)
    return tmp_path / "a"


def reader_of(pool, encoding="parquet"):
    """The reader of the one shard."""
    return pool.reader(0, URI, FIELDS, encoding=encoding, source="web")


@pytest.mark.parametrize("max_row_group_bytes", [64 << 20, 8000], ids=["whole", "streamed"])
def test_row_groups_in_slices(shard, max_row_group_bytes):
    """Slices of row groups, whole or streamed, hold the right rows; bytes are asked for once."""
    with memory_objects({URI: shard.read_bytes()}) as objects:
        pool = ReaderPool(objects=objects, max_row_group_bytes=max_row_group_bytes)
        reader = reader_of(pool)
        footers = objects.storage.figures.requested_bytes
        for group in range(4):
            for start in range(0, GROUP, 500):
                rows = reader.read_rows(group, start, start + 500, group_rows=GROUP, decoding_bytes=24_000)
                first = group * GROUP + start
                assert rows.column(0).to_pylist() == list(range(first, first + 500))
                assert rows.column(1).to_pylist() == [row / 2 for row in range(first, first + 500)]
        chunks = column_ranges(pq.read_metadata(shard), range(4), [0, 2])
        asked = objects.storage.figures.requested_bytes - footers
        tail_start = shard.stat().st_size - footers
        assert (
            asked
            <= sum(each.num_bytes for each in chunks)
            <= asked + sum(each.num_bytes for each in chunks if each.stop > tail_start)
        )
        pool.close()


def test_small_row_groups_are_fetched_together(shard):
    """Several row groups at once are as many rows, end to end, out of few requests."""
    with memory_objects({URI: shard.read_bytes()}) as objects:
        pool = ReaderPool(objects=objects)
        reader = reader_of(pool)
        before = objects.storage.figures.requests
        table = reader.read_groups([(0, GROUP), (1, GROUP), (2, GROUP)])
        assert table.column(0).to_pylist() == list(range(3 * GROUP))
        assert objects.storage.figures.requests - before <= 6
        pool.close()


def order_of(block_id: int, shard: Path, *slices: tuple[int, int, int]) -> DecodeBlock:
    """An order for (row group, first row, last row) of the shard."""
    size, etag = shard.stat().st_size, None
    pieces = [
        [number, URI, size, 0, ROWS, group, GROUP, 24_000, group * GROUP, start, stop, 0, etag]
        for number, (group, start, stop) in enumerate(slices)
    ]
    return DecodeBlock(block_id, 0, 0, GROUP, None, careful=False, pieces=pieces)


def test_blocks_are_fetched_ahead_and_no_row_group_twice(shard):
    """Bytes are here when the block's turn comes; what another block fetches, or the decoder has, is not fetched."""
    with memory_objects({URI: shard.read_bytes()}) as objects:
        facts = FactsShelf()
        pool = ReaderPool(objects=objects, facts=facts)
        fetcher = BlockFetcher(
            objects,
            facts,
            [SourceFormat("web", tuple(FIELDS), "parquet")],
            is_held=pool.is_held,
            is_kept=lambda _source, _piece: False,
            max_row_group_bytes=64 << 20,
        )
        first, second, third = (
            order_of(number, shard, (group, start, start + 500))
            for number, (group, start) in enumerate([(0, 0), (0, 500), (1, 0)])
        )
        fetcher.begin(first)
        fetcher.begin(second)
        fetcher.wait(first)
        fetcher.wait(second)
        asked = objects.storage.figures.requested_bytes
        info = objects.stat(URI)
        reader = pool.reader(0, URI, FIELDS, source="web", size_bytes=info.size_bytes, etag=None)
        assert reader.read_rows(0, 0, 500, group_rows=GROUP).column(0).to_pylist() == list(range(500))
        fetcher.end(first)
        fetcher.end(second)
        assert objects.storage.figures.requested_bytes == asked
        again = order_of(9, shard, (0, 1000, 1500))  # the decoder has the row group
        fetcher.begin(again)
        fetcher.wait(again)
        assert objects.storage.figures.requested_bytes == asked
        fetcher.begin(third)
        fetcher.wait(third)
        assert objects.storage.figures.requested_bytes > asked
        fetcher.end(third)
        assert objects.fetched.ranges_of(URI) == []
        pool.close()


@pytest.mark.parametrize("encoding", ENCODINGS[1:])
def test_records(tmp_path, encoding):
    """Remote records are counted and read, forwards, far ahead and again, as local ones are."""
    records = [{"id": number, "x": number / 2} for number in range(3000)]
    schema = pa.schema({"id": pa.int64(), "x": pa.float64()})
    path = write_records(tmp_path, "shard", records, schema)[encoding]
    with memory_objects({URI: path.read_bytes()}) as objects:
        count = count_records(URI, encoding, FIELDS, objects=objects)
        assert (count.num_rows, count.size_bytes) == (3000, path.stat().st_size)
        reader = reader_of(ReaderPool(objects=objects), encoding)
        for start in (0, 100, 2500, 200, 2600, 0):
            rows = reader.read_rows(0, start, start + 100, group_rows=3000)
            arrays = {"id": np.zeros(100, np.int64), "x": np.zeros(100)}
            assert reader.projector.write_fitting(rows, arrays) is None
            assert arrays["id"].tolist() == list(range(start, start + 100))
            assert arrays["x"].tolist() == [row / 2 for row in range(start, start + 100)]
        reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_single_rows_and_samples(tmp_path, encoding):
    """What `trace --show` and `check` look at is the same."""
    records = [{"id": number, "x": number / 2} for number in range(300)]
    schema = pa.schema({"id": pa.int64(), "x": pa.float64()})
    path = write_records(tmp_path, "shard", records, schema)[encoding]
    with memory_objects({URI: path.read_bytes()}) as objects:
        shown = values_of_rows([(URI, encoding, 0, row) for row in (299, 0)], [("x", None)], objects)
        assert shown == [{"x": 149.5}, {"x": 0.0}]
        info = objects.stat(URI)
        sample = {
            "source": "web",
            "encoding": encoding,
            "path": URI,
            "size_bytes": info.size_bytes,
            "etag": info.etag,
            "fields": [field.to_record() for field in FIELDS],
            "row_group": 0,
            "group_rows": 300,
            "first_row": 0,
            "decoding_bytes": 4800,
            "take": 300,
        }
        seen = look_at_sample(sample, 64 << 20, objects)
        assert (seen["rows"], seen["refused"]) == (300, None)


def test_what_is_damaged_or_replaced_is_told(shard):
    """A footer that is none, and a shard of another size, name the shard and its source."""
    data = shard.read_bytes()
    with memory_objects({URI: data[:-4] + b"nope"}) as objects:
        with pytest.raises(CorruptDataError, match="no readable Parquet") as corrupt:
            reader_of(ReaderPool(objects=objects))
        assert (corrupt.value.shard, corrupt.value.source) == (URI, "web")
        with pytest.raises(ChangedDataError, match="size was 7"):
            ReaderPool(objects=objects).reader(0, URI, FIELDS, source="web", size_bytes=7, etag=None)
