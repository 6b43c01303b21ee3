"""Footers: counts, costs and versions of shards, and refusals of what is none."""

import gc
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memory_objects import memory_objects
from o41td.errors import CorruptDataError, MissingShardError, SchemaError
from o41td.fields import FieldPlan
from o41td.index import version_of_etag
from o41td.workers.footer import read_footer

ID = FieldPlan(name="id", source="id", dtype="i64")


def write(path, values, **options):
    """A shard of ids, and of a wide text that no field reads."""
    pq.write_table(pa.table({"id": values, "text": ["x" * 1000] * len(values)}), path, **options)
    return str(path)


def test_counts_and_costs(tmp_path):
    """Rows by row group, and bytes of the projected columns only."""
    footer = read_footer(None, write(tmp_path / "a.parquet", np.arange(250), row_group_size=100), [ID])
    assert footer.rows.tolist() == [100, 100, 50]
    assert footer.num_rows == 250
    assert (footer.decoded_bytes >= footer.rows * 8).all()
    assert (footer.decoded_bytes < footer.rows * 16 + 400).all()
    assert (footer.compressed_bytes > 0).all()
    assert footer.size_bytes == os.path.getsize(tmp_path / "a.parquet")


def test_cost_of_dictionary_pages_is_the_decoded_one(tmp_path):
    """Pages of a few distinct values are small; the lists that they decode to are not."""
    lists = pa.array([[7] * 1000] * 500, pa.list_(pa.int32()))
    pq.write_table(pa.table({"t": lists}), tmp_path / "a.parquet")
    footer = read_footer(
        None, str(tmp_path / "a.parquet"), [FieldPlan(name="t", source="t", dtype="i32", shape=(1000,))]
    )
    assert footer.compressed_bytes[0] < 100_000
    assert 2_000_000 <= footer.decoded_bytes[0] <= 2_200_000


def test_cost_of_packed_rows_on_plain_pages(tmp_path):
    """Packed rows of a fixed size, or whose pages hold them byte for byte, cost what they are and no more."""
    packed = FieldPlan(name="t", source="t", dtype="i32", shape=(1000,), source_dtype="i32")
    for kind in (pa.binary(400), pa.binary()):
        table = pa.table({"t": pa.array([b"x" * 400] * 500, kind)})
        path = tmp_path / "a.parquet"
        pq.write_table(table, path, use_dictionary=False, compression="zstd")
        footer = read_footer(None, str(path), [packed])
        assert 500 * 400 <= footer.decoded_bytes[0] <= 500 * 412


def test_cost_of_equal_packed_rows(tmp_path):
    """A dictionary page of one packed row, 500 times over: its cost is that of 500 rows of the field."""
    row = np.arange(1000, dtype=np.int32).tobytes()
    pq.write_table(pa.table({"t": pa.array([row] * 500, pa.binary())}), tmp_path / "a.parquet")
    packed = FieldPlan(name="t", source="t", dtype="i32", shape=(1000,), source_dtype="i32")
    footer = read_footer(None, str(tmp_path / "a.parquet"), [packed])
    assert 2_000_000 <= footer.decoded_bytes[0] <= 2_010_000


def test_decoding_cost_has_the_levels(tmp_path):
    """Lists of bool take an eighth of a byte a value, and 4 more while they are decoded; required values none."""
    schema = pa.schema([("mask", pa.list_(pa.bool_())), pa.field("id", pa.int64(), nullable=False)])
    table = pa.table({"mask": [[True] * 100] * 500, "id": range(500)}, schema)
    pq.write_table(table, tmp_path / "a.parquet")
    mask = FieldPlan(name="mask", source="mask", dtype="bool", shape=(100,))
    footer = read_footer(None, str(tmp_path / "a.parquet"), [mask])
    assert (footer.decoding_bytes - footer.decoded_bytes).tolist() == [4 * 50_000]
    footer = read_footer(None, str(tmp_path / "a.parquet"), [ID])
    assert (footer.decoding_bytes - footer.decoded_bytes).tolist() == [0]
    assert footer.footer_bytes == pq.read_metadata(tmp_path / "a.parquet").serialized_size


@pytest.mark.parametrize("groups", [0, 1])
def test_shards_without_rows(tmp_path, groups):
    """A shard with no row group, or an empty one, is fine."""
    schema = pa.schema([("id", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        if groups:
            writer.write_table(schema.empty_table())
    footer = read_footer(None, str(tmp_path / "a.parquet"), [ID])
    assert footer.num_rows == 0


def test_version_is_of_the_content(tmp_path):
    """A copy with another time has the same version; a rewritten file of the same size has another."""
    values = np.random.default_rng(0).integers(0, 2**62, 20_000)
    path = write(tmp_path / "a.parquet", values, compression="none", use_dictionary=False, write_statistics=False)
    copy = shutil.copy(path, tmp_path / "b.parquet")
    os.utime(copy, ns=(0, 0))
    first, second = read_footer(None, path, [ID]), read_footer(None, str(copy), [ID])
    assert first.version == second.version
    assert len(first.version) == 16
    assert first.mtime_ns != second.mtime_ns
    rewritten = write(
        tmp_path / "c.parquet", values + 1, compression="none", use_dictionary=False, write_statistics=False
    )
    assert os.path.getsize(rewritten) == first.size_bytes
    assert read_footer(None, rewritten, [ID]).version != first.version


def test_not_a_parquet_file(tmp_path):
    """Missing, empty, cut short, other bytes, a folder and an unwritten pipe are each one line that names it."""
    whole = (tmp_path / "whole.parquet", np.arange(100))
    write(*whole)
    content = whole[0].read_bytes()
    cases = {
        "empty": b"",
        "short": content[: len(content) // 2],
        "tailless": content[:-5],
        "text": b"id,label\n" * 50,
        "encrypted": content[:-4] + b"PARE",
        "garbled": content[:-30] + b"\xff" * 22 + content[-8:],
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptDataError) as caught:
            read_footer(None, str(tmp_path / name), [ID], source="web")
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.source == "web"
    with pytest.raises(MissingShardError) as missing:
        read_footer(None, str(tmp_path / "none"), [ID])
    assert isinstance(missing.value, FileNotFoundError)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(CorruptDataError):
            read_footer(None, str(tmp_path / name), [ID])


def test_a_shard_that_was_cut_short(tmp_path):
    """It begins as Parquet, so it is told as what it is."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": list(range(1000))}), path)
    os.truncate(path, 2000)
    with pytest.raises(CorruptDataError, match="its end is missing: it was cut short, or is still being written"):
        read_footer(None, path, [])


def test_schema_is_checked(tmp_path):
    """A shard without a field's column is refused by its footer."""
    path = write(tmp_path / "a.parquet", np.arange(3))
    with pytest.raises(SchemaError, match="'label' is missing"):
        read_footer(None, path, [FieldPlan(name="label", source="label", dtype="i64")], source="web")


def test_remote_shards(tmp_path):
    """A shard of a store reads the same, is named by what tells it from its successors, and refused when it is none."""
    local = read_footer(None, write(tmp_path / "a.parquet", np.arange(100)), [ID])
    with memory_objects({"memory://footers/a.parquet": (tmp_path / "a.parquet").read_bytes()}) as objects:
        remote = read_footer(objects, "memory://footers/a.parquet", [ID])
        assert remote.rows.tolist() == local.rows.tolist()
        assert remote.compressed_bytes.tolist() == local.compressed_bytes.tolist()
        assert remote.version == version_of_etag(str(objects.stat("memory://footers/a.parquet").etag))
        with pytest.raises(MissingShardError, match="footers/none") as missing:
            read_footer(objects, "memory://footers/none.parquet", [ID], source="web")
        assert missing.value.source == "web"


def test_no_footer_outlives_its_reading(write_shards) -> None:
    """Parsed footers take several times their size: each is let go of at once, not when the collector comes by."""
    (path,) = write_shards([40])

    def footers() -> int:
        return sum(isinstance(each, pq.FileMetaData) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = footers()
        for _ in range(3):
            read_footer(None, str(path), [FieldPlan(name="id", source="id", dtype="i64")])
        assert footers() == before
    finally:
        gc.enable()
