"""Rows of a slot, laid down where they belong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from o41td.fields import DTYPES, FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector
from o41td.workers.slot_rows import order_of


def test_the_order_of_places():
    """Places of the first rows are turned round; where one is beyond, or there is none, nothing is."""
    assert order_of(np.array([2, 0, 1])).tolist() == [1, 2, 0]
    assert order_of(np.array([2, 0, 3])) is None
    assert order_of(np.array([], np.int64)) is None


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
