"""The projection plan: which leaf columns of a shard each field reads, and how they become the field's values.

Pure: it looks at an Arrow schema and says what to read, or refuses the shard with every problem named. It imports
pyarrow, so only workers (and code that already holds Arrow data) import it.

A field's source is looked up by exact name first; only if there is none, as a dotted path into structs. Asking pyarrow
for a column by name answers a missing name with nothing and a doubled name with both, and `a.b` with the struct and the
flat column, so names are resolved here and columns are read by leaf index: leaves counted depth-first, as Parquet does.

Levels. An Arrow type is some list levels around a leaf. The first levels give one axis of the field's shape each; the
last one gives all axes that are left, row-major, so a flat list of 12 fills [3, 4]. Every axis that a list gives may be
ragged and is cut or padded; of several axes given by one flat list only the first may be.

A binary column whose Arrow field says `o41td.packed` in its metadata is a list of numbers that `o41td.writing` packed:
it is read as that list, whatever the dtype of this one shard, so the same config reads a shard before and after.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from o41td.errors import SchemaError
from o41td.fields import SOURCE_DTYPES, FieldPlan, value_bytes

__all__ = [
    "PACKED_BITS",
    "PACKED_KEY",
    "ColumnKind",
    "FieldProjection",
    "PlanMemory",
    "ProjectionPlan",
    "leaf_count",
    "packed_dtypes_of",
    "plan_projection",
]

ColumnKind = Literal["values", "packed"]
"""`values`: scalars, lists and tensors of numbers; `packed`: numbers as little-endian bytes in binary values."""

PACKED_KEY = b"o41td.packed"
"""Of an Arrow field's metadata: the `source_dtype` of the numbers that a binary column packs, or `PACKED_BITS`."""

PACKED_BITS = "bits"
"""Bools, eight to a byte, the lowest bit first, behind a byte that says how many bits of the last one are none."""

_ACCEPTED = (
    "Accepted are integers, floats, bool, decimals (into a float), dates, times and durations (into i64), dictionaries "
    "of these, lists and fixed-shape tensors of these (with length or shape), and binary with source_dtype"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProjection:
    """How one field is read from one shard.

    `column` is the top-level column, `path` the struct members below it. `leaf_index` counts the shard's leaf columns.
    `num_lists` list levels stand around the leaf (0 for a scalar), and `tensor_shape` is that of a fixed-shape tensor.
    `is_bits` says that a packed column has its bools as bits.
    """

    field: FieldPlan
    column: str
    path: tuple[str, ...]
    leaf_index: int
    arrow_type: Any
    leaf_type: Any
    kind: ColumnKind
    num_lists: int
    tensor_shape: tuple[int, ...] | None
    is_bits: bool = False

    @property
    def label(self) -> str:
        """The column as errors name it."""
        return ".".join((self.column, *self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionPlan:
    """The fields of one shard, and the leaf columns to read for them: ascending, each once."""

    fields: tuple[FieldProjection, ...]
    column_indices: tuple[int, ...]
    num_leaves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A column that a name may mean."""

    names: tuple[str, ...]
    leaf_index: int
    type: Any
    packed: str | None = None


class _Refused(Exception):
    """Why a field cannot be read from a column: a signal within this module, never seen outside."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(why)
        self.column = column
        self.why = why


def plan_projection(
    schema: Any,
    fields: Sequence[FieldPlan],
    *,
    source: str | None = None,
    shard: str | None = None,
) -> ProjectionPlan:
    """Plans how to read the fields from a shard with this Arrow schema.

    Args:
        schema: The shard's `pyarrow.Schema`. Column order, nullability and metadata do not matter.
        fields: The fields of the source.
        source: The source's name, for errors.
        shard: The shard's path or URI, for errors.

    Returns:
        The plan.

    Raises:
        SchemaError: A column is missing, ambiguous or of a type that the field cannot take. One error names all of
            them.
    """
    planned: list[FieldProjection] = []
    problems: list[_Refused] = []
    columns = list(_columns(schema, (), 0))
    by_name: dict[str, list[_Found]] = {}
    for column in columns:
        by_name.setdefault(column.names[0], []).append(column)
    for field in fields:
        try:
            exact = by_name.get(field.source)
            planned.append(
                _plan_field(_only(exact, field.source) if exact else _resolve_path(columns, field.source), field)
            )
        except _Refused as refused:
            problems.append(refused)
    if problems:
        told = list(dict.fromkeys(problem.why + _partition_hint(problem.column, shard) for problem in problems))
        count = f"{len(told)} columns do not fit: " if len(told) > 1 else ""
        accepted = "" if all("is missing" in why for why in told) else f". {_ACCEPTED}"
        raise SchemaError(f"{count}{'; '.join(told)}{accepted}", source=source, shard=shard, column=problems[0].column)
    return ProjectionPlan(
        fields=tuple(planned),
        column_indices=tuple(sorted({item.leaf_index for item in planned})),
        num_leaves=columns[-1].leaf_index + leaf_count(columns[-1].type) if columns else 0,
    )


class PlanMemory:
    """The last plan made: shards of a source mostly have the same schema, and planning 200 columns takes 2 ms."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._packed: tuple[str | None, ...] = ()
        self._fields: tuple[FieldPlan, ...] = ()
        self._plan: ProjectionPlan | None = None

    def plan_of(
        self, schema: Any, fields: Sequence[FieldPlan], *, source: str | None = None, shard: str | None = None
    ) -> ProjectionPlan:
        """Returns `plan_projection` of the same arguments, and raises what it does."""
        packed = packed_dtypes_of(schema)
        is_same = self._packed == packed and self._fields == tuple(fields)
        if self._plan is None or not is_same or not self._schema.equals(schema):
            plan = plan_projection(schema, fields, source=source, shard=shard)
            self._schema, self._packed, self._fields, self._plan = schema, packed, tuple(fields), plan
        return self._plan


def packed_dtypes_of(schema: Any) -> tuple[str | None, ...]:
    """Returns by column what its values pack, which schemas that are equal to Arrow may differ in."""
    return tuple(_packed_dtype_of(field) for field in schema)


def leaf_count(arrow_type: Any) -> int:
    """Leaf columns that a column of this type takes in Parquet."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return leaf_count(arrow_type.storage_type)
    if pa.types.is_struct(arrow_type):
        return sum(leaf_count(member.type) for member in arrow_type)
    if pa.types.is_map(arrow_type):
        return leaf_count(arrow_type.key_type) + leaf_count(arrow_type.item_type)
    if _is_list(arrow_type):
        return leaf_count(arrow_type.value_type)
    return 1


def _plan_field(found: _Found, field: FieldPlan) -> FieldProjection:
    num_lists, leaf_type, tensor_shape, sizes = _levels_of(found.type)
    if tensor_shape is not None and len(tensor_shape) != len(field.shape):
        # A tensor into other axes than its own is one flat list; into its own, each axis is cut or padded by itself.
        num_lists, sizes, tensor_shape = 1, [math.prod(tensor_shape)], None
    kind: ColumnKind = "packed" if _is_binary(leaf_type) and num_lists == 0 else "values"
    label = ".".join(found.names)
    is_bits = kind == "packed" and found.packed == PACKED_BITS
    if kind == "packed" and found.packed is not None:
        if field.source_dtype not in (None, "bool" if is_bits else found.packed):
            says = f"and source_dtype says {field.source_dtype}: leave that out"
            raise _Refused(label, f"column {label!r} has its values packed as {found.packed}, {says}")
        if not field.shape:
            raise _Refused(
                label, f"column {label!r} holds lists, but field {field.name!r} is a scalar: give it a length"
            )
        field = replace(field, source_dtype="bool" if is_bits else found.packed)
    if pa.types.is_null(leaf_type):
        # A list of nothing but nulls stands for lists of any depth at and below it.
        num_lists = max(num_lists, len(field.shape))
    else:
        why = _leaf_problem(leaf_type, field, kind) or _no_numbers_problem(leaf_type, label, num_lists)
        if why:
            raise _Refused(label, f"column {label!r} has type {found.type}, {why}")
    axes = f"field {field.name!r} has shape {list(field.shape)}" if field.shape else f"field {field.name!r} is a scalar"
    if kind == "values" and not _depth_fits(num_lists, field.shape):
        wants = _depth_wanted(num_lists, field.shape)
        raise _Refused(label, f"column {label!r} has type {found.type}, but {axes}: {wants}")
    if kind == "packed":
        why = None if is_bits else _width_problem(leaf_type, field, axes)
    elif num_lists and sizes[-1:] and sizes[-1] is not None and not pa.types.is_null(leaf_type):
        why = _division_problem(sizes[-1], math.prod(field.shape[num_lists:]), axes)
    else:
        why = None
    if why:
        raise _Refused(label, f"column {label!r} has type {found.type}, {why}")
    return FieldProjection(
        field=field,
        column=found.names[0],
        path=found.names[1:],
        leaf_index=found.leaf_index,
        arrow_type=found.type,
        leaf_type=leaf_type,
        kind=kind,
        num_lists=num_lists,
        tensor_shape=tensor_shape,
        is_bits=is_bits,
    )


def _division_problem(num_values: int, inner: int, axes: str) -> str | None:
    return f"whose {num_values} values do not divide into rows of {inner}: {axes}" if num_values % inner else None


def _width_problem(leaf_type: Any, field: FieldPlan, axes: str) -> str | None:
    """Why no packed value of a fixed number of bytes can give the field, or None."""
    if not pa.types.is_fixed_size_binary(leaf_type):
        return None
    num_bytes, size = leaf_type.byte_width, value_bytes(field.source_dtype or "i32")
    if num_bytes % size:
        return f"whose {num_bytes} bytes are no whole number of {field.source_dtype} values of {size} bytes"
    if not field.shape:
        return None if num_bytes == size else f"which packs {num_bytes // size} values a row, but {axes}"
    return _division_problem(num_bytes // size, math.prod(field.shape[1:]), axes)


def _depth_fits(num_lists: int, shape: tuple[int, ...]) -> bool:
    return num_lists == 0 if not shape else 1 <= num_lists <= len(shape)


def _depth_wanted(num_lists: int, shape: tuple[int, ...]) -> str:
    """What to change where `_depth_fits` says no."""
    if not shape:
        return "give the field a length or shape"
    if num_lists == 0:
        return "a column without lists gives one value a row; leave length and shape out"
    return "the list levels must not outnumber the axes"


def _only(candidates: list[_Found], name: str) -> _Found:
    if len(candidates) > 1:
        raise _Refused(name, f"column {name!r} is ambiguous: {len(candidates)} columns have that name")
    return candidates[0]


def _resolve_path(columns: list[_Found], name: str) -> _Found:
    """The column that a name means which is no column's own: a path into structs."""
    candidates = list(_below(columns, name))
    if candidates:
        return _only(candidates, name)
    reached = _deepest(columns, name)
    if reached is not None:
        raise _Refused(
            name, f"column {name!r} leads into {'.'.join(reached.names)!r} of type {reached.type}, not a struct"
        )
    known = [".".join(column.names) for column in _walk(columns)]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = f" (did you mean {' or '.join(map(repr, close))}?)" if close else f" (it has {_listed(known)})"
    raise _Refused(name, f"column {name!r} is missing{hint}")


def _partition_hint(column: str, shard: str | None) -> str:
    """Says so where a column stands in the path alone, as Hive's partitions have it."""
    folder = next((part for part in (shard or "").split("/")[:-1] if part.startswith(f"{column}=")), None)
    return f"; its folder says {folder}, which is not read: write the column into the files" if folder else ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "no columns"


def _columns(members: Any, names: tuple[str, ...], first_leaf: int) -> Iterator[_Found]:
    for member in members:
        yield _Found(
            names=(*names, member.name), leaf_index=first_leaf, type=member.type, packed=_packed_dtype_of(member)
        )
        first_leaf += leaf_count(member.type)


def _packed_dtype_of(member: Any) -> str | None:
    """What `PACKED_KEY` says of an Arrow field; what nobody knows is as good as nothing."""
    dtype: str = (member.metadata or {}).get(PACKED_KEY, b"").decode(errors="replace")
    return dtype if dtype in SOURCE_DTYPES or dtype == PACKED_BITS else None


def _members(column: _Found) -> list[_Found]:
    if not pa.types.is_struct(column.type):
        return []
    return list(_columns(column.type, column.names, column.leaf_index))


def _walk(columns: list[_Found]) -> Iterator[_Found]:
    for column in columns:
        yield column
        yield from _walk(_members(column))


def _below(columns: list[_Found], path: str) -> Iterator[_Found]:
    """Every struct member that a dotted path may mean; names may hold dots themselves."""
    for column in columns:
        name = column.names[-1]
        if path == name and len(column.names) > 1:
            yield column
        elif path.startswith(f"{name}."):
            yield from _below(_members(column), path[len(name) + 1 :])


def _deepest(columns: list[_Found], path: str) -> _Found | None:
    """The column, not a struct, at which a dotted path ends too early."""
    for column in columns:
        name = column.names[-1]
        if path.startswith(f"{name}."):
            if not pa.types.is_struct(column.type):
                return column
            return _deepest(_members(column), path[len(name) + 1 :])
    return None


def _levels_of(arrow_type: Any) -> tuple[int, Any, tuple[int, ...] | None, list[int | None]]:
    """List levels, leaf type, tensor shape, and each level's fixed size where it has one."""
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        permutation = arrow_type.permutation
        shape = tuple(arrow_type.shape)
        if permutation is None or list(permutation) == sorted(permutation):
            return len(shape), arrow_type.value_type, shape, list(shape)
        return 0, arrow_type, None, []
    sizes: list[int | None] = []
    while _is_list(arrow_type):
        sizes.append(arrow_type.list_size if pa.types.is_fixed_size_list(arrow_type) else None)
        arrow_type = arrow_type.value_type
    return len(sizes), arrow_type, None, sizes


def _leaf_problem(leaf_type: Any, field: FieldPlan, kind: ColumnKind) -> str | None:
    """Why a leaf type cannot give the field's dtype, or None where it can."""
    if kind == "packed":
        return None if field.source_dtype else "which is accepted only with a source_dtype that says what its bytes are"
    if field.source_dtype:
        return f"but source_dtype {field.source_dtype!r} is for columns of binary values, one a row"
    if pa.types.is_dictionary(leaf_type):
        leaf_type = leaf_type.value_type
    types = pa.types
    if types.is_decimal(leaf_type):
        return None if field.dtype in ("f32", "f64") else f"and decimals go into f32 or f64, not {field.dtype}"
    if (
        types.is_date(leaf_type)
        or types.is_time(leaf_type)
        or types.is_timestamp(leaf_type)
        or types.is_duration(leaf_type)
    ):
        return None if field.dtype == "i64" else f"and dates and times go into i64 as raw units, not {field.dtype}"
    return None


def _no_numbers_problem(leaf_type: Any, label: str, num_lists: int) -> str | None:
    """Why a type gives no field anything, and what to do instead; None of types of numbers."""
    types = pa.types
    if _is_binary(leaf_type):
        return "whose bytes are numbers only in a column of binary values, one a row" if num_lists else None
    if types.is_dictionary(leaf_type):
        leaf_type = leaf_type.value_type
    if types.is_struct(leaf_type):
        if num_lists:
            return "a list of structs: write the member that is wanted as a list of its own"
        return (
            f"a struct: name one of its members, {' or '.join(repr(f'{label}.{member.name}') for member in leaf_type)}"
        )
    if types.is_map(leaf_type):
        return "a map: write its values as a list of their own"
    if types.is_run_end_encoded(leaf_type):
        return "which is run-end encoded: decode it before it is written, with pyarrow.compute.run_end_decode"
    if isinstance(leaf_type, pa.FixedShapeTensorType):
        return "whose axes are permuted: write it row-major"
    if isinstance(leaf_type, pa.BaseExtensionType):
        what = "an extension type that does not say whether it is numbers: write its storage"
        return None if isinstance(leaf_type, pa.Bool8Type) else f"{what}, {leaf_type.storage_type}"
    if any(kind(leaf_type) for kind in (types.is_string, types.is_large_string, types.is_string_view)):
        return "which holds no numbers: a node makes some of text, Parquet(…) >> yours"
    is_number = types.is_primitive(leaf_type) and not types.is_interval(leaf_type)
    return None if is_number or types.is_decimal(leaf_type) or types.is_null(leaf_type) else "which holds no numbers"


def _is_list(arrow_type: Any) -> bool:
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )


def _is_binary(arrow_type: Any) -> bool:
    types = pa.types
    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    return bool(
        types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
        or types.is_binary_view(arrow_type)
    )
