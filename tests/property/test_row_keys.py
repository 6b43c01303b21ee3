"""Keys of rows against the rows themselves, as Python values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from o41td.nodes.row_keys import row_keys

SCHEMA = pa.schema(
    {
        "number": pa.int16(),
        "text": pa.string(),
        "data": pa.binary(),
        "tokens": pa.list_(pa.int32()),
        "deep": pa.list_(pa.list_(pa.int8())),
        "pair": pa.struct({"a": pa.bool_(), "b": pa.float32()}),
    }
)
SMALL = st.none() | st.integers(0, 2)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": SMALL,
            "text": st.none() | st.text("ab", max_size=2),
            "data": st.none() | st.binary(max_size=1),
            "tokens": st.none() | st.lists(SMALL, max_size=2),
            "deep": st.none() | st.lists(st.none() | st.lists(SMALL, max_size=1), max_size=2),
            "pair": st.none() | st.fixed_dictionaries({"a": st.none() | st.booleans(), "b": st.just(0.5)}),
        }
    ),
    max_size=6,
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The rows in one batch."""
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(rows=ROWS, others=ROWS)
@settings(max_examples=200, deadline=None)
def test_rows_have_the_same_key_if_and_only_if_they_are_the_same(rows, others) -> None:
    """Whatever else is in their batch, and wherever they lie in it."""
    both = [*others, *rows]
    keys = row_keys(batch_of(both), "prefix")
    assert row_keys(batch_of(both).slice(len(others)), "prefix") == keys[len(others) :]
    assert row_keys(batch_of(rows), "prefix") == keys[len(others) :]
    assert [[a == b for b in both] for a in both] == [[a == b for b in keys] for a in keys]
    assert not set(row_keys(batch_of(both), "other")) & set(keys)
