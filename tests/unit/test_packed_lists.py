"""Lists of numbers packed into binary values, and back."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from o41td.errors import SchemaError
from o41td.fields import FieldPlan
from o41td.projection import PACKED_KEY, PlanMemory, plan_projection
from o41td.workers.parts_projector import PartsProjector
from o41td.workers.project import Projector
from o41td.writing.packed_lists import ListFacts, list_facts_of, pack_lists, packed_dtype_of, unpack_lists, unpacked

RAGGED = [[9, 9], [1, 2, 300], None, [], [7]]
TYPES = [
    pa.list_(pa.int64()),
    pa.large_list(pa.int32()),
    pa.list_view(pa.uint16()),
    pa.large_list_view(pa.int64()),
]


@pytest.mark.parametrize("list_type", TYPES, ids=str)
def test_ragged_lists_come_back_from_a_slice(list_type):
    """Lists of every kind, sliced, with nulls and empty lists among them, are the same after packing and unpacking."""
    lists = pa.array(RAGGED, list_type)[1:]
    facts = ListFacts.of(lists)
    dtype = packed_dtype_of(list_type, facts)
    packed = pack_lists(lists, dtype, facts.length)
    assert dtype == "u16"  # 300 needs nine bits
    assert packed.type == pa.binary()
    assert packed.to_pylist() == [b"\x01\x00\x02\x00\x2c\x01", None, b"", b"\x07\x00"]
    assert unpack_lists(packed, dtype).to_pylist() == RAGGED[1:]
    assert unpack_lists(packed[1:3], dtype).to_pylist() == [None, []]


def test_lists_of_one_length_become_fixed_size_values():
    """Where all lists are as long, a value has a fixed size, whether Arrow's lists had one or not."""
    for list_type in (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)):
        lists = pa.array([[1, 2], [3, -4]], list_type)
        facts = ListFacts.of(lists)
        packed = pack_lists(lists, packed_dtype_of(list_type, facts), facts.length)
        assert packed.type == pa.binary(2)
        assert packed.to_pylist() == [b"\x01\x02", b"\x03\xfc"]


@pytest.mark.parametrize(
    ("item", "values", "expected"),
    [
        (pa.int64(), [0, 255], "u8"),
        (pa.int64(), [-1, 127], "i8"),
        (pa.int64(), [-1, 128], "i16"),
        (pa.int64(), [0, 65536], "u32"),
        (pa.int64(), [-(2**63)], "i64"),
        (pa.uint64(), [2**64 - 1], "u64"),
        (pa.int8(), [0, 1], "i8"),
        (pa.float32(), [1.0], "f32"),
        (pa.float16(), [np.float16(1)], "f16"),
        (pa.float64(), [1.0], "f64"),
        (pa.bool_(), [True], "bits"),
        (pa.int32(), [], "i32"),
    ],
)
def test_the_narrowest_dtype_that_fits(item, values, expected):
    """Integers are packed in the first dtype of fewer bytes that holds them all, everything else in its own."""
    lists = pa.array([values], pa.list_(item))
    assert packed_dtype_of(lists.type, ListFacts.of(lists)) == expected


def test_what_is_not_packed():
    """Lists with a null item, lists of lists and lists of text stay what they are."""
    for lists in (pa.array([[1, None]]), pa.array([[[1]]]), pa.array([["a"]])):
        facts = list_facts_of([pa.record_batch([lists], ["x"])]).get("x")
        assert facts is None or packed_dtype_of(lists.type, facts) is None


def test_facts_of_batches_join():
    """Facts of several batches are those of all rows: bounds widen, lengths must agree, empty ones add nothing."""
    batches = [pa.record_batch([pa.array(rows, pa.list_(pa.int64()))], ["x"]) for rows in ([[1, 2]], [], [[-5, 900]])]
    assert list_facts_of(batches)["x"] == ListFacts(low=-5, high=900, length=2, has_null_items=False, rows=2)
    batches.append(pa.record_batch([pa.array([[1]], pa.list_(pa.int64()))], ["x"]))
    assert list_facts_of(batches)["x"].length is None


def test_bools_become_bits():
    """Behind a byte that says how many bits are left over, the lowest bit first; a null has no bytes; and back."""
    rows = [[True, False, True], None, [], [True] * 9]
    lists = pa.array([[False], *rows])[1:]
    packed = pack_lists(lists, "bits", ListFacts.of(lists).length)
    assert packed.to_pylist() == [b"\x05\x05", None, b"\x00", b"\x07\xff\x01"]
    assert unpack_lists(packed, "bits").to_pylist() == rows
    assert unpack_lists(packed[1:3], "bits").to_pylist() == rows[1:3]
    same = pack_lists(pa.array([[True] * 10, [False] * 10]), "bits", 10)
    assert same.type == pa.binary(3)
    assert same.to_pylist() == [b"\x06\xff\x03", b"\x06\x00\x00"]


def packed_table(rows, dtype="u16"):
    """A table of one packed column, as the writer lays it out."""
    lists = pa.array(rows, pa.list_(pa.int64()))
    packed = pack_lists(lists, dtype, None)
    return pa.table([packed], schema=pa.schema([pa.field("x", packed.type, metadata={PACKED_KEY: dtype.encode()})]))


def test_a_packed_column_is_read_as_the_lists_it_was():
    """A field that knows nothing of packing gets the lists cut and padded, whatever dtype each shard packed them in."""
    field = FieldPlan(name="x", source="x", dtype="i32", shape=(3,), pad=-1, null=0)
    plans = PlanMemory()
    for dtype in ("u16", "i64"):
        table = packed_table([[1, 2, 300, 4], [], [7], None], dtype)
        out = {"x": np.empty((4, 3), np.int32)}
        Projector(plans.plan_of(table.schema, [field])).write(table, out)
        assert out["x"].tolist() == [[1, 2, 300], [-1, -1, -1], [7, -1, -1], [0, 0, 0]]


@pytest.mark.parametrize(("dtype", "shape"), [("bool", (40,)), ("i32", (70,)), ("bool", (5, 4))])
@pytest.mark.parametrize("longest", [None, 60, 300_000])
def test_packed_bits_are_read_as_the_bools_they_were(dtype, shape, longest):
    """Cut and padded, ragged or all as long, nulls among them or not, and many more than are made bools at a time."""
    random = np.random.default_rng(1)
    lengths = [60] * 30 if longest is None else random.integers(0, longest // 4, 30) * 4
    rows: list[list[bool] | None] = [(random.random(length) < 0.5).tolist() for length in lengths]
    if longest == 60:
        rows[7] = None
    field = FieldPlan(name="x", source="x", dtype=dtype, shape=shape, pad=1, null=0)
    width = int(np.prod(shape))
    expected = [[0] * width if row is None else (row + [True] * width)[:width] for row in rows]
    lists = pa.array(rows, pa.list_(pa.bool_()))
    packed = pack_lists(lists, "bits", ListFacts.of(lists).length)
    table = pa.table([packed], schema=pa.schema([pa.field("x", packed.type, metadata={PACKED_KEY: b"bits"})]))
    projector = Projector(plan_projection(table.schema, [field]))
    places = random.permutation(30)
    out = np.empty((30, *shape), field.numpy_dtype)
    projector.write(table, {"x": out}, places=places)
    assert (out[places].reshape(30, width) == np.array(expected)).all()
    out = np.empty((11, *shape), field.numpy_dtype)
    projector.write(table.slice(5, 11), {"x": out})
    assert (out.reshape(11, width) == np.array(expected[5:16])).all()


def test_damaged_bits_are_refused():
    """Values without a first byte, or with one that cannot be, are refused; the rows beside them are written."""
    packed = pa.array([b"\x05\x05", b"", b"\x08\xff", b"\x01", b"\x07\x01"])
    schema = pa.schema([pa.field("x", packed.type, metadata={PACKED_KEY: b"bits"})])
    field = FieldPlan(name="x", source="x", dtype="bool", shape=(3,))
    out = np.empty((5, 3), np.bool_)
    refused = Projector(plan_projection(schema, [field])).write_fitting(pa.table([packed], schema=schema), {"x": out})
    assert refused is not None
    assert refused.rows.tolist() == [1, 2, 3]
    assert "no packed bits" in str(refused.error)
    assert out[[0, 4]].tolist() == [[True, False, True], [True, False, False]]
    with pytest.raises(ValueError, match="no packed bits"):
        unpack_lists(packed, "bits")


def test_parts_that_pack_different_dtypes():
    """Columns that are of one type to Arrow are read part by part as what each part packs."""
    rows = SimpleNamespace(parts=[(2, [packed_table([[1], [2]], "u16")]), (1, [packed_table([[70000]], "i32")])])
    field = FieldPlan(name="x", source="x", dtype="i32", shape=(1,))
    out = {"x": np.empty((3, 1), np.int32)}
    assert PartsProjector([[field]]).write_fitting(rows, out) is None
    assert out["x"].tolist() == [[1], [2], [70000]]


def test_a_config_that_says_another_packing_is_refused():
    """A `source_dtype` that is not what the shard says, and a scalar field, are refused by name."""
    schema = packed_table([[1]]).schema
    with pytest.raises(SchemaError, match="packed as u16, and source_dtype says i32"):
        plan_projection(schema, [FieldPlan(name="x", source="x", dtype="i32", shape=(1,), source_dtype="i32")])
    with pytest.raises(SchemaError, match="holds lists, but field 'x' is a scalar"):
        plan_projection(schema, [FieldPlan(name="x", source="x", dtype="i32")])


def test_a_batch_unpacks_whole():
    """`unpacked` gives back every packed column as lists and leaves the others as they are."""
    table = packed_table([[1, 2], None]).append_column("n", pa.array([5, 6]))
    (batch,) = table.to_batches()
    assert unpacked(batch).to_pylist() == [{"x": [1, 2], "n": 5}, {"x": None, "n": 6}]
