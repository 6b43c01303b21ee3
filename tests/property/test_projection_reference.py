"""The projection equals a slow reference over Python values, for any types, nulls, slices and chunks."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from o41td.errors import ValueRefusedError
from o41td.fields import FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector

LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
NUMBERS = {
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**53 + 1, 2**31])),
    pa.uint64(): st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.one_of(st.integers(-2, 2).map(float), st.floats(width=32)),
    pa.float64(): st.one_of(st.integers(-2, 2).map(float), st.floats()),
    pa.bool_(): st.booleans(),
}


class Refused(Exception):
    """The reference refuses a value."""


def reference_value(value, field):
    """One value by the rules, in exact arithmetic."""
    if value is None:
        if field.null is None:
            raise Refused
        return field.null
    if field.dtype == "bool":
        if value not in (0, 1):
            raise Refused
        return bool(value)
    if field.dtype in LIMITS:
        low, high = LIMITS[field.dtype]
        if not math.isfinite(value) or value != int(value) or not low <= value <= high:
            raise Refused
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        rounded = float(field.numpy_dtype.type(value))
    if math.isinf(rounded):
        raise Refused
    if field.exact and isinstance(value, int) and Fraction(rounded) != value:
        raise Refused
    return rounded


def reference_row(value, field, shape, depth):
    """One row by the rules: nested Python lists of the field's shape."""
    if not shape:
        return reference_value(value, field)
    if value is None:
        return filled(reference_value(None, field), shape)
    if depth == 1 and len(shape) > 1:
        inner = math.prod(shape[1:])
        if len(value) % inner:
            raise Refused
        flat = [reference_value(item, field) for item in value[: math.prod(shape)]]
        flat += [field.pad] * (math.prod(shape) - len(flat))
        return np.array(flat, field.numpy_dtype).reshape(shape).tolist()
    rows = [reference_row(item, field, shape[1:], depth - 1) for item in value[: shape[0]]]
    return rows + [filled(field.pad, shape[1:]) for _ in range(shape[0] - len(rows))]


def filled(value, shape):
    """Nested lists of this shape, all of one value."""
    return np.full(shape, value, object).tolist() if shape else value


@st.composite
def columns(draw):
    """A chunked, sliced column, its depth, and a field for it."""
    number = draw(st.sampled_from(sorted(NUMBERS, key=str)))
    depth = draw(st.integers(0, 2))
    shape = (
        tuple(draw(st.lists(st.integers(1, 4), min_size=max(depth, 0), max_size=depth + (depth == 1)))) if depth else ()
    )
    nulls = draw(st.sampled_from([False, False, True]))
    values = st.one_of(st.none(), NUMBERS[number]) if nulls else NUMBERS[number]
    arrow_type = number
    for level in range(depth):
        kind = draw(
            st.sampled_from(["list", "large", "view", "fixed"] if level == depth - 1 else ["list", "large", "fixed"])
        )
        if kind == "fixed":
            size = draw(st.integers(1, 3))
            if level == 0 and len(shape) > depth:
                size *= math.prod(shape[depth:])
            values = st.lists(values, min_size=size, max_size=size)
            arrow_type = pa.list_(arrow_type, size)
        else:
            values = st.lists(values, max_size=5)
            arrow_type = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view}[kind](arrow_type)
        if nulls:
            values = st.one_of(st.none(), values)
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(values, min_size=1, max_size=6))
        array = pa.array(rows, arrow_type)
        if depth == 0 and draw(st.booleans()) and not pa.types.is_float16(number):
            array = array.dictionary_encode()
        chunks.append(array)
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) > 1:
        chunks = [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    column = pa.chunked_array(chunks)
    start = draw(st.integers(0, len(column) - 1))
    column = column.slice(start, draw(st.integers(1, len(column) - start)))
    dtype = draw(st.sampled_from(["i32", "i64", "f32", "f64", "bool"]))
    null = draw(st.sampled_from([None, 1])) if nulls else None
    pad = draw(st.sampled_from([0, 1]))
    cast = {"bool": bool, "f32": float, "f64": float}.get(dtype, int)
    field = FieldPlan(
        name="out",
        source="column",
        dtype=dtype,
        shape=shape,
        pad=cast(pad),
        null=None if null is None else cast(null),
        exact=draw(st.booleans()),
    )
    return column, depth, field


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(columns(), st.booleans(), st.none() | st.randoms(use_true_random=False))
def test_projection_equals_the_reference(case, in_struct, random):
    """Every row equals the reference's, in its own place, or the first that the reference refuses is the one named."""
    column, depth, field = case
    table = pa.table({"column": column})
    if in_struct:
        table = pa.table(
            {"outer": pa.chunked_array([pa.StructArray.from_arrays([c], ["column"]) for c in column.chunks])}
        )
        field = FieldPlan(**{**field.to_record(), "source": "outer.column", "shape": field.shape})
    expected, refused = [], None
    for row, value in enumerate(column.to_pylist()):
        try:
            expected.append(reference_row(value, field, field.shape, depth))
        except Refused:
            refused = row
            break
    out = {"out": np.zeros((len(column) + 1, *field.shape), field.numpy_dtype)}
    projector = Projector(plan_projection(table.schema, [field]))
    if refused is not None:
        with pytest.raises(ValueRefusedError) as caught:
            projector.write(table, out, row_offset_in_shard=100, shard="s.parquet", row_group=3, source="src")
        error = caught.value
        assert (error.row, error.shard, error.row_group, error.source) == (100 + refused, "s.parquet", 3, "src")
        return
    places = list(range(len(column)))
    if random is None:
        projector.write(table, out)
    else:
        random.shuffle(places)
        projector.write(table, out, places=np.array(places, np.int64))
    np.testing.assert_array_equal(
        out["out"][places], np.array(expected, field.numpy_dtype).reshape(len(column), *field.shape)
    )
    assert not out["out"][-1].any(), "rows behind the table are not touched"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=30), min_size=1, max_size=20),
    st.sampled_from([1, 2, 3, 5, 12, 13, 1500]),
    st.sampled_from(["i32", "i64", "bool"]),
    st.randoms(use_true_random=False),
)
def test_ragged_rows_of_any_width(rows, width, dtype, random):
    """Rows shorter and longer than the field, glued or copied, are cut and padded, and lie each in its own place."""
    cast = bool if dtype == "bool" else int
    rows = [[cast(value) for value in row] for row in rows]
    table = pa.table({"c": pa.array(rows, pa.list_(pa.bool_() if dtype == "bool" else pa.int32()))})
    field = FieldPlan(name="c", source="c", dtype=dtype, shape=(width,), pad=cast(1))
    out = np.zeros((len(rows), width), field.numpy_dtype)
    expected = [(row + [cast(1)] * width)[:width] for row in rows]
    projector = Projector(plan_projection(table.schema, [field]))
    projector.write(table, {"c": out})
    assert out.tolist() == expected
    places = random.sample(range(len(rows)), len(rows))
    projector.write(table, {"c": out}, places=np.array(places, np.int64))
    assert out[places].tolist() == expected
