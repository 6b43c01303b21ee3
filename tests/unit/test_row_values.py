"""Values of single rows, in every encoding."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import DatasetWriter
from o41td.workers.row_values import values_of_rows
from record_writer import ENCODINGS, write_records

RECORDS = [{"id": number, "words": f"row {number}", "tokens": [number, 2 * number]} for number in range(2500)]
SCHEMA = pa.schema({"id": pa.int64(), "words": pa.string(), "tokens": pa.list_(pa.int64())})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_are_shown_in_the_order_asked_for(tmp_path, encoding):
    """Backwards, twice the same, text and lists too; `source` stands for the column that it is an alias of."""
    path = str(write_records(tmp_path, "shard", RECORDS, SCHEMA)[encoding])
    asked = [2499, 0, 1024, 1024, 7]
    shown = values_of_rows(
        [(path, encoding, 0, row) for row in asked], [("words", None), ("numbers", "tokens"), ("id", "gone")]
    )
    assert shown == [{"words": f"row {row}", "numbers": [row, 2 * row], "id": row} for row in asked]


def test_packed_lists_are_shown_as_lists(tmp_path):
    """Numbers, and bools that are packed as bits; a null is null, and an empty list is empty."""
    rows = [{"x": [1, 300], "m": [True, False, True]}, {"x": None, "m": None}, {"x": [], "m": []}]
    shard = DatasetWriter(tmp_path / "m.json").save("train", None, rows, shard_id="0")
    asked = [(str(tmp_path / shard.uri), "parquet", 0, row) for row in range(3)]
    assert values_of_rows(asked, [("x", None), ("m", None)]) == rows


def test_a_flat_name_is_told_from_a_struct_and_odd_values_are_made_plain(tmp_path):
    """`a.b` is the flat column; bytes are base64, NaN is text, dates are text."""
    path = tmp_path / "odd.parquet"
    table = pa.table({"a": [{"b": 1}], "a.b": [2], "raw": [b"\xff"], "x": [float("nan")], "map": [[("k", 1)]]},
                     schema=pa.schema({"a": pa.struct({"b": pa.int64()}), "a.b": pa.int64(), "raw": pa.binary(),
                                       "x": pa.float64(), "map": pa.map_(pa.string(), pa.int64())}))  # fmt: skip
    pq.write_table(table, path)
    columns = [(name, None) for name in ("a", "a.b", "raw", "x", "map")]
    assert values_of_rows([(str(path), "parquet", 0, 0)], columns) == [
        {"a": {"b": 1}, "a.b": 2, "raw": {"base64": "/w=="}, "x": "nan", "map": [["k", 1]]}
    ]
