"""What one output column is, after the config was checked: plain data that every process shares.

A `FieldPlan` is a `ProjectedField` with its defaults filled in and its fill values already in the field's own dtype. It
crosses sockets as a record. Nothing here imports pydantic, pyarrow or NumPy: a trainer that has a config starts its
loader before it imports the last, and both do so at once.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "SOURCE_DTYPES", "FieldPlan", "field_bytes", "fill_value_of", "value_bytes"]

DTYPES: dict[str, str] = {"i32": "<i4", "i64": "<i8", "f32": "<f4", "f64": "<f8", "bool": "|b1"}
"""The output dtypes, each as NumPy's array interface writes it."""

SOURCE_DTYPES: dict[str, str] = {
    "i8": "|i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "|u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "bool": "|b1",
}
"""Each `source_dtype` likewise: little-endian values packed in a `binary` column."""

_INT_LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
_LARGEST_FLOAT = {"f32": "3.4028235e+38", "f64": "1.7976931348623157e+308"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlan:
    """One output column of every batch.

    Attributes:
        name: The name in the batch.
        source: The column's exact name in the shards, or a dotted path into structs.
        dtype: A key of `DTYPES`.
        shape: The shape of one row; () is a scalar, (L,) a list of length L.
        pad: The value behind a short list, in the field's own dtype.
        null: The value instead of a null; None means that a null is an error.
        exact: Whether an int that a float field cannot hold exactly is an error.
        source_dtype: A key of `SOURCE_DTYPES` for packed binary columns, else None.
    """

    name: str
    source: str
    dtype: str
    shape: tuple[int, ...] = ()
    pad: int | float | bool = 0
    null: int | float | bool | None = None
    exact: bool = True
    source_dtype: str | None = None

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The column's NumPy dtype."""
        import numpy as np

        return np.dtype(DTYPES[self.dtype])

    def to_record(self) -> dict[str, Any]:
        """A plain dict for msgpack; NaN and infinity stay floats."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> FieldPlan:
        """The plan that `to_record` described."""
        return cls(**{**record, "shape": tuple(record["shape"])})


def field_bytes(plan: FieldPlan) -> int:
    """Bytes of one row of the field: itemsize · prod(shape)."""
    return value_bytes(plan.dtype) * math.prod(plan.shape)


def value_bytes(dtype: str) -> int:
    """Bytes of one value of a dtype, an output's or a packed column's."""
    return int(SOURCE_DTYPES[dtype][2:])


def fill_value_of(value: object, dtype: str) -> int | float | bool:
    """Checks that a pad or null value fits a dtype and gives it in that dtype.

    The rules are those for data: a float rounds to the nearest f32, nothing else may change the value.

    Args:
        value: What the user gave. The words "nan", "inf" and "-inf" name those floats where JSON has none.
        dtype: A key of `DTYPES`.

    Returns:
        A Python int, float or bool that converts to the dtype without loss.

    Raises:
        ValueError: The value does not fit; the text says why and what does.
    """
    if dtype == "bool":
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
        raise ValueError(f"{value!r} is not a bool; give true or false")
    numpy = sys.modules.get("numpy")  # where it is not, nobody has a number of its
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; an {dtype} field needs one")
    if dtype in ("i32", "i64"):
        return _int_fill(value, dtype)
    return _float_fill(value, dtype)


def _int_fill(value: int | float | str, dtype: str) -> int:
    """The value as an int of the dtype."""
    if isinstance(value, str) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value!r} is not an integer; an {dtype} field needs one")
    lowest, highest = _INT_LIMITS[dtype]
    if not lowest <= value <= highest:
        raise ValueError(f"{value!r} does not fit {dtype}, which holds {lowest} to {highest}")
    return int(value)


def _float_fill(value: int | float | str, dtype: str) -> float:
    """The value as a float of the dtype."""
    if isinstance(value, str):
        if value.lower() not in ("nan", "inf", "+inf", "-inf"):
            raise ValueError(f'{value!r} is not a number; give a number, "nan", "inf" or "-inf"')
        return float(value)
    try:
        rounded = float(value)
        if dtype == "f32" and math.isfinite(rounded):
            (rounded,) = struct.unpack("<f", struct.pack("<f", rounded))
    except OverflowError:
        rounded = math.inf
    if math.isinf(rounded) and not (isinstance(value, float) and math.isinf(value)):
        raise ValueError(f"{value!r} is too large for {dtype}, which holds up to {_LARGEST_FLOAT[dtype]}")
    if isinstance(value, int) and rounded != value:
        raise ValueError(f"{value!r} cannot be held exactly by {dtype}; the nearest is {rounded!r}")
    return rounded
