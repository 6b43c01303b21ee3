"""Shard readers: slices, streaming, changed and damaged files, and few descriptors."""

import errno
import io
import os
import resource
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td.errors import ChangedDataError, CorruptDataError, StorageError
from o41td.fields import FieldPlan
from o41td.workers import parquet, row_group_stream
from o41td.workers.footer import read_footer
from o41td.workers.parquet import ShardReader
from o41td.workers.reader_pool import ReaderPool
from read_shard import read_shard

ID = FieldPlan(name="id", source="id", dtype="i64")
TOKENS = FieldPlan(name="tokens", source="tokens", dtype="i32", shape=(6,), pad=-1)


def write(path, num_rows=1000, group=300, **options):
    """A shard whose row i has id i and i mod 9 tokens, i and on."""
    lists = pa.array([list(range(row, row + row % 9)) for row in range(num_rows)], pa.list_(pa.int32()))
    columns = {"other": pa.array([str(row) for row in range(num_rows)]), "tokens": lists, "id": np.arange(num_rows)}
    pq.write_table(pa.table(columns), path, row_group_size=group, **options)
    return str(path)


def expected_tokens(num_rows):
    """The tokens of `write`, six a row."""
    return [([*range(row, row + row % 9)] + [-1] * 6)[:6] for row in range(num_rows)]


@pytest.mark.parametrize("block_rows", [1, 7, 100, 299, 10**6])
@pytest.mark.parametrize("limit", [1, 10**9])
def test_slices_and_streams_give_the_same_rows(tmp_path, block_rows, limit):
    """Any slicing of row groups, kept decoded or streamed, gives each row once and in order."""
    path = write(tmp_path / "a.parquet", 600, 250)
    rows = read_shard(path, [ID, TOKENS], block_rows=block_rows, max_row_group_bytes=limit)
    assert rows["id"].tolist() == list(range(600))
    assert rows["tokens"].tolist() == expected_tokens(600)


@pytest.mark.parametrize("limit", [1, 10**9])
def test_going_back_and_forth(tmp_path, limit):
    """Ranges in any order give their own rows."""
    reader = ShardReader(write(tmp_path / "a.parquet"), [ID], max_row_group_bytes=limit)
    for group, start, stop in [(0, 100, 200), (0, 250, 300), (0, 0, 10), (1, 5, 6), (0, 10, 20), (3, 0, 100)]:
        table = reader.read_rows(group, start, stop, decoding_bytes=10**6)
        assert table.column_names == ["id"]
        assert table["id"].to_pylist() == list(range(group * 300 + start, group * 300 + stop))
    reader.close()


def test_streaming_is_bounded(tmp_path):
    """A row group of 64 MiB, streamed, takes a fraction of that."""
    path = tmp_path / "big.parquet"
    values = np.random.default_rng(0).integers(0, 1000, 1 << 23)
    pq.write_table(pa.table({"id": values}), path, row_group_size=1 << 23, use_dictionary=False, compression="zstd")
    del values
    decoding_bytes = int(read_footer(None, str(path), [ID]).decoding_bytes[0])
    assert decoding_bytes >= 64 << 20
    reader = ShardReader(str(path), [ID], max_row_group_bytes=8 << 20)
    before, peak, total = pa.total_allocated_bytes(), 0, 0
    for start in range(0, 1 << 23, 1 << 18):
        table = reader.read_rows(0, start, start + (1 << 18), decoding_bytes=decoding_bytes)
        total += table.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    reader.close()
    assert total == 1 << 23
    assert peak < 32 << 20


def test_large_rows_are_asked_for_few_at_a_time(tmp_path):
    """Of a streamed row group of 300 rows that decode to 2 400 MiB, one row at a time; of one kept whole, all."""
    path = write(tmp_path / "a.parquet")
    reader = ShardReader(path, [ID], max_row_group_bytes=64 << 20)
    assert [reader.rows_at_once(0, mib << 20) for mib in (1, 64, 100, 2400, 9600)] == [300, 300, 24, 1, 1]
    reader.close()


def test_streamed_rows_are_counted(tmp_path):
    """A streamed row group's last slice is the last: nothing more may follow, nothing may lack."""
    reader = ShardReader(write(tmp_path / "a.parquet"), [ID], max_row_group_bytes=1)
    with pytest.raises(ChangedDataError, match="300 rows, and had 301"):
        reader.read_rows(0, 0, 301, group_rows=301, decoding_bytes=100)
    with pytest.raises(ChangedDataError, match="4 row groups"):
        reader.read_rows(4, 0, 1)
    reader.close()


def test_changed_shard_is_refused(tmp_path):
    """Another size or time than was indexed is refused at open, and at the next row group of an open reader."""
    path = write(tmp_path / "a.parquet")
    footer = read_footer(None, path, [ID])
    known = {"size_bytes": footer.size_bytes, "mtime_ns": footer.mtime_ns}
    reader = ShardReader(path, [ID], **known)
    reader.read_rows(0, 0, 300)
    os.utime(path, ns=(0, footer.mtime_ns + 1))
    with pytest.raises(ChangedDataError, match="modification time"):
        reader.read_rows(1, 0, 300)
    with pytest.raises(ChangedDataError, match=r"a\.parquet"):
        ShardReader(path, [ID], **known)
    reader.close()


def test_truncated_while_open(tmp_path):
    """A shard cut short after it was opened is an error that names it, never a signal."""
    path = write(tmp_path / "a.parquet", 100_000, 50_000)
    reader = ShardReader(path, [ID, TOKENS])
    reader.read_rows(0, 0, 50_000)
    os.truncate(path, 4096)
    with pytest.raises(ChangedDataError, match=r"size was \d+ bytes and is 4096"):
        reader.read_rows(1, 0, 50_000)
    reader.close()


def test_damaged_page_fails_its_checksum(tmp_path):
    """One flipped bit in a page with a checksum is an error that names the row group; the group before it reads."""
    path = write(tmp_path / "a.parquet", 600, 300, write_page_checksum=True, compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(2)
    with open(path, "r+b") as file:
        file.seek(chunk.data_page_offset + chunk.total_compressed_size - 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    reader = ShardReader(path, [ID])
    assert reader.read_rows(0, 0, 300).num_rows == 300
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="row group 1"):
            reader.read_rows(1, 0, 300)
    reader.close()


class _LosesHandles(io.BytesIO):
    """A file of a network file system: reads by number, over all handles, may find that the server lost the handle."""

    reads = 0
    lost_at: ClassVar[set[int]] = set()

    def read(self, size=-1):
        type(self).reads += 1
        if type(self).reads in self.lost_at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return super().read(size)


def _opened_far_away(path):
    with open(path, "rb") as file:
        return pa.PythonFile(_LosesHandles(file.read()), mode="r")


@pytest.mark.parametrize("way", ["whole", "several", "streamed"])
def test_a_lost_handle_is_opened_again_once(tmp_path, monkeypatch, way):
    """J15: each read of a shard in turn is the one that fails: same rows; two in a row are an error with its path."""
    path = write(tmp_path / "a.parquet", 400, 100)
    for module in (parquet, row_group_stream):
        monkeypatch.setattr(module, "open_shard_file", _opened_far_away)

    def rows_with(lost_at):
        _LosesHandles.reads, _LosesHandles.lost_at = 0, lost_at
        reader = ShardReader(path, [ID], max_row_group_bytes=1 if way == "streamed" else 10**9)
        opened = _LosesHandles.reads
        if way == "several":
            tables = [reader.read_groups([(0, 100), (1, 100)]), reader.read_groups([(2, 100), (3, 100)])]
        else:
            parts = [(group, start, start + 50) for group in range(4) for start in (0, 50)]
            tables = [reader.read_rows(*part, decoding_bytes=10**6) for part in parts]
        reader.close()
        return [row for table in tables for row in table["id"].to_pylist()], opened

    rows, opened = rows_with(set())
    assert rows == list(range(400))
    num_reads = _LosesHandles.reads
    assert num_reads > opened
    for lost_at in range(opened + 1, num_reads + 1):
        assert rows_with({lost_at})[0] == rows
    with pytest.raises(StorageError, match=f"Stale file handle.*{path}"):
        rows_with(set(range(opened + 1, num_reads + 9)))


def test_few_descriptors_for_many_shards(tmp_path):
    """2 000 shards read through one pool under a limit of 128 descriptors."""
    path = write(tmp_path / "a.parquet", 30, 10)
    for shard in range(2000):
        os.link(path, tmp_path / f"{shard}.parquet")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool = ReaderPool(max_open=4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        for shard in range(2000):
            reader = pool.reader(0, str(tmp_path / f"{shard}.parquet"), [ID])
            assert reader.read_rows(1, 2, 4)["id"].to_pylist() == [12, 13]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        pool.close()


def test_partly_read_groups_of_two_sources_stay(tmp_path):
    """Slices taken in turn from two shards decode each row group once, and hold no more than the limit."""
    paths = [write(tmp_path / f"{name}.parquet") for name in "ab"]
    pool = ReaderPool(max_row_group_bytes=1 << 20)
    readers = [pool.reader(place, path, [ID]) for place, path in enumerate(paths)]
    first = [reader.read_rows(0, 0, 10)["id"].chunk(0).buffers()[1].address for reader in readers]
    again = [reader.read_rows(0, 10, 20)["id"].chunk(0).buffers()[1].address for reader in readers]
    assert first == again
    pool.close()


@pytest.mark.parametrize("limit_bytes", [1 << 20, 1], ids=["whole", "streamed"])
def test_no_more_partly_read_groups_stay_than_are_read_side_by_side(tmp_path, limit_bytes):
    """Of five row groups whose ends another worker is given, the last two stay, not five."""
    pool = ReaderPool(max_row_group_bytes=limit_bytes, max_held_units=2)
    reader = pool.reader(0, write(tmp_path / "a.parquet", 1500), [ID])
    before = pa.total_allocated_bytes()
    held_bytes = []
    for group in range(5):
        assert reader.read_rows(group, 0, 10, decoding_bytes=3000)["id"].to_pylist()[0] == group * 300
        held_bytes.append(pa.total_allocated_bytes() - before)
    assert held_bytes[0] > 0
    assert max(held_bytes) <= (2 if limit_bytes > 1 else 1) * held_bytes[0] + 1024
    pool.close()


def test_many_row_groups(tmp_path):
    """33 000 row groups of one row are 33 000 rows in order."""
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema([("id", pa.int64())]), write_statistics=False) as writer:
        batch = pa.table({"id": np.arange(33_000)})
        writer.write_table(batch, row_group_size=1)
    footer = read_footer(None, str(path), [ID])
    assert footer.rows.tolist() == [1] * 33_000
    reader = ShardReader(str(path), [ID])
    for group in (0, 32_766, 32_767, 32_768, 32_999):
        assert reader.read_rows(group, 0, 1)["id"].to_pylist() == [group]
    reader.close()


def test_dotted_and_doubled_columns(tmp_path):
    """Columns are read by leaf: `a.b` is the flat column, though a struct `a` has a `b`."""
    path = tmp_path / "a.parquet"
    struct = pa.array([{"b": 1, "c": 2}, {"b": 3, "c": 4}])
    pq.write_table(
        pa.table([struct, pa.array([10, 20]), pa.array([5, 6]), pa.array([7, 8])], ["a", "a.b", "x", "x"]), path
    )
    fields = [
        FieldPlan(name="flat", source="a.b", dtype="i64"),
        FieldPlan(name="member", source="a.c", dtype="i64"),
    ]
    rows = read_shard(path, fields)
    assert rows["flat"].tolist() == [10, 20]
    assert rows["member"].tolist() == [2, 4]
    assert ShardReader(str(path), fields).plan.column_indices == (1, 2)
