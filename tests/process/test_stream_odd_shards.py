"""An odd file of the public collection as the second of three shards: its rows, or one error by name."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import CorruptDataError, O41Error, ProjectedField, SchemaError, open_batch_stream
from stream_reference import file_source, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

ROWS = 5
REPLACING = {"on_bad_data": "replace", "bad_data_budget": 0.9}


@pytest.fixture
def three_shards(tmp_path, parquet_testing):
    """Writes two good shards around a file of the collection; all rows of them hold 1, in lists or not."""

    def written(name, column, *, length=None):
        one = pa.array([[1] * length] * ROWS if length else [1] * ROWS, pa.list_(pa.int64()) if length else pa.int64())
        for part in ("a", "c"):
            pq.write_table(pa.table({column: one}), tmp_path / f"{part}.parquet")
        return [str(tmp_path / "a.parquet"), os.fspath(parquet_testing / name), str(tmp_path / "c.parquet")]

    return written


def config_of(shards, column, dtype, *, length=None, **keys):
    """One field of the shards, a batch for each good one and for as much of the odd one."""
    source = file_source(shards)
    source = source.model_copy(update={"encoding": "parquet"})
    field = ProjectedField(name="x", source=column, dtype=dtype, length=length, null=-9)
    return stream_config(stage_of(source, batch_size=ROWS), fields=[field], **keys)


@pytest.mark.parametrize(
    ("name", "column", "dtype", "length", "rows"),
    [
        ("data/int64_decimal.parquet", "value", "f64", None, [float(value) for value in range(1, 25)]),
        (
            "bad_data/ARROW-GH-41321.parquet", "list_int32", "i32", 3,
            [[0, 0, 0], [-9, 0, 0], [-9, -9, -9], [-9, 4, 5], [-9, 7, 8]],
        ),
        ("data/column_chunk_key_value_metadata.parquet", "column1", "i64", None, []),
    ],
)  # fmt: skip
def test_an_odd_shard_that_can_be_read(three_shards, open_stream, name, column, dtype, length, rows):
    """Decimals, lists of a damaged file's good column, and a shard without rows stand between their neighbours."""
    shards = three_shards(name, column, length=length)
    if dtype == "f64":
        pq.write_table(pa.table({column: pa.array([1.0] * ROWS)}), shards[0])
        pq.write_table(pa.table({column: pa.array([1.0] * ROWS)}), shards[2])
    stream = open_stream(config_of(shards, column, dtype, length=length))
    one = [1] * length if length else 1
    got = [row for batch in stream for row in batch["x"].tolist()]
    assert got == [one] * ROWS + rows + [one] * ROWS


def test_a_damaged_row_group_comes_behind_the_rows_before_it(three_shards, open_stream):
    """L30: the first shard's rows arrive, then one error by name; with others in their place all other rows do."""
    shards = three_shards("bad_data/ARROW-GH-41321.parquet", "int64")
    stream = open_stream(config_of(shards, "int64", "i64"))
    assert stream.next()["x"].tolist() == [1] * ROWS
    for _ in range(2):
        with pytest.raises(CorruptDataError) as caught:
            stream.next()
        assert (caught.value.shard, caught.value.row_group) == (shards[1], 0)
    stream.close()
    quarantine = os.path.join(os.path.dirname(shards[0]), "bad.jsonl")
    replacing = open_stream(config_of(shards, "int64", "i64", quarantine_file=quarantine, **REPLACING))
    got = [row for batch in replacing for row in batch["x"].tolist()]
    good = [10**11, 2 * 10**11]  # of the file's row groups, of 3 and 2 rows, the first is damaged
    assert got[:ROWS] + got[ROWS + 3 :] == [1] * ROWS + good + [1] * ROWS
    assert set(got[ROWS : ROWS + 3]) <= {1, *good}
    assert replacing.stats()["bad_rows"] == 3


@pytest.mark.parametrize(
    ("name", "column", "error", "why"),
    [
        ("bad_data/PARQUET-1481.parquet", "x", CorruptDataError, "UNKNOWN"),
        ("data/encrypt_columns_plaintext_footer.parquet.encrypted", "float_field", CorruptDataError, "encrypted"),
        ("data/unknown-logical-type.parquet", "column with unknown type", SchemaError, "source_dtype"),
    ],
)
def test_what_is_wrong_with_a_footer_is_refused_at_open(three_shards, name, column, error, why):
    """Unreadable, encrypted and unfit shards are one error by name even where others might replace them."""
    shards = three_shards(name, column)
    with pytest.raises(O41Error, match=why) as caught:
        open_batch_stream(config_of(shards, column, "i64", **REPLACING))
    assert isinstance(caught.value, error)
    assert caught.value.shard == shards[1]
