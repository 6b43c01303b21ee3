"""Every Arrow type in every form into every dtype: the right value, or a refusal that says what to do."""

import re

import numpy as np
import pyarrow as pa
import pytest

from o41td.errors import SchemaError
from o41td.fields import SOURCE_DTYPES, FieldPlan
from o41td.projection import plan_projection
from o41td.workers.project import Projector
from projection_matrix import (
    DTYPES,
    FORMS,
    LEAVES,
    NO_NUMBERS,
    Refused,
    expected_of,
    field_of,
    formed,
    is_taken,
    parquet_table,
)


def check_rows(table, numbers, field):
    """The rows that the rules deliver are delivered, each with its value, and no other is."""
    out = np.zeros((len(numbers), *field.shape), field.numpy_dtype)
    refused = Projector(plan_projection(table.schema, [field])).write_fitting(table, {"c": out}, shard="a.parquet")
    expected, not_delivered = {}, []
    for row, number in enumerate(numbers):
        try:
            expected[row] = expected_of(number, field)
        except Refused:
            not_delivered.append(row)
    assert ([] if refused is None else refused.rows.tolist()) == not_delivered, field
    wanted = np.array([expected[row] for row in sorted(expected)], field.numpy_dtype)
    np.testing.assert_array_equal(out[sorted(expected)], wanted.reshape(-1, *field.shape), err_msg=str(field))
    if refused is not None:
        text = str(refused.error)
        assert "a.parquet" in text
        assert f"row {not_delivered[0]}" in text


def check_open(schema, field, *, is_accepted):
    """Whether the field takes the column; if not, the refusal names source, shard, column, type and a way out."""
    if is_accepted:
        plan_projection(schema, [field])
        return True
    with pytest.raises(SchemaError) as caught:
        plan_projection(schema, [field], source="web", shard="a.parquet")
    text = str(caught.value)
    found = schema.types[0][0].type if field.source == "c.m" else schema.types[0]
    assert all(part in text for part in ("'web'", "a.parquet", f"column {field.source!r} has type {found}")), text
    assert re.search(r"go into|Accepted are", text), text
    return False


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
@pytest.mark.parametrize("where", ["memory", "parquet"])
def test_every_type_in_every_form_into_every_dtype(leaf, where):
    """As Arrow holds it and as Parquet gives it back: each value arrives exactly as the rules say, or is refused."""
    for form in FORMS:
        column, numbers, shape = formed(leaf, form, stored=where == "parquet")
        table = pa.table({"c": column}) if where == "memory" else parquet_table(column)
        if table is None:
            assert "dictionar" in form, "Parquet holds all else"
            continue
        is_kept = "duration" not in leaf.name or where == "memory" or "dictionar" not in form
        source = "c.m" if form == "struct member" else "c"
        for dtype in DTYPES:
            # Of a dictionary of durations Parquet keeps the integers alone.
            accepted = is_taken(leaf, dtype) or not is_kept
            if not accepted and form not in ("plain", "struct member", "list of dictionaries"):
                continue
            for null in (1, None) if "null" in form or "null" in leaf.name else (None,):
                field = field_of(dtype, shape, null=null, source=source)
                if check_open(table.schema, field, is_accepted=accepted):
                    check_rows(table, numbers, field)


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if "int" in leaf.name], ids=lambda leaf: leaf.name)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_inexact_integers_round_where_the_field_allows_it(leaf, dtype):
    """With exact = false every integer arrives as the nearest float."""
    for form in ("plain", "list", "dictionary"):
        column, numbers, shape = formed(leaf, form)
        check_rows(pa.table({"c": column}), numbers, field_of(dtype, shape, exact=False))


@pytest.mark.parametrize(
    "options", [{"use_dictionary": False}, {"data_page_version": "2.0"}, {"version": "1.0"}], ids=str
)
def test_pages_of_every_kind(options):
    """Plainly encoded, in version 2 pages and in a version 1 file, the same values arrive."""
    for leaf in LEAVES:
        if options.get("version") == "1.0" and leaf.name in ("uint32", "timestamp[ns, tz=Europe/Berlin]", "time64[ns]"):
            continue  # that version holds them as other types
        for form in ("plain", "with nulls", "list of null items"):
            column, numbers, shape = formed(leaf, form, stored=True)
            field = field_of("f64" if leaf.kind == "decimal" else "i64", shape, null=1)
            check_rows(parquet_table(column, **options), numbers, field)


@pytest.mark.parametrize("name", NO_NUMBERS)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_what_is_no_number_is_refused_at_open(name, shape):
    """Text, structs, maps and the like are refused with what to do, and never read."""
    for dtype in DTYPES:
        check_open(pa.schema([("c", NO_NUMBERS[name].type)]), field_of(dtype, shape), is_accepted=False)


PACKED_KINDS = {
    "binary": lambda array: array,
    "large binary": lambda array: array.cast(pa.large_binary()),
    "binary view": lambda array: array.cast(pa.binary_view()),
    "dictionary of binary": lambda array: array.dictionary_encode(),
    "binary of fixed size": lambda array: array.cast(pa.binary(len(array[0].as_py()))),
}


@pytest.mark.parametrize("source_dtype", SOURCE_DTYPES)
@pytest.mark.parametrize("kind", PACKED_KINDS)
def test_packed_values_of_every_dtype(kind, source_dtype):
    """Little-endian bytes are the numbers that `source_dtype` says, in any kind of binary column, whole and sliced."""
    leaf = {leaf.name: leaf for leaf in LEAVES}[ARROW_NAMES[source_dtype]]
    numbers = [number for number in leaf.numbers if number is not None]
    values = leaf.array.to_numpy(zero_copy_only=False).astype(SOURCE_DTYPES[source_dtype])
    packed = PACKED_KINDS[kind](pa.array([values.tobytes(), values[::-1].tobytes()]))
    scalars = PACKED_KINDS[kind](pa.array([value.tobytes() for value in values]))
    wide = (len(values) + 1,)
    for dtype in DTYPES:
        field = FieldPlan(**{**field_of(dtype, wide).to_record(), "shape": wide, "source_dtype": source_dtype})
        flat = FieldPlan(**{**field.to_record(), "shape": ()})
        for table in (pa.table({"c": packed}), parquet_table(packed)):
            check_rows(table, [numbers, numbers[::-1]], field)
            check_rows(table.slice(1), [numbers[::-1]], field)
        check_rows(pa.table({"c": scalars}), numbers, flat)


ARROW_NAMES = dict(
    zip(
        SOURCE_DTYPES,
        [
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "halffloat",
            "float",
            "double",
            "bool",
        ],
        strict=True,
    )
)


@pytest.mark.parametrize(
    ("width", "source_dtype", "shape", "why"),
    [
        (3, "u16", (4,), "3 bytes are no whole number of u16 values"),
        (4, "u16", (), "packs 2 values a row"),
        (6, "u16", (2, 2), "3 values do not divide into rows of 2"),
    ],
)
def test_packed_bytes_of_a_fixed_size_that_no_row_can_fill(width, source_dtype, shape, why):
    """A width that can never give the field is refused at open, not at the first row."""
    field = FieldPlan(name="c", source="c", dtype="i32", shape=shape, source_dtype=source_dtype)
    with pytest.raises(SchemaError, match=why):
        plan_projection(pa.schema([("c", pa.binary(width))]), [field])
