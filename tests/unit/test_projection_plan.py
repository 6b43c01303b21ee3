"""Which columns a field reads, and which shards are refused before anything is read."""

import pyarrow as pa
import pytest

from o41td.errors import SchemaError
from o41td.fields import FieldPlan
from o41td.projection import plan_projection


def field(source, dtype="i64", shape=(), **more):
    """A field plan named f."""
    return FieldPlan(name="f", source=source, dtype=dtype, shape=shape, **more)


NESTED = pa.schema(
    [
        ("s", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.list_(pa.int16())), ("d.e", pa.int8())]))])),
        ("s.a", pa.float64()),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("x", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("source", "dtype", "shape", "leaf", "path"),
    [
        ("s.a", "f64", (), 3, ()),
        ("s.b.c", "i32", (4,), 1, ("b", "c")),
        ("s.b.d.e", "i64", (), 2, ("b", "d.e")),
        ("x", "i64", (), 6, ()),
    ],
)
def test_exact_name_first_then_path(source, dtype, shape, leaf, path):
    """A flat column named like a path wins over it; leaves count depth-first, a map's key and value as two."""
    plan = plan_projection(NESTED, [field(source, dtype, shape)])
    assert plan.column_indices == (leaf,)
    assert plan.fields[0].path == path
    assert plan.num_leaves == 7


def test_doubled_name_is_ambiguous():
    """A name that stands twice is refused; another column of that shard is not."""
    schema = pa.schema([("x", pa.int64()), ("x", pa.int64()), ("y", pa.int64())])
    with pytest.raises(SchemaError, match="'x' is ambiguous"):
        plan_projection(schema, [field("x")])
    assert plan_projection(schema, [field("y")]).column_indices == (2,)


def test_a_scalar_column_in_a_shaped_field_says_what_to_leave_out():
    """One value a row fills no axis: the error says so, and speaks of no lists."""
    schema = pa.schema([("c", pa.int64())])
    with pytest.raises(SchemaError, match="leave length and shape out") as caught:
        plan_projection(schema, [field("c", "i64", (4,))])
    assert "list levels" not in str(caught.value)


def test_all_problems_in_one_error():
    """One error names every column that does not fit, its type and what is accepted."""
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("text", pa.string()), ("when", pa.timestamp("us"))])
    fields = [field("input_idz", "i32", (4,)), field("text"), field("when", "f64"), field("input_ids")]
    with pytest.raises(SchemaError) as caught:
        plan_projection(schema, fields, source="web", shard="a.parquet")
    text = str(caught.value)
    for part in (
        "4 columns",
        "did you mean 'input_ids'",
        "'text' has type string",
        "timestamp[us]",
        "give the field a length",
    ):
        assert part in text
    assert (caught.value.source, caught.value.shard, caught.value.column) == ("web", "a.parquet", "input_idz")


@pytest.mark.parametrize(
    ("arrow_type", "plan"),
    [
        (pa.string(), field("c")),
        (pa.list_(pa.string()), field("c", shape=(2,))),
        (pa.dictionary(pa.int8(), pa.string()), field("c")),
        (pa.map_(pa.string(), pa.int32()), field("c", shape=(2,))),
        (pa.list_(pa.struct([("a", pa.int32())])), field("c", shape=(2,))),
        (pa.list_(pa.list_(pa.int32())), field("c", shape=(2,))),
        (pa.list_(pa.int32()), field("c")),
        (pa.int32(), field("c", shape=(2,))),
        (pa.list_(pa.int32(), 5), field("c", shape=(2, 2))),
        (pa.decimal128(4, 2), field("c", "i64")),
        (pa.date32(), field("c", "i32")),
        (pa.binary(), field("c")),
        (pa.int32(), field("c", source_dtype="i32")),
        (pa.month_day_nano_interval(), field("c")),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]), field("c", "f32", (2, 3))),
        (pa.struct([("a", pa.int32())]), field("c")),
        (pa.struct([("a", pa.int32())]), field("c.b")),
        (pa.int32(), field("c.b")),
    ],
)
def test_refused_types(arrow_type, plan):
    """A type that the field cannot take is refused, and named."""
    with pytest.raises(SchemaError, match="'c"):
        plan_projection(pa.schema([("c", arrow_type)]), [plan])


def test_nullability_order_and_metadata_do_not_matter():
    """Shards that differ in these alone are of one schema."""
    one = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())], metadata={"k": "v"})
    other = pa.schema([pa.field("b", pa.int32()), pa.field("a", pa.int32())])
    assert plan_projection(one, [field("a")]).column_indices == (0,)
    assert plan_projection(other, [field("a")]).column_indices == (1,)


def test_a_column_that_only_the_folders_name_has():
    """A partition's value stands in the path: the refusal says so, and of which folder."""
    schema = pa.schema([("x", pa.int64())])
    with pytest.raises(SchemaError, match=r"'year' is missing.*its folder says year=2024"):
        plan_projection(schema, [field("year")], shard="/data/year=2024/month=1/a.parquet")
    with pytest.raises(SchemaError, match="'yea' is missing") as caught:
        plan_projection(schema, [field("yea")], shard="/data/year=2024/a.parquet")
    assert "folder" not in str(caught.value)
