"""INT96 timestamps: nanoseconds where they hold them, and never a wrapped one."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td.errors import ValueRefusedError
from o41td.fields import FieldPlan
from o41td.workers.footer import read_footer
from o41td.workers.parquet import ShardReader
from read_shard import read_shard

SECOND = 10**6
LAST_DAY = 253402214400  # 9999-12-31, in seconds
FITS = [0, 1, -1, 1_700_000_000 * SECOND + 123_456, -9_223_372_036 * SECOND, 9_223_372_036 * SECOND + 854_775]
"""Microseconds; the last two are the first whole second and the last microsecond that nanoseconds hold."""


def write(path, columns, **options):
    """A file of INT96 timestamps."""
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, **options)
    return path


def microseconds(values):
    """A column of timestamps."""
    return pa.array(values, pa.timestamp("us"))


def field(source, shape=(), **more):
    """A field of i64."""
    return FieldPlan(name=source, source=source, dtype="i64", shape=shape, **more)


@pytest.mark.parametrize("max_row_group_bytes", [64 << 20, 8])
def test_timestamps_within_nanoseconds_arrive(tmp_path, max_row_group_bytes):
    """Scalars, nulls, lists and struct members, decoded whole or in slices, are the file's nanoseconds."""
    rows = 50
    columns = {
        "t": microseconds([*FITS, None] * rows),
        "l": pa.array([[value, None] for value in [*FITS, 7]] * rows, pa.list_(pa.timestamp("us"))),
        "s": pa.StructArray.from_arrays([microseconds([*FITS, 7] * rows)], ["t"]),
    }
    path = write(tmp_path / "a.parquet", columns, row_group_size=100)
    fields = [field("t", null=-5), field("l", (3,), null=-5, pad=-6), field("s.t")]
    out = read_shard(path, fields, block_rows=33, max_row_group_bytes=max_row_group_bytes)
    assert out["t"].tolist() == [*(1000 * value for value in FITS), -5] * rows
    assert out["l"].tolist() == [[1000 * value, -5, -6] for value in [*FITS, 7]] * rows
    assert out["s.t"].tolist() == [1000 * value for value in [*FITS, 7]] * rows


@pytest.mark.parametrize("max_row_group_bytes", [64 << 20, 8])
@pytest.mark.parametrize("second", [LAST_DAY, -9_223_372_037, 9_223_372_037, 18_446_744_074])
def test_a_timestamp_beyond_nanoseconds_is_refused(tmp_path, second, max_row_group_bytes):
    """The earliest row that has one is named, whatever column it is in and however it is decoded."""
    dates = [0] * 40
    dates[37] = second * SECOND
    lists = [[0] * (row % 3) for row in range(40)]
    lists[35] = [0, second * SECOND]
    path = write(
        tmp_path / "a.parquet",
        {"t": microseconds(dates), "l": pa.array(lists, pa.list_(pa.timestamp("us"))), "n": range(40)},
        row_group_size=15,
    )
    for fields, row in (([field("t"), field("l", (2,))], 35), ([field("t")], 37)):
        with pytest.raises(ValueRefusedError, match="INT96") as caught:
            read_shard(path, fields, block_rows=4, max_row_group_bytes=max_row_group_bytes)
        error = caught.value
        assert (error.row, error.row_group, error.shard, error.value) == (row, 2, str(path), f"{second} s")
    assert read_shard(path, [field("n")])["n"].tolist() == list(range(40))


def test_small_row_groups_that_are_read_together(tmp_path):
    """Of several row groups in one read each is looked at."""
    dates = [0] * 9
    dates[7] = LAST_DAY * SECOND
    path = str(write(tmp_path / "a.parquet", {"t": microseconds(dates)}, row_group_size=3))
    reader = ShardReader(path, [field("t")])
    assert reader.read_groups([(1, 3), (0, 3)]).num_rows == 6
    with pytest.raises(ValueRefusedError) as caught:
        reader.read_groups([(1, 3), (2, 3)])
    assert caught.value.row == 7
    reader.close()


def test_their_decoding_is_counted_at_what_it_takes(tmp_path):
    """An INT96 value takes twelve bytes until it is eight of nanoseconds."""
    values = microseconds([5] * 1000)
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"t": values}), plain)
    old = write(tmp_path / "old.parquet", {"t": values})
    counted = [read_footer(None, str(path), [field("t")]).decoding_bytes for path in (plain, old)]
    assert int((counted[1] - counted[0])[0]) == 12 * 1000
