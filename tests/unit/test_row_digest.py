"""Digests of rows by value."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from o41td.writing.row_digest import digest_of, row_hashes

ROWS = [
    {"a": 1, "x": [1, 2, 3], "s": "hi", "d": {"p": [1], "q": None}, "m": True},
    {"a": 2, "x": [], "s": "", "d": None, "m": False},
    {"a": None, "x": None, "s": None, "d": {"p": None, "q": 2}, "m": None},
]


def digest(rows):
    """The digest of dicts."""
    return digest_of(pa.Table.from_pylist(rows).to_batches())


def test_order_and_batches_do_not_matter():
    """Rows in any order, in any batches, have one digest; without one of them, another."""
    rows = [{"id": i, "x": list(range(i % 7)), "s": "x" * (i % 5)} for i in range(500)]
    table = pa.Table.from_pylist(rows)
    shuffled = list(rows)
    random.Random(1).shuffle(shuffled)
    assert digest(shuffled) == digest(rows) == digest_of(table.to_batches(max_chunksize=7))
    assert digest(rows[1:]) != digest(rows)
    assert digest([*rows, rows[0]]) != digest(rows)


def test_types_that_hold_the_same_values():
    """Values count, not types: width of numbers, kind of list, dictionaries and column order are no part."""
    table = pa.Table.from_pylist(ROWS)
    other = pa.table(
        {
            "m": table["m"],
            "x": table["x"].cast(pa.large_list(pa.uint8())),
            "d": table["d"],
            "s": table["s"].dictionary_encode(),
            "a": table["a"].cast(pa.float64()),
        }
    )
    assert digest_of(other.to_batches()) == digest(ROWS)
    sized = pa.Table.from_arrays([pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))], ["x"])
    assert digest_of(sized.to_batches()) == digest([{"x": [1.0, 2.0]}, {"x": [3.0, 4.0]}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": 1}, {"x": 2}),
        ({"x": 1}, {"y": 1}),
        ({"x": 2**53}, {"x": 2**53 + 1}),
        ({"x": -(2**63)}, {"x": -(2**63) + 1}),
        ({"x": 0}, {"x": None}),
        ({"x": 0.0}, {"x": -0.0}),
        ({"x": ""}, {"x": None}),
        ({"x": [0]}, {"x": [0, 0]}),
        ({"x": []}, {"x": None}),
        ({"x": [0]}, {"x": [None]}),
        ({"x": [1, 2]}, {"x": [2, 1]}),
        ({"x": [[1], [2]]}, {"x": [[1, 2], []]}),
        ({"x": {"a": 1, "b": 2}}, {"x": {"a": 2, "b": 1}}),
        ({"x": b"a\0"}, {"x": b"a"}),
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, {"x": datetime(2026, 1, 2, tzinfo=UTC)}),
        ({"x": Decimal("1.10")}, {"x": Decimal("1.20")}),
        ({"x": list(range(200))}, {"x": [*range(199), 0]}),
    ],
    ids=str,
)
def test_values_that_differ(one, other):
    """Rows that differ in anything have different hashes."""
    assert digest([one]) != digest([other])


def test_long_and_short_lists_agree():
    """A list has the same hash beside lists of its own length, beside short ones, and beside long ones."""
    target = list(range(100))
    for others in ([target], [[1]] * 500, [[1] * 300] * 3):
        batch = pa.record_batch([pa.array([*others, target])], ["x"])
        assert row_hashes(batch)[-1] == row_hashes(pa.record_batch([pa.array([target])], ["x"]))[0]
