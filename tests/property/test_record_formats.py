"""The same records in three encodings are the same rows, for any fields, values, slices and order of slices."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import record_writer
from o41td.errors import ValueRefusedError
from o41td.fields import FieldPlan
from o41td.workers.reader_pool import ReaderPool

I64 = st.integers(-(2**63), 2**63 - 1)
NEAR = st.sampled_from([0, 1, -1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1])
F64 = st.floats(allow_nan=False, allow_infinity=False)
SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.int64())),
        ("long", pa.list_(pa.float64())),
        ("deep", pa.list_(pa.list_(pa.float64()))),
        ("box", pa.struct([("inner", pa.int64())])),
        ("text", pa.string()),
    ]
)
RECORD = st.fixed_dictionaries(
    {
        "whole": st.none() | NEAR | I64,
        "real": st.none() | F64,
        "flag": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | NEAR | I64, max_size=6),
        "long": st.lists(st.none() | F64 | st.just(2.0**60), min_size=16, max_size=20)
        | st.lists(F64, min_size=16, max_size=20),
        "deep": st.none() | st.lists(st.none() | st.lists(F64, max_size=3), max_size=3),
        "box": st.none() | st.fixed_dictionaries({"inner": st.none() | NEAR}),
        "text": st.none() | st.text(max_size=5),
    }
)


def field(name: str, source: str, dtype: str, *shape: int, **keys: Any) -> FieldPlan:
    """A field of this name."""
    return FieldPlan(name=name, source=source, dtype=dtype, shape=shape, **keys)


LENIENT = [
    field("whole", "whole", "i64", null=-7),
    field("whole_f64", "whole", "f64", null=0.5, exact=False),
    field("whole_f32", "whole", "f32", null=0.5, exact=False),
    field("real", "real", "f64", null=-1.0),
    field("flag", "flag", "bool", null=True),
    field("flag_i32", "flag", "i32", null=2),
    field("list", "list", "i64", 4, pad=3, null=5),
    field("list_f32", "list", "f32", 2, null=0.0, exact=False),
    field("long", "long", "f64", 18, pad=0.5, null=0.125),
    field("deep", "deep", "f64", 2, 2, pad=0.25, null=0.75),
    field("inner", "box.inner", "i64", null=9),
]
STRICT = [
    field("whole", "whole", "i32", null=-7),
    field("whole_f32", "whole", "f32", null=0.5),
    field("list", "list", "i32", 3, null=1),
    field("real", "real", "f32", null=0.0),
    field("long", "long", "i64", 18, null=0),
    field("inner", "box.inner", "f64", null=9.0),
]


@st.composite
def slices(draw: st.DrawFn, num_rows: int) -> list[tuple[int, int]]:
    """Some ranges of rows, in any order."""
    ranges = []
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, num_rows - 1))
        ranges.append((start, draw(st.integers(start + 1, num_rows))))
    return ranges


def what_comes(
    pool: ReaderPool, path: Path, encoding: str, fields: list[FieldPlan], rows: tuple[int, int], num_rows: int
) -> Any:
    """The bytes of rows [start, stop) by field, or the row and column that is refused."""
    start, stop = rows
    out = {item.name: np.zeros((stop - start, *item.shape), item.numpy_dtype) for item in fields}
    reader = pool.reader(0, str(path), fields, encoding=encoding)
    try:
        table = reader.read_rows(0, start, stop, group_rows=num_rows)
        reader.projector.write(table, out, row_offset_in_shard=start)
    except ValueRefusedError as error:
        return error.row
    return {name: array.tobytes() for name, array in out.items()}


@settings(max_examples=25, deadline=None)
@given(records=st.lists(RECORD, min_size=1, max_size=12), data=st.data())
def test_three_encodings_give_the_same_rows(records: list[dict[str, Any]], data: st.DataObject) -> None:
    """Values are the same bytes, and where one is refused the same record is named."""
    ranges = data.draw(slices(len(records)))
    with tempfile.TemporaryDirectory() as folder:
        paths = record_writer.write_records(Path(folder), "s", records, SCHEMA)
        for fields in (LENIENT, STRICT):
            come = {}
            for encoding, path in paths.items():
                pool = ReaderPool()
                come[encoding] = [what_comes(pool, path, encoding, fields, rows, len(records)) for rows in ranges]
                pool.close()
            assert come["jsonl.gz"] == come["parquet"]
            assert come["msgpack.zstf"] == come["parquet"]
