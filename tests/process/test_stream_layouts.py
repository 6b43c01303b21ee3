"""One source whose shards are laid out as different writers do it: the rows are the same whoever wrote them."""

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import ProjectedField, SchemaError, open_batch_stream
from stream_reference import stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

ROWS = 12
TOKENS = 4
FIELDS = (
    ProjectedField(name="id", dtype="i64"),
    ProjectedField(name="tokens", dtype="i32", length=TOKENS, pad=-1, null=-2),
    ProjectedField(name="score", dtype="f64"),
    ProjectedField(name="label", dtype="i32", null=-3),
    ProjectedField(name="pair", source="meta.pair", dtype="i32", shape=(2, 2)),
)


def rows_of(first_id):
    """The rows of a shard, as Python values."""
    return [
        {
            "id": row,
            "tokens": None if row % 5 == 4 else list(range(row, row + row % 6)),
            "score": row / 8,
            "label": None if row % 3 == 0 else row % 7,
            "meta": {"pair": [[row, 1], [2, 3]], "text": f"row {row}"},
            "messages": [{"role": "user", "content": "hello"}],
            "image": {"bytes": b"png", "path": None},
        }
        for row in range(first_id, first_id + ROWS)
    ]


def expected_of(row):
    """A row of the batch, by hand from `rows_of`."""
    tokens = [-2] * TOKENS if row % 5 == 4 else (list(range(row, row + row % 6)) + [-1] * TOKENS)[:TOKENS]
    return row, tokens, row / 8, -3 if row % 3 == 0 else row % 7, [[row, 1], [2, 3]]


def schema_of(**types):
    """The table's schema, with what writers differ in."""
    pair = types.get("pair", pa.list_(pa.list_(pa.int32())))
    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("tokens", types.get("tokens", pa.list_(pa.int32()))),
            ("score", types.get("score", pa.float64())),
            ("label", types.get("label", pa.int64())),
            ("meta", pa.struct([("text", pa.string()), ("pair", pair)])),
            ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ]
    )


def column_of(item, values):
    """A column of these values in the writer's type."""
    if pa.types.is_dictionary(item.type):
        return pa.array(values, item.type.value_type).dictionary_encode()
    if pa.types.is_decimal(item.type):
        values = [Decimal(value) for value in values]
    return pa.array(values, item.type)


OLD_LISTS = {"use_compliant_nested_type": False, "store_schema": False, "version": "1.0"}
HUGGINGFACE = {"huggingface": json.dumps({"info": {"features": {"tokens": {"_type": "Sequence"}}}})}
DELTAS = {"id": "DELTA_BINARY_PACKED", "score": "BYTE_STREAM_SPLIT"}
WRITERS = {
    "part-00000-5c1d.c000.snappy": (schema_of(), {**OLD_LISTS, "compression": "snappy", "flavor": "spark"}),
    "part-00001-parquet-mr": (schema_of(), {**OLD_LISTS, "compression": "gzip", "data_page_size": 64}),
    "part.2.dask": (schema_of(label=pa.float64()), {"compression": "snappy", "row_group_size": 4}),
    "part.3.pandas": (schema_of(label=pa.int32()).with_metadata({"pandas": "{}"}), {"compression": "zstd"}),
    "part.4.polars": (
        schema_of(tokens=pa.large_list(pa.int32()), pair=pa.list_(pa.list_(pa.int32(), 2), 2)),
        {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
    ),
    "part.5.duckdb": (
        schema_of(score=pa.decimal128(18, 3), label=pa.uint8()),
        {"compression": "snappy", "store_schema": False},
    ),
    "part.6.huggingface": (
        schema_of(tokens=pa.list_(pa.int64()), pair=pa.list_(pa.list_(pa.int16()))).with_metadata(HUGGINGFACE),
        {"row_group_size": 5},
    ),
    "part.7.arrow-rs": (schema_of(score=pa.float32()), {"compression": "lz4", "store_schema": False}),
    "part.8.cudf": (
        schema_of(label=pa.dictionary(pa.int32(), pa.int16())),
        {"use_dictionary": False, "column_encoding": DELTAS, "compression": "brotli"},
    ),
    "part.9.iceberg": (
        pa.schema([item.with_metadata({"PARQUET:field_id": str(at)}) for at, item in enumerate(schema_of())][::-1]),
        {"compression": "none", "write_page_checksum": True},
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder partitioned as Hive does, a shard of each writer, and what else writers leave there."""
    root = tmp_path / "events"
    for number, (name, (schema, options)) in enumerate(WRITERS.items()):
        part = root / f"year={2020 + number // 5}"
        part.mkdir(parents=True, exist_ok=True)
        records = rows_of(number * ROWS)
        columns = [column_of(item, [record[item.name] for record in records]) for item in schema]
        fields = [item.with_type(column.type) for item, column in zip(schema, columns, strict=True)]
        table = pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=schema.metadata))
        pq.write_table(table, part / f"{name}.parquet", **options)
        (part / f".{name}.parquet.crc").write_bytes(b"crc")
    (root / "_SUCCESS").touch()
    pq.write_metadata(schema_of(), root / "_common_metadata")
    return root


def test_ten_writers_give_the_same_rows(folder, open_stream):
    """Types, encodings, codecs, list layouts, nullability, order of columns and metadata differ; the rows do not."""
    stream = open_stream(stream_config(stage_of([folder], batch_size=ROWS), fields=FIELDS))
    rows = []
    for batch in stream:
        rows += zip(*(batch[field.name].tolist() for field in FIELDS), strict=True)
    assert rows == [expected_of(row) for row in range(ROWS * len(WRITERS))]


def test_columns_that_are_none_are_refused_by_name(folder):
    """A partition's folder, a list of structs and image bytes are refused at open, all in one error with what to do."""
    fields = [
        ProjectedField(name="year", dtype="i32"),
        ProjectedField(name="role", source="messages", dtype="i32", length=2),
        ProjectedField(name="bytes", source="image.bytes", dtype="i32", length=2),
    ]
    with pytest.raises(SchemaError) as caught:
        open_batch_stream(stream_config(stage_of([folder]), fields=fields))
    text = str(caught.value)
    for part in ("its folder says year=2020", "a list of structs", "'image.bytes' has type binary", "source_dtype"):
        assert part in text
