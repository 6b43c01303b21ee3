"""Field plans and fill values."""

import math

import msgpack
import numpy as np
import pytest

from o41td.fields import DTYPES, SOURCE_DTYPES, FieldPlan, field_bytes, fill_value_of, value_bytes


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [("i32", (), 4), ("i64", (3,), 24), ("f32", (2, 3), 24), ("f64", (), 8), ("bool", (7,), 7)],
)
def test_field_bytes(dtype, shape, expected):
    """A row's bytes are the item's times the shape's product."""
    assert field_bytes(FieldPlan(name="x", source="x", dtype=dtype, shape=shape)) == expected


def test_a_plan_crosses_a_socket():
    """A record gives an equal plan, NaN pads included."""
    plan = FieldPlan(name="x", source="a.b", dtype="f32", shape=(2, 3), pad=math.inf, null=0.5, source_dtype="f16")
    assert FieldPlan.from_record(msgpack.unpackb(msgpack.packb(plan.to_record()))) == plan


def test_dtypes_are_little_endian():
    """Every dtype has the byte order that the arena and packed columns have."""
    assert [value_bytes(name) for name in DTYPES] == [4, 8, 4, 8, 1]
    for name, dtype in (DTYPES | SOURCE_DTYPES).items():
        assert np.dtype(dtype) == np.dtype(dtype).newbyteorder("<")
        assert np.dtype(dtype).str == dtype
        assert np.dtype(dtype).itemsize == value_bytes(name)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2**31 - 1, "i32", 2**31 - 1),
        (-(2**31), "i32", -(2**31)),
        (-(2**63), "i64", -(2**63)),
        (3.0, "i32", 3),
        (np.int64(7), "i32", 7),
        (0, "bool", False),
        (1, "bool", True),
        (2**24, "f32", float(2**24)),
        (0.1, "f32", 0.10000000149011612),
        (0.1, "f64", 0.1),
        ("-inf", "f32", -math.inf),
        (math.inf, "f32", math.inf),
        (2**53, "f64", float(2**53)),
    ],
)
def test_fill_values_that_fit(value, dtype, expected):
    """A value that fits comes back in the field's own kind."""
    found = fill_value_of(value, dtype)
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_a_float():
    """NaN may be a pad of a float field, as a float or as text."""
    assert math.isnan(fill_value_of(math.nan, "f32"))
    assert math.isnan(fill_value_of("nan", "f64"))


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (2**31, "i32", "does not fit i32"),
        (2**63, "i64", "does not fit i64"),
        (0.5, "i32", "not an integer"),
        (math.nan, "i64", "not an integer"),
        (math.inf, "i64", "not an integer"),
        (True, "i32", "not a number"),
        (False, "f32", "not a number"),
        ("0", "i32", "not an integer"),
        ("zero", "f32", "not a number"),
        (None, "f32", "not a number"),
        (2, "bool", "not a bool"),
        ("true", "bool", "not a bool"),
        (1e39, "f32", "too large for f32"),
        (10**400, "f64", "too large for f64"),
        (2**24 + 1, "f32", "exactly"),
        (2**53 + 1, "f64", "exactly"),
    ],
)
def test_fill_values_that_do_not_fit(value, dtype, reason):
    """A value that the dtype cannot hold is refused with the reason."""
    with pytest.raises(ValueError, match=reason):
        fill_value_of(value, dtype)
