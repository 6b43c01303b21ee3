"""Streams of lists long enough to be decoded without their levels: local and remote, with gaps, and damaged."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stream_reference as ref
from o41td import CorruptDataError, ProjectedField
from o41td.workers.flat_lists import FlatLists

pytestmark = pytest.mark.usefixtures("forked_loaders")


def is_flat(path):
    """Whether a shard's lists are read without their levels."""
    parquet = pq.ParquetFile(path)
    leaves = range(parquet.metadata.num_columns)
    lists = FlatLists(parquet.metadata, parquet.schema_arrow, leaves)
    before = set(lists._fields)
    with pa.OSFile(str(path)) as file:
        lists.read(file, 0, parquet)
    return bool(before) and set(lists._fields) == before


@pytest.mark.parametrize("place", ["here", "in a store"])
def test_long_lists_are_what_was_written(write_shards, open_stream, bucket, place):
    """Lists of up to 600 values, some 60 000 a row group, shuffled: every value of every batch."""
    paths = write_shards((400, 300), row_group_rows=200, longest=600)
    assert all(map(is_flat, paths))
    files = paths if place == "here" else bucket.put_files(paths)
    config = ref.stream_config(ref.stage_of(files, batch_size=32, buffer_rows=256), threads=2)
    stream = open_stream(config, storage=bucket.storage)
    ref.Reference(ref.stream_config(ref.stage_of(paths, batch_size=32, buffer_rows=256))).check_rest(stream, position=0)


def test_shards_with_and_without_gaps_give_the_same_fields(tmp_path, open_stream):
    """A shard with a null and an empty list beside one without: values where there are any, and padding where not."""
    rng = np.random.default_rng(3)
    rows = [rng.integers(0, 1 << 30, rng.integers(200, 500)).tolist() for _ in range(800)]
    rows[500], rows[501] = None, []
    for number, part in enumerate((rows[:400], rows[400:])):
        pq.write_table(pa.table({"x": pa.array(part, pa.list_(pa.int32()))}), tmp_path / f"{number}.parquet")
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    assert [is_flat(path) for path in paths] == [True, False]
    field = ProjectedField(name="x", dtype="i32", length=128, pad=-1, null=-2)
    stream = open_stream(ref.stream_config(ref.stage_of(paths, batch_size=40), fields=[field]))
    found = np.concatenate([batch["x"] for batch in stream])
    expected = [[-2] * 128 if row is None else (row + [-1] * 128)[:128] for row in rows]
    assert found.tolist() == expected


def test_a_damaged_page_is_told_as_ever(tmp_path, open_stream):
    """One byte of a page with a checksum: the shard and the row group are named, and all before it arrives."""
    values = pa.array(np.random.default_rng(4).integers(0, 1 << 30, 600 * 200, dtype=np.int32))
    path = tmp_path / "a.parquet"
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 200)})
    pq.write_table(table, path, row_group_size=300, write_page_checksum=True, use_dictionary=False)
    assert is_flat(path)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    field = ProjectedField(name="x", dtype="i32", length=200)
    stream = open_stream(ref.stream_config(ref.stage_of([path], batch_size=30), fields=[field]))
    for number in range(10):
        expected = values.to_numpy().reshape(600, 200)[30 * number : 30 * number + 30]
        assert np.array_equal(stream.next()["x"], expected)
    with pytest.raises(CorruptDataError, match=rf"shard {re.escape(str(path))}, row group 1"):
        stream.next()


def test_decoding_imports_nothing_that_workers_do_not_have(write_shards):
    """What is imported behind the fork is in each worker's memory, and waited for in the middle of a stream."""
    (path,) = write_shards((200,), row_group_rows=200, longest=600)
    code = f"""
        import sys
        import o41td.workers.worker
        import pyarrow as pa, pyarrow.parquet as pq
        from o41td.workers.flat_lists import FlatLists
        parquet, file = pq.ParquetFile({str(path)!r}), pa.OSFile({str(path)!r})
        parquet.reader.read_row_groups([0], column_indices=[0], use_threads=False)
        lists = FlatLists(parquet.metadata, parquet.schema_arrow, range(parquet.metadata.num_columns))
        before = set(sys.modules)
        lists.read(file, 0, parquet)
        print(bool(lists._fields), sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True []"
