"""Every Arrow type with values at its edges, and what each value is as an exact number, written down by hand.

The numbers are ints and Fractions, and floats only where they are NaN or infinite: `expected_of` judges them by the
projection's rules in exact arithmetic, without the code under test.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td.fields import FieldPlan

__all__ = [
    "DTYPES", "FORMS", "LEAVES", "NO_NUMBERS", "Leaf", "Refused", "expected_of", "field_of", "formed", "parquet_table"
]  # fmt: skip

DTYPES = ("i32", "i64", "f32", "f64", "bool")
Number = int | Fraction | float | None


class Refused(Exception):
    """A value that a field does not take."""


@dataclass(frozen=True)
class Leaf:
    """An Arrow type and some of its values.

    Attributes:
        array: The values.
        numbers: What each is; None is a null.
        kind: Decimals go into floats alone, times into i64 alone, other numbers into every dtype.
        stored: What each is in a Parquet file, where that has another unit; None where it has none of the type.
    """

    array: Any
    numbers: Sequence[Number]
    kind: Literal["number", "decimal", "time"] = "number"
    stored: Sequence[Number] | None = None

    @property
    def name(self) -> str:
        """The type, as Arrow writes it."""
        return str(self.array.type)


def _leaf(arrow_type: Any, values: Sequence[Any], numbers: Sequence[Number] | None = None, **more: Any) -> Leaf:
    return Leaf(pa.array(values, arrow_type), numbers if numbers is not None else [*map(_exact, values)], **more)


def _exact(value: Any) -> Number:
    if isinstance(value, float):
        return Fraction(value) if math.isfinite(value) else value
    return Fraction(value) if isinstance(value, Decimal) else value


def _times(arrow_type: Any, *, per_stored: int = 1, stored_per: int = 1, bits: int = 64) -> Leaf:
    """Times of `arrow_type`; in a file they are divided by `per_stored` or multiplied by `stored_per`."""
    numbers = [0, per_stored, -per_stored, per_stored * 2**12]
    array = pa.array(numbers, pa.int64() if bits == 64 else pa.int32()).view(arrow_type)
    return Leaf(array, numbers, "time", [number * stored_per // per_stored for number in numbers])


_INTS = {bits: [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))] for bits in (8, 16, 32, 64)}
_UINTS = {bits: [0, 1, 2, 2**bits - 1] for bits in (8, 16, 32, 64)}
_NAN, _INF = math.nan, math.inf
_DECIMALS = [Decimal(text) for text in ("0.000", "1.000", "1.005", "-0.001", "99999.999", "-2.500")]

LEAVES = [
    _leaf(pa.int8(), _INTS[8]),
    _leaf(pa.int16(), _INTS[16]),
    _leaf(pa.int32(), [*_INTS[32], 2**24 + 1]),
    _leaf(pa.int64(), [*_INTS[64], 2**24 + 1, 2**31, 2**53 + 1, 2**60]),
    _leaf(pa.uint8(), _UINTS[8]),
    _leaf(pa.uint16(), _UINTS[16]),
    _leaf(pa.uint32(), [*_UINTS[32], 2**31, 2**24 + 1]),
    _leaf(pa.uint64(), [*_UINTS[64], 2**31, 2**53 + 1, 2**63]),
    _leaf(pa.float16(), [0.0, 1.0, -2.5, 65504.0, 2.0**-24, _NAN, _INF, -_INF]),
    _leaf(
        pa.float32(),
        [0.0, -0.0, 1.0, 0.5, float(np.float32(0.1)), 2.0**31, 2.0**63, -(2.0**63), 3.4028234663852886e38, _NAN, -_INF],
    ),
    _leaf(
        pa.float64(),
        [0.0, -0.0, 1.0, 0.1, 2.0**31 - 1, 2.0**31, -(2.0**63), 2.0**63, 2.0**53, 1e300, 5e-324, _NAN, _INF],
    ),
    _leaf(pa.bool_(), [True, False], [1, 0]),
    Leaf(pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 2, -1], pa.int8())), [1, 0, 1, 1]),
    _leaf(pa.null(), [None, None]),
    _leaf(pa.decimal32(8, 3), _DECIMALS, kind="decimal"),
    _leaf(pa.decimal64(12, 3), _DECIMALS, kind="decimal"),
    _leaf(pa.decimal128(38, 9), [*_DECIMALS, Decimal("-12345678901234567890.123456789")], kind="decimal"),
    _leaf(pa.decimal256(60, 4), [*_DECIMALS, Decimal(10**50 + 1)], kind="decimal"),
    _times(pa.date32(), bits=32),
    _times(pa.date64(), per_stored=86_400_000),
    _times(pa.time32("s"), stored_per=1000, bits=32),
    _times(pa.time32("ms"), bits=32),
    _times(pa.time64("us")),
    _times(pa.time64("ns")),
    _times(pa.timestamp("s"), stored_per=1000),
    _times(pa.timestamp("ms")),
    _times(pa.timestamp("us", "UTC")),
    _times(pa.timestamp("ns", "Europe/Berlin")),
    _times(pa.duration("s")),
    _times(pa.duration("ns")),
]  # fmt: skip

NO_NUMBERS = {
    "string": pa.array(["1", "2"]),
    "large_string": pa.array(["1", "2"], pa.large_string()),
    "string_view": pa.array(["1", "2"], pa.string_view()),
    "dictionary of strings": pa.array(["1", "2"]).dictionary_encode(),
    "binary without source_dtype": pa.array([b"1", b"2"]),
    "binary of fixed size without source_dtype": pa.array([b"1", b"2"], pa.binary(1)),
    "list of binary": pa.array([[b"1"], [b"2"]]),
    "list of strings": pa.array([["1"], ["2"]]),
    "struct": pa.array([{"a": 1}, {"a": 2}]),
    "list of structs": pa.array([[{"a": 1}], [{"a": 2}]]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
    "interval": pa.array([(1, 2, 3), (4, 5, 6)], pa.month_day_nano_interval()),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array([1, 2])),
    "union": pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * 2, pa.binary(16))),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "2"])),
    "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "a", "b"), pa.array([1, 2], pa.int32())),
    "tensor of permuted axes": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [1, 2], permutation=[1, 0]),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
    ),
}
"""Columns that no field takes, two rows each."""


def _with_null(array: Any) -> Any:
    return pa.concat_arrays([array, pa.nulls(1, array.type)])


def _pairs_of(array: Any) -> Any:
    """Items 0 and 1, 1 and 2, … and the last: as many rows as items."""
    places = [place for row in range(len(array)) for place in (row, min(row + 1, len(array) - 1))]
    return array.take(pa.array(places))


def _offsets(array: Any, dtype: str) -> Any:
    return pa.array(np.arange(len(array) + 1) * 2, dtype)


def _starts(array: Any, dtype: str) -> tuple[Any, Any]:
    return pa.array(np.arange(len(array)) * 2, dtype), pa.array(np.full(len(array), 2), dtype)


FORMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda array: array,
    "with nulls": _with_null,
    "sliced": lambda array: pa.concat_arrays([array[:1], array, array[:1]])[1:-1],
    "dictionary": lambda array: pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int32()), array),
    "dictionary with nulls": lambda array: pa.DictionaryArray.from_arrays(
        pa.array([*range(len(array)), None], pa.uint8()), array
    ),
    "struct member": lambda array: pa.StructArray.from_arrays([array], ["m"]),
    "list": lambda array: pa.ListArray.from_arrays(_offsets(array, "i4"), _pairs_of(array)),
    "large list": lambda array: pa.LargeListArray.from_arrays(_offsets(array, "i8"), _pairs_of(array)),
    "list view": lambda array: pa.ListViewArray.from_arrays(*_starts(array, "i4"), _pairs_of(array)),
    "large list view": lambda array: pa.LargeListViewArray.from_arrays(*_starts(array, "i8"), _pairs_of(array)),
    "fixed size list": lambda array: pa.FixedSizeListArray.from_arrays(_pairs_of(array), 2),
    "list with nulls": lambda array: _with_null(pa.ListArray.from_arrays(_offsets(array, "i4"), _pairs_of(array))),
    "fixed size list with nulls": lambda array: _with_null(pa.FixedSizeListArray.from_arrays(_pairs_of(array), 2)),
    "list of null items": lambda array: pa.ListArray.from_arrays(
        pa.array([0, len(array), len(array) + 1], "i4"), _with_null(array)
    ),
    "list of lists": lambda array: pa.ListArray.from_arrays(
        pa.array(range(len(array) + 1), "i4"), pa.ListArray.from_arrays(_offsets(array, "i4"), _pairs_of(array))
    ),
    "list of dictionaries": lambda array: pa.ListArray.from_arrays(
        _offsets(array, "i4"),
        pa.DictionaryArray.from_arrays(pa.array(range(2 * len(array)), pa.int32()), _pairs_of(array)),
    ),
}
"""How a type's values may stand in a column: each row of the plain form is told apart in every other one."""


def formed(leaf: Leaf, form: str, *, stored: bool = False) -> tuple[Any, list[Any], tuple[int, ...]]:
    """A leaf's column in a form, the exact numbers of its rows, nested as they are, and a shape that takes them."""
    numbers: list[Any] = list(leaf.stored if stored and leaf.stored is not None else leaf.numbers)
    column = FORMS[form](leaf.array)
    pairs = [[number, numbers[min(row + 1, len(numbers) - 1)]] for row, number in enumerate(numbers)]
    if form == "list of lists":
        return column, [[pair] for pair in pairs], (1, 3)
    if form == "list of null items":
        return column, [numbers, [None]], (len(numbers) + 1,)
    if "list" in form:
        return column, pairs + ([None] if form.endswith("with nulls") else []), (3,)
    return column, numbers + ([None] if form.endswith("with nulls") else []), ()


def field_of(
    dtype: str, shape: tuple[int, ...] = (), *, null: Any = 1, exact: bool = True, source: str = "c"
) -> FieldPlan:
    """A field of the dtype whose pad is 0 and whose nulls are 1."""
    kind = {"f32": float, "f64": float, "bool": bool}.get(dtype, int)
    fills = {"pad": kind(0), "null": None if null is None else kind(null)}
    return FieldPlan(name="c", source=source, dtype=dtype, shape=shape, exact=exact, **fills)


def is_taken(leaf: Leaf, dtype: str) -> bool:
    """Whether a field of the dtype takes the type at all."""
    return {"number": True, "decimal": dtype in ("f32", "f64"), "time": dtype == "i64"}[leaf.kind]


def expected_of(number: Any, field: FieldPlan, shape: tuple[int, ...] | None = None) -> Any:
    """What a row of these exact numbers becomes, by the rules.

    Raises:
        Refused: It is not delivered.
    """
    shape = field.shape if shape is None else shape
    if not shape:
        return _scalar_of(number, field)
    if number is None:
        return np.full(shape, _scalar_of(None, field), object).tolist()
    rows = [expected_of(item, field, shape[1:]) for item in number[: shape[0]]]
    pad = np.full(shape[1:], field.pad, object).tolist() if shape[1:] else field.pad
    return rows + [pad] * (shape[0] - len(rows))


def _scalar_of(number: Number, field: FieldPlan) -> Any:
    if number is None:
        if field.null is None:
            raise Refused
        return field.null
    if field.dtype in ("f32", "f64"):
        return _float_of(number, field)
    limits = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1), "bool": (0, 1)}[field.dtype]
    if isinstance(number, float) or number != int(number) or not limits[0] <= number <= limits[1]:
        raise Refused
    return bool(number) if field.dtype == "bool" else int(number)


def _float_of(number: int | Fraction | float, field: FieldPlan) -> float:
    if isinstance(number, float):
        return number
    nearest = float(Fraction(number))  # Python rounds a fraction once, half to even
    with np.errstate(over="ignore"):
        rounded = float(field.numpy_dtype.type(nearest))
    if math.isinf(rounded) or (field.exact and isinstance(number, int) and rounded != number):
        raise Refused
    return rounded


def parquet_table(column: Any, **options: Any) -> Any:
    """The column, written to a Parquet file with pyarrow and read again as the loader does; None if it has no such."""
    file = io.BytesIO()
    try:
        pq.write_table(pa.table({"c": column}), file, **options)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
    file.seek(0)
    return pq.ParquetFile(file).reader.read_row_group(0, column_indices=[0], use_threads=False)
