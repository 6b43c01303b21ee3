"""Rows of a slot, laid down where they belong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from o41td.fields import DTYPES, FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector
from o41td.workers.slot_rows import Placement, SlotRows


def turned(*places):
    """What is known of the order of rows that go to some places, once these were turned round."""
    placement = Placement(places=np.array(places, np.int64))
    assert placement.order is None
    placement.turn_round()
    return None if placement.order is None else placement.order.tolist()


def test_places_are_turned_round():
    """Places of the first rows are; where one is beyond, or there is none, nothing is."""
    assert turned(2, 0, 1) == [1, 2, 0]
    assert turned(2, 0, 3) is None
    assert turned() is None


def test_a_placement_by_its_order():
    """Rows 2, 0, 3, 1 go to places 0 to 3; a part of them has places alone, all of them are the placement itself."""
    placement = Placement(order=np.array([2, 0, 3, 1]))
    assert placement[0:4] is placement[:] is placement
    part = placement[1:3]
    assert (len(placement), len(part), part.order) == (4, 2, None)
    assert (placement.places.tolist(), part.places.tolist()) == ([1, 3, 0, 2], [3, 0])
    assert placement[np.array([3, 0])].places.tolist() == [2, 1]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (512,), (600,)])
@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_rows_are_put_where_the_placement_says(shape, dtype):
    """Of the slot's dtype or another, small or large, said either way round, all at once and in parts, or one value."""
    random = np.random.default_rng(3)
    places = random.permutation(30)
    values = random.integers(-99, 99, (30, *shape)).astype("i4")
    for placement in (Placement(places=places), Placement(order=np.argsort(places))):
        slot = np.full((34, *shape), 7, dtype)
        rows = SlotRows(slot, placement)
        rows.put(values)
        assert (slot[places] == values).all()
        rows.part(0, 11).put(values[11:22])
        rows.part(11, 30).put(values[11:])
        assert (slot[places[:11]] == values[11:22]).all()
        assert (slot[places[11:]] == values[11:]).all()
        with rows.side_by_side() as lent:
            lent[...] = values
        assert (slot[places] == values).all()
        assert (slot[30:] == 7).all()
        rows.put(5)
        assert (slot[:30] == 5).all()


@pytest.mark.parametrize("beyond", [0, 5])
def test_many_scalar_fields_go_where_they_belong(beyond):
    """Of every dtype, in one chunk or two, whether the rows are the slot's first or leave places free."""
    random = np.random.default_rng(2)
    fields = [FieldPlan(name=f"{dtype}{i}", source="x", dtype=dtype) for dtype in DTYPES for i in range(2)]
    values = random.integers(0, 2, 40)
    for parts in ([values], [values[:13], values[13:]]):
        for kind in (pa.int64(), pa.int32(), pa.float32(), pa.bool_()):
            column = pa.chunked_array([pa.array(part).cast(kind) for part in parts])
            table = pa.table({"x": column})
            out = {field.name: np.full(45, 9, field.numpy_dtype) for field in fields}
            places = random.permutation(40 + beyond)[:40]
            Projector(plan_projection(table.schema, fields)).write(table, out, places=places)
            for name, array in out.items():
                assert (array[places] == values).all(), (name, kind)
                free = np.setdiff1d(np.arange(45), places)
                assert (array[free] == np.array(9, array.dtype)).all()
