"""Python values of records as Arrow columns: one type a field, checked value by value only where they are not plain.

Records have no schema, so a column's type follows from the field: integers and bools become integers as wide as the
field, or int64 where one is wider, numbers of float fields double, `bytes` of packed fields binary, lists large_list at
the depth that they have. What a value may become is
what it may in Parquet: true is 1, a whole float is an integer, an integer is a float if it can be exact.

Measured (ns a value): `array(code, values)` 25 to 30 and 18 to lay the values of long rows end to end, `struct.pack`
of each long row 21 with both; `np.fromiter` 20 to 31, which takes 1.5 for an integer 1; `np.array` 70, `pa.array` of
a type 45 to 50.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.fields import FieldPlan
from o41td.workers.conversion import Conversion

__all__ = ["Misfit", "column_of"]

_CODES = {"bool": "b", "i32": "i", "i64": "q", "f32": "d", "f64": "d"}
"""Of arrays that hold what fits; what does not is looked at value by value."""

_LONG_ROW = 16

_EXACT = {"f32": 1 << 24, "f64": 1 << 53}
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row whose value a field cannot take: its place among the rows, the value, why, and what to do."""

    row: int
    value: str
    why: str
    advice: str | None = None


def column_of(values: list[Any], field: FieldPlan) -> tuple[Any, list[Misfit]]:
    """Returns an Arrow array of the field's values, a row each, and the rows that do not fit, which hold anything.

    Args:
        values: What each record has: None, bool, int, float, str, bytes, list or dict, nested as it likes.
        field: The field.
    """
    if field.source_dtype is not None:
        return _binary_of(values)
    if field.shape:
        return _lists_of(values, field, axis=0)
    return _leaf_of(values, field)


def _binary_of(values: list[Any]) -> tuple[Any, list[Misfit]]:
    misfits = []
    if not {bytes, type(None)}.issuperset(map(type, values)):
        why = "and the field's source_dtype is for binary values"
        misfits = [_refused(row, value, why) for row, value in enumerate(values) if not isinstance(value, bytes | None)]
        values = [value if isinstance(value, bytes) else None for value in values]
    return pa.array(values, pa.large_binary()), misfits


def _lists_of(values: list[Any], field: FieldPlan, *, axis: int) -> tuple[Any, list[Misfit]]:
    """One list level: `values` are lists or None; what they hold is the next level or the leaf."""
    misfits: list[Misfit] = []
    valid = None
    kinds = set(map(type, values))
    if kinds != {list} and values:
        valid = np.fromiter((isinstance(value, list) for value in values), np.bool_, len(values))
        if not kinds <= {list, type(None)}:
            why = f"where field {field.name!r} of shape {list(field.shape)} takes a list"
            misfits = [
                _refused(row, value, why) for row, value in enumerate(values) if not isinstance(value, list | None)
            ]
        values = [value if isinstance(value, list) else () for value in values]
    if len(field.shape) == 1:
        longest = field.shape[0]  # what is cut off is never judged
        values = [value if len(value) <= longest else value[:longest] for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    first = next((item for value in values for item in value if item is not None), None)
    if axis + 1 < len(field.shape) and isinstance(first, list | None):  # nothing but nulls: null lists, not null items
        inner, below = _lists_of(list(chain.from_iterable(values)), field, axis=axis + 1)
    elif offsets[-1] >= _LONG_ROW * len(values) and (numbers := _packed_rows(values, field)) is not None:
        inner, below = pa.array(numbers), []
    else:
        inner, below = _leaf_of(list(chain.from_iterable(values)), field)
    if below:
        rows = np.searchsorted(offsets, [item.row for item in below], side="right") - 1
        misfits += [replace(item, row=row) for item, row in zip(below, rows.tolist(), strict=True)]
    mask = None if valid is None else pa.array(~valid)
    return pa.LargeListArray.from_arrays(pa.array(offsets), inner, mask=mask), misfits


def _packed_rows(rows: Sequence[Sequence[Any]], field: FieldPlan) -> NDArray[Any] | None:
    """The items of long rows, end to end, where all are plain numbers; else None."""
    code = _CODES[field.dtype]
    try:
        packed = b"".join([struct.pack(f"{len(row)}{code}", *row) for row in rows])
    except (struct.error, TypeError, OverflowError):
        return None
    numbers = np.frombuffer(packed, np.dtype(code))
    if field.dtype in _EXACT and (np.abs(numbers) >= _EXACT[field.dtype]).any():
        return None
    return numbers


def _leaf_of(values: list[Any], field: FieldPlan) -> tuple[Any, list[Misfit]]:
    """Numbers and None."""
    numbers = _plain_numbers(values, field)
    if numbers is not None:
        return pa.array(numbers), []
    there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    mask = None
    if not there.all():
        values, mask = [0 if value is None else value for value in values], ~there
        numbers = _plain_numbers(values, field)
    misfits: list[Misfit] = []
    if numbers is None:
        numbers, misfits = _judged(values, field)
    return pa.array(numbers, mask=mask), misfits


def _plain_numbers(values: list[Any], field: FieldPlan) -> NDArray[Any] | None:
    """The numbers where all are such and surely fit, converted at once; else None."""
    try:
        numbers = np.frombuffer(array(_CODES[field.dtype], values), np.dtype(_CODES[field.dtype]))
    except (TypeError, OverflowError):
        return None
    large = np.flatnonzero(np.abs(numbers) >= _EXACT[field.dtype]) if field.dtype in _EXACT else ()
    return None if any(isinstance(values[place], int) for place in large) else numbers


def _judged(values: Sequence[Any], field: FieldPlan) -> tuple[NDArray[Any], list[Misfit]]:
    """Values looked at one by one."""
    judge = _Judge(field)
    numbers: array[Any] = array("d" if field.dtype in _EXACT else "q")
    misfits = []
    for row, value in enumerate(values):
        try:
            numbers.append(judge.number_of(value))
        except _Unfit as unfit:
            numbers.append(0)
            misfits.append(Misfit(row, _shown(value), str(unfit), unfit.advice))
    return np.frombuffer(numbers, np.dtype(numbers.typecode)), misfits


class _Unfit(Exception):
    """Why a value does not fit: a signal within this module."""

    def __init__(self, why: str, advice: str | None = None) -> None:
        super().__init__(why)
        self.advice = advice


class _Judge:
    """What single values become in a field."""

    def __init__(self, field: FieldPlan) -> None:
        self._field = field
        self._is_float = field.dtype in _EXACT
        self._target = field.numpy_dtype

    def number_of(self, value: object) -> int | float:
        """The number that stands for a value on its way to the field."""
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, int):
            return self._float_of(value) if self._is_float else self._int_of(value)
        if isinstance(value, float):
            return value if self._is_float else self._whole_of(value)
        raise _Unfit(f"{_kind_of(value)} is no number", _advice_on(value))

    def _int_of(self, value: int) -> int:
        if _INT64.min <= value <= _INT64.max:
            return value  # a narrower field judges it when it is written
        raise _Unfit(self._why(np.dtype(np.int64), value))

    def _whole_of(self, value: float) -> int:
        if math.isfinite(value) and value.is_integer() and _INT64.min <= int(value) <= _INT64.max:
            return int(value)
        raise _Unfit(self._why(np.dtype(np.float64), value))

    def _float_of(self, value: int) -> float:
        kind = np.int64 if value <= _INT64.max else np.uint64
        try:
            rounded = float(np.array(value, kind).astype(self._target))  # one rounding, as of a Parquet column
        except OverflowError:
            rounded = _nearest(value, self._target)
        if math.isfinite(rounded) and (int(rounded) == value or not self._field.exact):
            return rounded
        advice = "Set `exact = false` of the field to round it" if math.isfinite(rounded) else None
        raise _Unfit(self._why(np.dtype(kind if advice else np.float64), value), advice)

    def _why(self, source: np.dtype[Any], value: object) -> str:
        return Conversion(source, self._target, exact=self._field.exact).refusal_of(value)


def _nearest(value: int, target: np.dtype[Any]) -> float:
    """An integer beyond 64 bits as a float; infinity where it is too large."""
    try:
        with np.errstate(over="ignore"):
            return float(target.type(float(value)))
    except OverflowError:
        return math.inf


def _refused(row: int, value: object, why: str) -> Misfit:
    return Misfit(row, _shown(value), f"this is {_kind_of(value)}, {why}", _advice_on(value))


def _advice_on(value: object) -> str | None:
    return "A node makes numbers of text: Parquet(…) or JsonLines(…) >> yours" if isinstance(value, str) else None


def _kind_of(value: object) -> str:
    kinds = {str: "a string", dict: "an object", list: "a list", bytes: "a binary value", bool: "a bool"}
    kinds |= {int: "a number", float: "a number"}
    return kinds.get(type(value), f"a value of type {type(value).__name__}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
