"""Files of the Apache parquet-testing collection read as published; values are those stated beside it."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import read_shard
from o41td.fields import FieldPlan
from read_shard import answer_of

FILES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "parquet-testing"

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="the collection is not beside this checkout")


def field(source, dtype, shape=(), **more):
    """A field record whose name is the column."""
    return {"name": source, "source": source, "dtype": dtype, "shape": list(shape), **more}


def read(name, *fields):
    """The rows by column, or the error: of a damaged or encrypted file in a child process, which it may abort."""
    path = str(min([*FILES.glob(f"*/{name}"), *FILES.glob(f"*/{name}.parquet")]))
    if "bad_data" not in path and "encrypt" not in path:
        return answer_of(path, [FieldPlan.from_record(record) for record in fields])
    script = [sys.executable, "-P", read_shard.__file__, path, json.dumps(fields)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.stderr == "", done.stderr
    assert done.returncode == 0, f"the child ended with {done.returncode}"
    return json.loads(done.stdout)


def rows_of(name, *fields):
    """The rows of a file that must read."""
    answer = read(name, *fields)
    assert "rows" in answer, answer
    return answer["rows"]


def refusal_of(name, *fields):
    """The class and text of the error of a file that must not."""
    answer = read(name, *fields)
    assert "error" in answer, answer
    assert "\n" not in answer["text"]
    return answer["error"], answer["text"]


def test_plain_types():
    """All plain types read as the collection states them."""
    rows = rows_of(
        "alltypes_plain", field("id", "i32"), field("int_col", "i64"), field("bigint_col", "i64"),
        field("float_col", "f32"),
        field("bool_col", "bool"),
    )  # fmt: skip
    assert rows["id"] == [4, 5, 6, 7, 2, 3, 0, 1]
    assert rows["int_col"] == [0, 1] * 4
    assert rows["bigint_col"] == [0, 10] * 4
    assert rows["float_col"] == [0.0, float(np.float32(1.1))] * 4
    assert rows["bool_col"] == [True, False] * 4


@pytest.mark.parametrize(("name", "ids"), [("alltypes_plain.snappy", [6, 7]), ("alltypes_dictionary", [0, 1])])
def test_compressed_and_dictionary_pages(name, ids):
    """Snappy and dictionary pages give the same kinds of rows."""
    assert rows_of(name, field("id", "i64"), field("double_col", "f64")) == {"id": ids, "double_col": [0.0, 10.1]}


def test_delta_binary_packed():
    """All 13 200 cells equal the independently published table."""
    with (FILES / "data" / "delta_binary_packed_expect.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    fields = [field(name, "i32" if name == "int_value" else "i64") for name in header]
    rows = rows_of("delta_binary_packed", *fields)
    assert (len(header), len(lines)) == (66, 200)
    for place, name in enumerate(header):
        assert rows[name] == [int(line[place]) for line in lines], name


def test_byte_stream_split():
    """Each column equals its plainly encoded twin."""
    kinds = {"float16": "f32", "float": "f32", "double": "f64", "int32": "i32", "int64": "i64"}
    fields = [field(f"{kind}_{how}", dtype) for kind, dtype in kinds.items() for how in ("plain", "byte_stream_split")]
    rows = rows_of("byte_stream_split_extended.gzip", *fields)
    for kind in kinds:
        assert rows[f"{kind}_plain"] == rows[f"{kind}_byte_stream_split"]
        assert len(set(rows[f"{kind}_plain"])) > 100


def test_lists_with_null_items():
    """A null item follows the null policy; a list of strings is refused."""
    rows = rows_of("list_columns", field("int64_list", "i64", [2], pad=-1, null=-9))
    assert rows["int64_list"] == [[1, 2], [-9, 1], [4, -1]]
    error, text = refusal_of("list_columns", field("int64_list", "i64", [2]))
    assert error == "ValueRefusedError"
    assert "row 1" in text
    error, text = refusal_of("list_columns", field("utf8_list", "i64", [2]))
    assert error == "SchemaError"
    assert "string" in text


def test_data_page_v2():
    """Version 2 pages, with null lists."""
    rows = rows_of(
        "datapage_v2.snappy", field("b", "i32"), field("c", "f64"), field("d", "bool"), field("e", "i32", [3], null=-1)
    )
    assert rows["b"] == [1, 2, 3, 4, 5]
    assert rows["c"] == [2.0, 3.0, 4.0, 5.0, 2.0]
    assert rows["d"] == [True, True, True, False, True]
    assert rows["e"] == [[1, 2, 3], [-1, -1, -1], [-1, -1, -1], [1, 2, 3], [1, 2, 0]]


def test_required_lists():
    """A list by an old writer reads; a list of lists needs a field of two axes."""
    rows = rows_of("nonnullable.impala", field("ID", "i64"), field("Int_Array", "i32", [1]))
    assert rows == {"ID": [8], "Int_Array": [[-1]]}
    assert refusal_of("nonnullable.impala", field("int_array_array", "i32", [4]))[0] == "SchemaError"
    assert refusal_of("nonnullable.impala", field("Int_Map", "i32", [4]))[0] == "SchemaError"
    assert refusal_of("old_list_structure", field("a", "i32", [4]))[0] == "SchemaError"
    assert refusal_of("nested_lists.snappy", field("a", "i32", [4]))[0] == "SchemaError"
    assert rows_of("nested_lists.snappy", field("b", "i32")) == {"b": [1, 1, 1]}


def test_list_of_nulls():
    """A list of type null and no items is all padding."""
    assert rows_of("null_list", field("emptylist", "i32", [3], pad=7)) == {"emptylist": [[7, 7, 7]]}


def test_null_pages():
    """Pages of nothing but nulls: 275 of 1 000 values."""
    values = rows_of("int32_with_null_pages", field("int32_field", "i64", null=-(2**40)))["int32_field"]
    there = [value for value in values if value != -(2**40)]
    assert (len(values), len(there), sum(there)) == (1000, 725, -12383254597)


def test_rle_booleans():
    """Run-length coded bools with nulls."""
    counted = rows_of("rle_boolean_encoding", field("datatype_boolean", "bool", null=False))["datatype_boolean"]
    assert (len(counted), sum(counted)) == (68, 36)
    assert sum(rows_of("rle_boolean_encoding", field("datatype_boolean", "bool", null=True))["datatype_boolean"]) == 42


def test_nan_is_a_value():
    """A null is refused without a policy; a NaN is a value."""
    assert refusal_of("single_nan", field("mycol", "f64"))[0] == "ValueRefusedError"
    first, second = rows_of("nan_in_stats", field("x", "f64"))["x"]
    assert first == 1.0
    assert math.isnan(second)
    values = rows_of("float16_nonzeros_and_nans", field("x", "f32", null=99.0))["x"]
    assert math.isnan(values.pop(3))
    assert values == [99.0, 1.0, -2.0, 0.0, -1.0, 0.0, 2.0]


@pytest.mark.parametrize("name", ["hadoop_lz4_compressed", "lz4_raw_compressed", "non_hadoop_lz4_compressed"])
def test_three_kinds_of_lz4(name):
    """Each framing of LZ4 gives the same rows."""
    rows = rows_of(name, field("c0", "i64"), field("v11", "f64"))
    assert rows == {"c0": [1593604800] * 2 + [1593604801] * 2, "v11": [42.0, 7.7, 42.125, 7.7]}


def test_row_group_without_rows():
    """A shard of no rows is no error by itself."""
    assert rows_of("column_chunk_key_value_metadata", field("column1", "i32")) == {"column1": []}


def test_checksums_pass():
    """Pages with right checksums read."""
    for name in ("rle-dict-snappy-checksum", "plain-dict-uncompressed-checksum"):
        values = rows_of(name, field("long_field", "i64"))["long_field"]
        assert (len(values), sum(values)) == (1000, 0)
    for name in ("datapage_v1-snappy-compressed-checksum", "datapage_v1-uncompressed-checksum"):
        assert len(rows_of(name, field("a", "i32"), field("b", "i32"))["b"]) == 5120


@pytest.mark.parametrize(
    "name",
    ["int32_decimal", "int64_decimal", "byte_array_decimal", "fixed_length_decimal", "fixed_length_decimal_legacy"],
)
def test_decimals(name):
    """Decimals of every physical type become floats, and nothing else."""
    assert rows_of(name, field("value", "f64"))["value"] == [float(value) for value in range(1, 25)]
    assert refusal_of(name, field("value", "i64"))[0] == "SchemaError"


def test_encrypted():
    """The plain column of a partly encrypted file reads; nothing else of the file is touched."""
    rows = rows_of("encrypt_columns_plaintext_footer.parquet.encrypted", field("int64_field", "i64", [2]))[
        "int64_field"
    ]
    assert len(rows) == 50
    assert rows[:2] == [[0, 10**12], [2 * 10**12, 3 * 10**12]]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("unknown-logical-type", "column with unknown type"),
        ("unknown-logical-type", "column with known type"),
        ("binary", "foo"),
        ("fixed_length_byte_array", "flba_field"),
    ],
)
def test_no_numbers(name, column):
    """Strings and bytes are refused, naming column and type."""
    error, text = refusal_of(name, field(column, "i32"))
    assert error == "SchemaError"
    assert column in text


def test_fixed_length_bytes_as_numbers():
    """Bytes are numbers where a source_dtype says so; a null needs a policy: 1 000 rows of 4 bytes."""
    rows = rows_of("fixed_length_byte_array", field("flba_field", "i64", source_dtype="u32", null=-1))["flba_field"]
    assert len(rows) == 1000
    assert min(rows) == -1


@pytest.mark.parametrize(
    ("name", "column"),
    [("PARQUET-1481", "x"), ("ARROW-RS-GH-6229-DICTHEADER", "nation_key"), ("ARROW-GH-41321", "int64")],
)
def test_damaged(name, column):
    """Each damaged file is one error that names the file."""
    error, text = refusal_of(name, field(column, "i64", null=0))
    assert error == "CorruptDataError"
    assert f"{name}.parquet" in text


def test_undamaged_columns_of_damaged_files():
    """Columns beside a damaged one read, and what upstream now accepts is accepted."""
    assert rows_of("ARROW-GH-43605", field("min_fl", "i32"))["min_fl"] == [0] * 21186
    rows = rows_of("ARROW-GH-41321", field("int32", "i32", null=7), field("list_int32", "i32", [3], null=-1))
    assert rows["int32"] == [-2 * 10**9, -(10**9), 7, 10**9, 2 * 10**9]
    assert rows["list_int32"] == [[0, 0, 0], [-1, 0, 0], [-1, -1, -1], [-1, 4, 5], [-1, 7, 8]]
