"""Values into fields: what is delivered, what is refused and how it is named."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from o41td.errors import ValueRefusedError
from o41td.fields import FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector


def project(column, dtype="i64", shape=(), **more):
    """The rows that a column gives a field."""
    table = pa.table({"c": column})
    field = FieldPlan(name="c", source="c", dtype=dtype, shape=shape, **more)
    out = np.full((len(table), *shape), 77 if dtype != "bool" else True, field.numpy_dtype)
    Projector(plan_projection(table.schema, [field])).write(
        table, {"c": out}, row_offset_in_shard=1000, shard="a.parquet"
    )
    return out.tolist()


@pytest.mark.parametrize(
    ("values", "arrow_type", "dtype", "value"),
    [
        ([1, 2**31], pa.int64(), "i32", str(2**31)),
        ([1, 2**63], pa.uint64(), "i64", str(2**63)),
        ([1.0, 1.5], pa.float64(), "i64", "1.5"),
        ([1.0, float("nan")], pa.float32(), "i32", "nan"),
        ([1.0, 2.0**63], pa.float64(), "i64", "9.223372036854775808e+18"),
        ([1.0, 1e300], pa.float64(), "f32", "1e+300"),
        ([1, 2**53 + 1], pa.int64(), "f64", str(2**53 + 1)),
        ([1, 2**24 + 1], pa.int32(), "f32", str(2**24 + 1)),
        ([1, 2], pa.int8(), "bool", "2"),
        ([1.0, float("nan")], pa.float64(), "bool", "nan"),
        ([1, None], pa.int64(), "i64", "null"),
    ],
)
def test_refused_values(values, arrow_type, dtype, value):
    """The first value that does not fit is named with its row, as a scalar and in a list."""
    with pytest.raises(ValueRefusedError) as caught:
        project(pa.array(values, arrow_type), dtype)
    assert (caught.value.row, caught.value.column, caught.value.shard) == (1001, "c", "a.parquet")
    assert float(caught.value.value) == float(value) if value[0] in "19" else caught.value.value == value
    with pytest.raises(ValueRefusedError) as caught:
        project(pa.array([values[:1], values, values], pa.list_(arrow_type)), dtype, (3,))
    assert caught.value.row == 1001


def test_many_values_that_are_looked_at_one_by_one():
    """More items than are looked at at once, and one row of more than that: nulls are filled, the misfit is named."""
    lengths = [7] * 30_000 + [200_000] + [0, 3]
    values = np.arange(sum(lengths)) % 1000
    nulls = values % 10 == 3
    column = pa.ListArray.from_arrays(np.cumsum([0, *lengths]).astype(np.int32), pa.array(values, mask=nulls))
    rows = project(column, "i32", (8,), pad=-1, null=-2)
    expected = [-2 if at % 10 == 3 else at % 1000 for at in range(210_000)]
    assert rows[:30_000] == [[*expected[7 * row : 7 * row + 7], -1] for row in range(30_000)]
    assert rows[30_000] == [*expected[:3], -2, *expected[4:8]]  # 210 000 ends in zeros, as 0 does
    assert rows[30_001:] == [[-1] * 8, [0, 1, 2, *[-1] * 5]]
    values[7 * 29_000 + 4] = 2**40
    column = pa.ListArray.from_arrays(np.cumsum([0, *lengths]).astype(np.int32), pa.array(values, mask=nulls))
    with pytest.raises(ValueRefusedError) as caught:
        project(column, "i32", (8,), null=-2)
    assert (caught.value.row, caught.value.value) == (30_000, str(2**40))


def test_values_that_just_fit():
    """Limits, infinities and NaN pass."""
    assert project(pa.array([2**31 - 1, -(2**31)], pa.int64()), "i32") == [2**31 - 1, -(2**31)]
    assert project(pa.array([2**63 - 1], pa.uint64())) == [2**63 - 1]
    assert project(pa.array([65535], pa.uint16()), "i32") == [65535]
    assert project(pa.array([-(2.0**63), -0.0])) == [-(2**63), 0]
    assert project(pa.array([float("inf"), 3.4e38]), "f32") == [float("inf"), float(np.float32(3.4e38))]
    assert np.isnan(project(pa.array([float("nan")]), "f32")[0])
    assert project(pa.array([2**53, -(2**53), 2**60]), "f64") == [2.0**53, -(2.0**53), 2.0**60]
    assert project(pa.array([2**53 + 1]), "f64", exact=False) == [2.0**53]
    assert project(pa.array([True, False, None]), "f32", null=0.5) == [1.0, 0.0, 0.5]
    assert project(pa.array([2**53 + 1, None]), null=-1) == [2**53 + 1, -1]


def test_values_behind_the_cut_are_not_judged():
    """What truncation leaves out may be null or out of range; a value under a null likewise."""
    assert project(pa.array([[1, 2, 2**40, None], [3]], pa.list_(pa.int64())), "i32", (2,)) == [[1, 2], [3, 0]]
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, 2**40]))])
    assert project(hidden, "i32", null=9) == [5, 9]


def test_hidden_payload_under_null_lists():
    """Items that Arrow keeps under a null list do not show."""
    values = pa.array([1, 2, 2**40, 4, 5])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4, 5], pa.int32()), values, mask=pa.array([False, True, False]))
    assert project(lists, "i32", (3,), null=-1) == [[1, 2, 0], [-1, -1, -1], [5, 0, 0]]
    with pytest.raises(ValueRefusedError, match="the list is null"):
        project(lists, "i32", (3,))


ROWS = [[1, 2], [3, 4], [5, 6], [7, 8]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(ROWS, pa.list_(pa.int32())),
        pa.array(ROWS, pa.large_list(pa.int16())),
        pa.array(ROWS, pa.list_(pa.int64(), 2)),
        pa.array(ROWS, pa.list_view(pa.uint8())),
        pa.ListViewArray.from_arrays(*(pa.array(a, "i4") for a in ([6, 0, 2, 4], [2] * 4, [3, 4, 5, 6, 7, 8, 1, 2]))),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(ROWS)),
        pa.array(ROWS, pa.list_(pa.float32())),
        pa.ListArray.from_arrays([0, 2, 4, 6, 8], pa.array([1, 2, 3, 4, 5, 6, 7, 8]).dictionary_encode()),
        pa.array([np.array(row, "<i8").tobytes() for row in ROWS], pa.large_binary()),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 3), (3, 4)])
def test_every_kind_of_list_gives_the_same(column, start, stop):
    """List, large list, view, fixed size, tensor, dictionary and packed bytes, whole and sliced."""
    packed = "i64" if pa.types.is_large_binary(column.type) else None
    sliced = column.slice(start, stop - start)
    assert project(sliced, "i64", (3,), pad=-1, source_dtype=packed) == [[*row, -1] for row in ROWS[start:stop]]
    assert project(sliced, "i32", (1,), source_dtype=packed) == [[row[0]] for row in ROWS[start:stop]]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 800])
@pytest.mark.parametrize("length", [8, 2000])
def test_lengths_around_the_edge(count, length):
    """Lists of fewer, as many and more items than the field's length."""
    rows = [list(range(count)), [5], list(range(count))]
    expected = [(row + [-3] * length)[:length] for row in rows]
    assert project(pa.array(rows, pa.list_(pa.int32())), "i32", (length,), pad=-3) == expected


def test_shapes():
    """Nested lists cut and pad each axis; a flat list fills row-major and may be ragged in the first axis only."""
    nested = pa.array([[[1, 2, 3], [4]], [], [[5], [6, 7], [8, 9]]], pa.list_(pa.list_(pa.int32())))
    assert project(nested, "i32", (2, 2), pad=-1) == [[[1, 2], [4, -1]], [[-1, -1], [-1, -1]], [[5, -1], [6, 7]]]
    flat = pa.array([[1, 2, 3, 4], [5, 6], [1, 2, 3, 4, 5, 6]])
    assert project(flat, "i32", (2, 2)) == [[[1, 2], [3, 4]], [[5, 6], [0, 0]], [[1, 2], [3, 4]]]
    with pytest.raises(ValueRefusedError, match="3 values"):
        project(pa.array([[1, 2], [1, 2, 3]]), "i32", (2, 2))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(2, 2, 3))
    assert project(tensor, "i64", (2, 3)) == np.arange(12).reshape(2, 2, 3).tolist()
    assert project(tensor[1:], "i64", (1, 4), pad=-1) == [[[6, 7, 8, -1]]]
    assert project(tensor, "i64", (6,)) == np.arange(12).reshape(2, 6).tolist()
    fixed = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int8(), 2), 2))
    assert project(fixed[1:], "i32", (2, 2)) == [[[5, 6], [7, 8]]]


def test_null_typed_columns():
    """A column of type null, and lists of it, follow the null policy."""
    assert project(pa.nulls(2), "i32", null=4) == [4, 4]
    assert project(pa.nulls(2), "i32", (2,), null=4) == [[4, 4]] * 2
    assert project(pa.nulls(1), "i32", (1, 2), null=4) == [[[4, 4]]]
    assert project(pa.array([[], [None]], pa.list_(pa.null())), "i32", (2,), pad=1, null=4) == [[1, 1], [4, 1]]
    assert project(pa.array([[], [None]], pa.list_(pa.null())), "i32", (2, 1), pad=1, null=4) == [
        [[1], [1]],
        [[4], [1]],
    ]
    with pytest.raises(ValueRefusedError, match="null"):
        project(pa.nulls(2), "i32", (2,))


def test_times_are_raw_units():
    """Dates, times, timestamps and durations give the integer that Arrow holds."""
    assert project(pa.array([dt.date(1970, 1, 11)])) == [10]
    assert project(pa.array([dt.date(1970, 1, 2)], pa.date64())) == [86_400_000]
    assert project(pa.array([5], pa.time32("ms"))) == [5]
    assert project(pa.array([7, None], pa.timestamp("ns", "UTC")), null=-1) == [7, -1]
    assert project(pa.array([[3], [4]], pa.list_(pa.duration("s"))), "i64", (1,)) == [[3], [4]]


@pytest.mark.parametrize("make", [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256])
def test_decimals_are_the_nearest_float(make):
    """1.005, which Arrow's own cast gets wrong in the last place, and others, equal the float of their text."""
    texts = ["1.005", "-0.001", "0.000", "99999.999", "123.457"]
    column = pa.array([None, *map(decimal.Decimal, texts)], make(8, 3))
    assert project(column[1:], "f64") == [float(text) for text in texts]


def test_large_decimals_are_the_nearest_float():
    """More digits than a float has still round once."""
    texts = ["12345678901234567890.123456789", "-99999999999999999999999999999.999999999"]
    column = pa.array([decimal.Decimal(text) for text in texts], pa.decimal128(38, 9))
    assert project(column, "f64") == [float(text) for text in texts]


def test_packed_bytes():
    """Packed values of any width; bytes that are no whole number of values are refused, null rows follow the policy."""
    pieces = [np.array([1, 2], "<u2").tobytes(), b"", None, np.array([65535, 3, 4], "<u2").tobytes()]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        column = pa.array(pieces, kind)
        expected = [[1, 2], [9, 9], [-1, -1], [65535, 3]]
        assert project(column, "i32", (2,), pad=9, null=-1, source_dtype="u16") == expected
        assert project(column[1:], "i32", (2,), pad=9, null=-1, source_dtype="u16") == expected[1:]
    with pytest.raises(ValueRefusedError, match="3 bytes are no whole number") as caught:
        project(pa.array([b"ab", b"abc"]), "i32", (2,), source_dtype="u16")
    assert caught.value.row == 1001
    fixed = pa.array([np.float32(1.5).tobytes(), np.float32(-2).tobytes()], pa.binary(4))
    assert project(fixed, "f64", source_dtype="f32") == [1.5, -2.0]
    assert project(fixed[1:], "f64", source_dtype="f32") == [-2.0]
    with pytest.raises(ValueRefusedError, match="packs 2"):
        project(fixed.cast(pa.binary()), "f64", source_dtype="f16")
    with pytest.raises(ValueRefusedError, match="neither 0 nor 1"):
        project(pa.array([b"\x01", b"\x02"]), "i32", source_dtype="bool")


def test_misaligned_packed_bytes():
    """A null row's hidden bytes may put the next row at any byte."""
    data = pa.py_buffer(b"\x01\x00" + b"x" + b"\x02\x00")
    offsets = pa.py_buffer(np.array([0, 2, 3, 5], "<i4"))
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert project(column, "i32", (1,), null=-1, source_dtype="u16") == [[1], [-1], [2]]
    assert project(column[2:], "i32", (1,), source_dtype="u16") == [[2]]


def test_dictionaries_give_values():
    """A dictionary's values come out, never its indices; a null may lie in either."""
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 2], pa.int8()), pa.array([100, 50, None]))
    assert project(column, null=-1) == [50, 100, -1, -1]
    assert project(column[:2]) == [50, 100]


def test_null_structs_are_null_members():
    """A null struct's member is null, whatever lies below it."""
    member = pa.array([1, 2, 3])
    outer = pa.StructArray.from_arrays([member], ["a"], mask=pa.array([False, True, False]))
    table = pa.table({"s": outer})
    field = FieldPlan(name="a", source="s.a", dtype="i64", null=-1)
    out = np.zeros(2, np.int64)
    Projector(plan_projection(table.schema, [field])).write(table.slice(1), {"a": out})
    assert out.tolist() == [-1, 3]


def test_earliest_row_of_all_columns():
    """Of several refused values the earliest row's is named, though its column comes last."""
    table = pa.table({"a": [0, 0, 2**40], "b": pa.chunked_array([[0], [2**41, 0]])})
    fields = [FieldPlan(name=name, source=name, dtype="i32") for name in "ab"]
    out = {name: np.zeros(3, np.int32) for name in "ab"}
    with pytest.raises(ValueRefusedError) as caught:
        Projector(plan_projection(table.schema, fields)).write(table, out)
    assert (caught.value.row, caught.value.column, caught.value.value) == (1, "b", str(2**41))
