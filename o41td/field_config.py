"""What a user says of one output column: `ProjectedField`."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from o41td.config_model import ConfigModel, Flag, Listed, Name, whole_number
from o41td.errors import ConfigError
from o41td.fields import DTYPES, SOURCE_DTYPES, FieldPlan, fill_value_of

__all__ = ["ProjectedField"]

Dtype = Literal["i32", "i64", "f32", "f64", "bool"]
SourceDtype = Literal["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "bool"]

_MAX_ROW_ITEMS = 2**31 - 1

_COMMON_NAMES = {
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int": "i64",
    "int64": "i64",
    "long": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "float": "f32",
    "float64": "f64",
    "double": "f64",
    "boolean": "bool",
    "bool_": "bool",
}
_Dimension = Annotated[int, BeforeValidator(whole_number(1, _MAX_ROW_ITEMS))]


class ProjectedField(ConfigModel):
    """One output column: a fixed-shape numeric array a row.

    Neither `length` nor `shape` makes a scalar; `length=L` is `shape=(L,)`.

    Attributes:
        name: The name in the batch.
        source: The column's exact name in the shards, else a dotted path into structs; `name` if left out.
        dtype: The output's dtype. Only a field that differs for a source may leave it out, and keeps the config's.
        length: The length of a list column; shorter lists are padded, longer ones cut.
        shape: The shape of one row where it has more than one axis.
        pad: The value behind a short list, in the field's own dtype.
        null: The value instead of a null; None makes a null an error.
        exact: False lets an int round to the nearest float.
        source_dtype: The dtype of the little-endian values packed in a `binary` column.
    """

    shown_name = "field"

    name: Name
    source: Name = Field(default_factory=lambda data: data.get("name", "?"))
    dtype: Dtype | None = None
    length: _Dimension | None = None
    shape: Annotated[Sequence[_Dimension], Listed] | None = None
    pad: int | float | bool = Field(default=0, validate_default=True)
    null: int | float | bool | None = None
    exact: Flag = True
    source_dtype: SourceDtype | None = None

    @field_validator("dtype", "source_dtype", mode="before")
    @classmethod
    def _check_dtype(cls, value: object, info: ValidationInfo) -> object:
        allowed = tuple(DTYPES if info.field_name == "dtype" else SOURCE_DTYPES)
        if value is None or (isinstance(value, str) and value in allowed):
            return value
        meant = _COMMON_NAMES.get(str(value).lower())
        hint = f"; did you mean `{meant}`?" if meant in allowed else ""
        raise ValueError(f"{value!r} is not a dtype; give one of {', '.join(allowed)}{hint}")

    @field_validator("shape", mode="before")
    @classmethod
    def _check_shape(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            raise ValueError(f"{value!r} is not a list; give a list of dimensions, or `length` for one axis")
        return value

    @field_validator("pad", "null", mode="plain")
    @classmethod
    def _check_fill(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name == "null":
            return None
        if "dtype" not in info.data:
            return value  # the dtype's own problem is told
        dtype = info.data["dtype"]
        if dtype is None:  # checked against the config's, where this is an override
            return fill_value_of(value, "f64") if isinstance(value, str) else value
        return fill_value_of(value, dtype)

    @model_validator(mode="after")
    def _check_axes(self) -> "ProjectedField":
        if self.length is not None and self.shape is not None:
            raise ConfigError(problems=[("", "`length` and `shape` are both given; give one of them")])
        items = math.prod(self.row_shape)
        if items > _MAX_ROW_ITEMS:
            raise ConfigError(problems=[("shape", f"{items} values a row are too many; give {_MAX_ROW_ITEMS} at most")])
        return self

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row; () for a scalar."""
        if self.length is not None:
            return (self.length,)
        return tuple(self.shape or ())

    def plan(self) -> FieldPlan:
        """The field as plain data for the other processes."""
        assert self.dtype is not None, "the config refuses a field without dtype"
        return FieldPlan(
            name=self.name,
            source=self.source,
            dtype=self.dtype,
            shape=self.row_shape,
            pad=self.pad,
            null=self.null,
            exact=self.exact,
            source_dtype=self.source_dtype,
        )

    def overridden_by(self, other: "ProjectedField") -> "ProjectedField":
        """This field with the keys that a source's own field of the same name sets.

        Args:
            other: The source's field; keys it leaves out keep this field's value.

        Raises:
            ConfigError: `other` changes the output's dtype or shape.
        """
        given = other.model_fields_set
        problems = []
        if other.dtype not in (None, self.dtype):
            problems.append(("dtype", f"{other.dtype!r} differs from field `{self.name}`, which is {self.dtype!r}"))
        if given & {"length", "shape"} and other.row_shape != self.row_shape:
            ours, theirs = list(self.row_shape), list(other.row_shape)
            problems.append(("shape", f"{theirs} differs from field `{self.name}`, which is {ours}"))
        changed = {key: getattr(other, key) for key in given if key not in ("dtype", "length", "shape")}
        if other.dtype is None and self.dtype is not None:
            for key in ("pad", "null"):
                if changed.get(key) is not None:
                    try:
                        changed[key] = fill_value_of(changed[key], self.dtype)
                    except ValueError as error:
                        problems.append((key, str(error)))
        if problems:
            raise ConfigError("an override keeps the output's dtype and shape", problems=problems)
        return self.model_copy(update=changed)
