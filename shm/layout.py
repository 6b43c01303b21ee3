"""Where each field of each slot lies in the arena: arithmetic only.

The arena is field-major. Each field has one region, an array `[num_slots · block_rows, *shape]`, and slot i is rows
`[i · block_rows, (i + 1) · block_rows)` of every region. So a row anywhere in the arena is one integer, and a batch is
one gather per field, however many blocks it draws on.

Regions start on page boundaries, not only on cache lines: the pages of a region then hold no other field's rows, so any
slot range can be populated by itself (`MappedArena.populate` rounds outwards to pages), and vector loads are aligned in
every mapping. It costs less than a page per field. A host with larger pages than `PAGE_BYTES` still works: a page on a
region's edge is then populated twice, which is harmless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from o41td.errors import SharedMemoryError

__all__ = [
    "CACHE_LINE_BYTES",
    "PAGE_BYTES",
    "ArenaLayout",
    "FieldRegion",
    "arena_bytes_of",
    "batch_bytes_of",
    "plan_arena",
    "round_up",
]

PAGE_BYTES = 4096
"""Alignment of every region of the arena."""

CACHE_LINE_BYTES = 64
"""Alignment of every field in a batch's own memory: also the widest vector load."""

_LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRegion:
    """One field's rows in the arena.

    Attributes:
        name: The output field.
        dtype: NumPy's name of the item type, little-endian: `<i4`, `<i8`, `<f4`, `<f8`, `|b1`.
        shape: The shape of one row; `()` for a scalar.
        offset: First byte of the region in the arena, a multiple of `PAGE_BYTES`.
        row_bytes: Bytes of one row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLayout:
    """Where every field of every slot lies; equal in all processes that map the arena.

    Attributes:
        fields: One region per field, in ascending order of offset.
        num_slots: Slots in the arena.
        block_rows: Rows in a slot.
        slot_bytes: Bytes of one slot over all fields, `block_rows · Σ row_bytes`.
        total_bytes: Bytes of the whole arena, page alignment included.
    """

    fields: tuple[FieldRegion, ...]
    num_slots: int
    block_rows: int
    slot_bytes: int
    total_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows in each region: `num_slots · block_rows`. Arena rows are `[0, num_rows)`."""
        return self.num_slots * self.block_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all fields."""
        return sum(field.row_bytes for field in self.fields)

    def slot_rows(self, slot_index: int) -> slice:
        """Returns the half-open range of arena rows that slot `slot_index` holds."""
        assert 0 <= slot_index < self.num_slots, f"slot {slot_index} is not in [0, {self.num_slots})"
        return slice(slot_index * self.block_rows, (slot_index + 1) * self.block_rows)

    def byte_range(self, field: FieldRegion, first_slot: int, end_slot: int) -> tuple[int, int]:
        """Returns the half-open byte range in the arena of slots `[first_slot, end_slot)` of one field."""
        assert 0 <= first_slot <= end_slot <= self.num_slots, f"slots [{first_slot}, {end_slot}) of {self.num_slots}"
        slot_stride = self.block_rows * field.row_bytes
        return field.offset + first_slot * slot_stride, field.offset + end_slot * slot_stride

    def to_record(self) -> dict[str, Any]:
        """Returns plain values that msgpack and JSON can carry; offsets are left out, they follow from the rest."""
        return {
            "layout_version": _LAYOUT_VERSION,
            "fields": [[field.name, field.dtype, list(field.shape)] for field in self.fields],
            "num_slots": self.num_slots,
            "block_rows": self.block_rows,
            "total_bytes": self.total_bytes,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "ArenaLayout":
        """Plans the layout again from what `to_record` gave, and compares.

        Raises:
            SharedMemoryError: The record is not one of ours, or its size is not what this version plans for it.
        """
        try:
            fields = [(str(name), str(dtype), tuple(shape)) for name, dtype, shape in record["fields"]]
            _check_plan(fields, record["num_slots"], record["block_rows"])
            layout = plan_arena(fields, num_slots=record["num_slots"], block_rows=record["block_rows"])
            holds = layout.to_record() == record
        except (KeyError, TypeError, ValueError) as error:
            raise _refusal(repr(error)) from error
        if not holds:
            raise _refusal(f"version {_LAYOUT_VERSION} plans {layout.total_bytes} bytes for {dict(record)!r}")
        return layout


def plan_arena(fields: Sequence[tuple[str, str, tuple[int, ...]]], *, num_slots: int, block_rows: int) -> ArenaLayout:
    """Plans an arena of equal slots.

    Args:
        fields: (name, NumPy dtype, shape of one row) of each output field.
        num_slots: Slots in the arena, at least 1.
        block_rows: Rows in a slot, at least 1.

    Returns:
        The layout, with regions in the order of `fields`.
    """
    try:
        _check_plan(fields, num_slots, block_rows)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"plan_arena: {error}") from error
    regions = []
    offset = 0
    for name, dtype, shape in fields:
        row_bytes = prod(shape) * np.dtype(dtype).itemsize
        regions.append(
            FieldRegion(name=name, dtype=np.dtype(dtype).str, shape=tuple(shape), offset=offset, row_bytes=row_bytes)
        )
        offset = round_up(offset + num_slots * block_rows * row_bytes, PAGE_BYTES)
    return ArenaLayout(
        fields=tuple(regions),
        num_slots=num_slots,
        block_rows=block_rows,
        slot_bytes=block_rows * sum(region.row_bytes for region in regions),
        total_bytes=offset,
    )


def arena_bytes_of(field_row_bytes: Sequence[int], *, num_slots: int, block_rows: int) -> int:
    """Returns `total_bytes` of the arena that `plan_arena` would plan for fields of these bytes a row."""
    return sum(round_up(num_slots * block_rows * row_bytes, PAGE_BYTES) for row_bytes in field_row_bytes)


def batch_bytes_of(field_row_bytes: Sequence[int], batch_size: int) -> int:
    """Returns the bytes that one batch's own memory takes, for fields of these bytes a row (`BatchBuffers`)."""
    return sum(round_up(batch_size * row_bytes, CACHE_LINE_BYTES) for row_bytes in field_row_bytes)


def round_up(num_bytes: int, alignment: int) -> int:
    """Returns the smallest multiple of `alignment` that is at least `num_bytes`."""
    return -(-num_bytes // alignment) * alignment


def _check_plan(fields: Sequence[tuple[str, str, tuple[int, ...]]], num_slots: int, block_rows: int) -> None:
    """Raises ValueError or TypeError, with the reason, where `plan_arena` cannot plan."""
    if not fields:
        raise ValueError("an arena needs at least one field")
    if len({name for name, _, _ in fields}) != len(fields):
        raise ValueError(f"field names repeat: {[name for name, _, _ in fields]}")
    for name, dtype, shape in fields:
        kind = np.dtype(dtype)
        if kind.kind not in "biuf" or kind.newbyteorder("<") != kind:
            raise ValueError(f"field {name!r} has dtype {dtype!r}, which is not a little-endian number or bool")
        if not all(type(extent) is int and extent >= 1 for extent in shape):
            raise ValueError(f"field {name!r} has shape {shape!r}; every extent is an int of at least 1")
    for what, count in (("num_slots", num_slots), ("block_rows", block_rows)):
        if type(count) is not int or count < 1:
            raise ValueError(f"{what} is {count!r}, not an int of at least 1")


def _refusal(reason: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"an arena layout was received that does not hold: {reason}",
        advice="Run the same version of o41td in every process of a loader",
    )
