"""Row groups of a few rows are decoded many at a time; each is still judged by itself."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import CorruptDataError, ProjectedField, ValueRefusedError
from shard_writer import damage_row_group
from stream_reference import ID_ONLY, Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def test_33000_row_groups_of_one_row(tmp_path, open_stream):
    """K7: more row groups than 15 bits count, all rows in the listed order."""
    path = tmp_path / "a.parquet"
    table = pa.table({"id": pa.array(range(33_000), pa.int64())})
    pq.write_table(table, path, row_group_size=1, compression="none", write_statistics=False, use_dictionary=False)
    assert pq.read_metadata(path).num_row_groups == 33_000
    stream = open_stream(stream_config(stage_of([path], batch_size=1000), fields=ID_ONLY))
    assert ids_of(list(stream)) == list(range(33_000))


@pytest.mark.parametrize("buffer_rows", [None, 100])
@pytest.mark.parametrize("block_rows", [None, 17])
def test_rows_of_many_small_row_groups_are_the_right_ones(write_shards, open_stream, buffer_rows, block_rows):
    """Row groups of 1, 3 and 7 rows in three shards, lists and scalars, in any order, whatever shares a slot."""
    paths = [
        path
        for rows in (1, 3, 7)
        for path in write_shards([100], name=f"of{rows}", first_id=1000 * rows, row_group_rows=rows)
    ]
    config = stream_config(stage_of(paths, buffer_rows=buffer_rows), block_rows=block_rows)
    Reference(config).check_rest(open_stream(config), position=0)


def test_one_damaged_row_group_of_many_is_named_and_harms_no_other(write_shards, open_stream):
    """Row groups of 2 rows: what lies before the damaged one arrives, and what lies behind it can be had."""
    paths = write_shards([40, 40], row_group_rows=2)
    damage_row_group(paths[1], 6)  # ids 52 and 53
    stream = open_stream(stream_config(stage_of(paths, batch_size=4), fields=ID_ONLY))
    assert ids_of([stream.next() for _ in range(13)]) == list(range(52))
    with pytest.raises(CorruptDataError) as caught:
        stream.next()
    assert (caught.value.shard, caught.value.row_group) == (str(paths[1]), 6)
    stream.seek(14)
    assert ids_of(list(stream)) == list(range(56, 80))


def test_one_value_of_many_row_groups_is_named(tmp_path, open_stream):
    """A value too large in row 21, in a row group of 2 rows: shard, row group, row and value are its own."""
    values = [*range(21), 2**40, *range(22, 40)]
    for name in "ab":
        pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), tmp_path / f"{name}.parquet", row_group_size=2)
        values = list(range(40))
    fields = [ProjectedField(name="id", dtype="i32")]
    stream = open_stream(stream_config(stage_of([tmp_path], batch_size=4), fields=fields))
    assert ids_of([stream.next() for _ in range(5)]) == list(range(20))
    with pytest.raises(ValueRefusedError) as caught:
        stream.next()
    error = caught.value
    assert (error.shard, error.row_group, error.row, error.value) == (str(tmp_path / "a.parquet"), 10, 21, str(2**40))
