"""One column of a table into the rows of one field: `ColumnWriter`.

    chunk ─ struct members ─┬─ scalar ── leaf values ───────────────► out [n]
                            └─ list level ─ … ─ list level ─ leaf ──► out [n, *shape]

Clean data take one pass: a whole-block range check where the types can clash at all, and one copy into the slot. Only a
block that fails the check, or that has nulls among its values, is looked at value by value; values that a cut leaves
out are never judged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from o41td.errors import SchemaError
from o41td.fields import SOURCE_DTYPES
from o41td.projection import FieldProjection
from o41td.workers.conversion import Conversion
from o41td.workers.leaf_values import LeafValues, leaf_values_of, plain_dtype_of, validity_of
from o41td.workers.list_level import (
    ListLevel,
    bytes_level_of,
    item_places,
    list_level_of,
    packed_values_of,
    tensor_level_of,
)
from o41td.workers.packed_bits import broken_bits, packed_bits_of, padded_bits_of
from o41td.workers.ragged import copy_ragged
from o41td.workers.refusals import Refusals, ValuePlace
from o41td.workers.slot_rows import SlotRows

__all__ = ["ColumnWriter"]

_CHECKED_ITEMS = 128 << 10
"""Items that are looked at one by one at a time: each takes some 30 bytes meanwhile, 4 MiB in all."""

_BITS = 1 << 20
"""Packed bits that are made bools at a time, of a byte each."""


class ColumnWriter:
    """Writes one field: walks down to its values, chunk by chunk, then converts them into the slot."""

    def __init__(self, item: FieldProjection) -> None:
        self.name = item.field.name
        self._item = item
        self._field = item.field
        self._target = item.field.numpy_dtype
        self._packed = np.dtype(SOURCE_DTYPES[item.field.source_dtype or "i32"]) if item.kind == "packed" else None
        self._flags = self._packed is not None and self._packed.kind == "b"
        self._conversion: Conversion | None = None
        is_plain = item.kind == "values" and not item.field.shape and not item.path
        dtype = plain_dtype_of(item.arrow_type) if is_plain else None
        self._plain = None if dtype is None else Conversion(dtype, self._target, exact=item.field.exact)

    def place_in(self, schema: Any) -> int:
        """The field's column in rows of this schema, checked to be of the type that was planned for."""
        place: int = schema.get_field_index(self._item.column)
        found = schema.field(place).type if place >= 0 else None
        for member in self._item.path:
            at = found.get_field_index(member) if found is not None and pa.types.is_struct(found) else -1
            found = found.field(at).type if found is not None and at >= 0 else None
        if found is None or found != self._item.arrow_type:
            has = "nothing of that name, or it twice" if found is None else f"type {found}"
            why = f"the rows have {has} where the schema has type {self._item.arrow_type}"
            raise SchemaError(why, column=self._item.label)
        return place

    def write(self, column: Any, rows: SlotRows, refusals: Refusals) -> None:
        """Writes the field's column, chunked or not, into as many rows."""
        if not isinstance(column, pa.ChunkedArray):
            chunks = [column]
        elif column.num_chunks == 1:
            chunks = [column.chunk(0)]
        else:
            chunks = column.chunks
        row = 0
        for chunk in chunks:
            stop = row + len(chunk)
            if stop > row:
                part = rows.part(row, stop)
                if not self._write_plainly(chunk, part):
                    self._write_chunk(chunk, part, ValuePlace(refusals, self._item.label, row))
            row = stop

    def _write_plainly(self, array: Any, rows: SlotRows) -> bool:
        """Writes scalars that Arrow holds as NumPy would, all there and all fitting, with the least ado."""
        plain = self._plain
        if plain is None or array.null_count:
            return False
        dtype = plain.source
        values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
        if not plain.all_fit(values):
            return False
        plain.cast_into(values, rows)
        return True

    def _write_chunk(self, array: Any, rows: SlotRows, place: ValuePlace) -> None:
        above: NDArray[np.bool_] | None = None
        for member in self._item.path:
            above = _both(above, validity_of(array))
            array = array.field(member)
        if self._packed is not None:
            self._write_packed(array, above, rows, place)
        elif not self._field.shape:
            leaf = leaf_values_of(array)
            self._write_scalars(LeafValues(leaf.values, _both(above, leaf.valid)), rows, place)
        else:
            tensor = self._item.tensor_shape
            if isinstance(array, pa.FixedShapeTensorArray):
                array = array.storage
            level = list_level_of(array) if tensor is None else tensor_level_of(array, tensor)
            self._write_lists(_under(level, above), 0, rows, place)

    def _write_packed(self, array: Any, above: NDArray[np.bool_] | None, rows: SlotRows, place: ValuePlace) -> None:
        assert self._packed is not None
        size = self._packed.itemsize
        level = _under(bytes_level_of(array), above)
        if self._item.is_bits:
            self._write_bits(level, rows, place)
            return
        broken = level.lengths % size != 0
        if broken.any():
            row = int(np.argmax(broken))
            why = f"{level.lengths[row]} bytes are no whole number of {self._field.source_dtype} values of {size} bytes"
            place.add(broken, f"{level.lengths[row]} bytes", why)
            level = level.without(broken)
        level, leaf = packed_values_of(level, np.dtype(np.uint8) if self._flags else self._packed)
        if self._field.shape:
            self._write_rows(level, leaf, 0, rows, place)
            return
        wrong = level.lengths != 1
        if level.valid is not None:
            wrong &= level.valid
        if wrong.any():
            row = int(np.argmax(wrong))
            why = f"a scalar field takes one value a row, and this row packs {level.lengths[row]}"
            place.add(wrong, f"{level.lengths[row]} values", why)
            level = level.without(wrong)
        places = np.where(level.lengths == 1, level.starts, 0)
        values = leaf.values.take(places) if len(leaf.values) else np.zeros(len(places), leaf.values.dtype)
        self._write_scalars(LeafValues(values, _both(level.valid, ~wrong if wrong.any() else None)), rows, place, wrong)

    def _write_bits(self, level: ListLevel, rows: SlotRows, place: ValuePlace) -> None:
        """Writes lists of bools that are packed as bits, some at a time: as values they take eight times the bytes."""
        broken = broken_bits(level)
        if broken.any():
            count = level.lengths[int(np.argmax(broken))]
            place.add(broken, f"{count} bytes", f"{count} bytes that are no packed bits")
            level = level.without(broken)
        if len(self._field.shape) == 1 and self._field.pad in (0, 1):
            self._write_bit_rows(level, rows, place)
            return
        for start, stop in _runs_of(level.lengths * 8, _BITS):
            bits, leaf = packed_bits_of(level.part(start, stop))
            self._write_rows(bits, leaf, 0, rows.part(start, stop), place.of_rows(start, stop))

    def _write_bit_rows(self, level: ListLevel, rows: SlotRows, place: ValuePlace) -> None:
        """Cuts and pads while a value is a bit, and makes it a bool only then."""
        (width,) = self._field.shape
        bits = padded_bits_of(level, width, pad=bool(self._field.pad))
        num_rows = max(1, _BITS // width)
        for start in range(0, len(rows), num_rows):
            stop = min(len(rows), start + num_rows)
            values = np.unpackbits(bits[start:stop], axis=1, count=width, bitorder="little").view(np.bool_)
            if level.valid is None:
                rows.part(start, stop).put(values)
                continue
            with rows.part(start, stop).side_by_side() as out:
                out[...] = values
                self._fill_nulls(~level.valid[start:stop], out, place.of_rows(start, stop), "the list is null")

    def _write_scalars(
        self, leaf: LeafValues, rows: SlotRows, place: ValuePlace, refused: NDArray[np.bool_] | None = None
    ) -> None:
        conversion = self._conversion_of(leaf)
        values, valid = leaf.values, leaf.valid
        if not conversion.all_fit(values):
            self._refuse_misfits(values, valid, conversion, place)
        if valid is None:
            conversion.cast_into(values, rows)
            return
        with rows.side_by_side() as out:
            conversion.cast_into(values, SlotRows(out))
            missing = ~valid if refused is None else ~valid & ~refused
            self._fill_nulls(missing, out, place, "the value is null")

    def _write_lists(self, level: ListLevel, axis: int, rows: SlotRows, place: ValuePlace) -> None:
        """Writes list rows of shape [*shape[axis:]]. The last level goes to `_write_rows`."""
        if axis == self._item.num_lists - 1:
            level, leaf = _leaf_of(level)
            self._write_rows(level, leaf, axis, rows, place)
            return
        with rows.side_by_side() as out:
            self._write_nested(level, axis, out, place)

    def _write_nested(self, level: ListLevel, axis: int, out: NDArray[Any], place: ValuePlace) -> None:
        """Writes rows of lists of lists into `out`: [n, *shape[axis:]]."""
        shape = self._field.shape
        size = shape[axis]
        taken = np.minimum(level.lengths, size)
        places = item_places(level.starts, taken)
        inner = list_level_of(level.items).taken(places)
        inner_place = place.of_items(taken)
        cells = out.reshape(len(out) * size, *shape[axis + 1 :])
        if len(places) == len(cells):
            self._write_lists(inner, axis + 1, SlotRows(cells), inner_place)
        else:
            part = np.empty((len(places), *shape[axis + 1 :]), self._target)
            self._write_lists(inner, axis + 1, SlotRows(part), inner_place)
            out.fill(self._field.pad)
            cells[item_places(np.arange(len(taken), dtype=np.int64) * size, taken)] = part
        if level.valid is not None:
            self._fill_nulls(~level.valid, out, place, "the list is null")

    def _write_rows(self, level: ListLevel, leaf: LeafValues, axis: int, rows: SlotRows, place: ValuePlace) -> None:
        """Writes rows of leaf values of shape [*shape[axis:]], row-major, cut and padded at the end."""
        if not len(rows):
            return
        inner = math.prod(self._field.shape[axis + 1 :])
        if inner > 1:
            broken = level.lengths % inner != 0
            if broken.any():
                at = int(np.argmax(broken))
                count = level.lengths[at]
                place.add(broken, f"{count} values", f"a list of {count} values does not divide into rows of {inner}")
                level = level.without(broken)
        if level.valid is None and leaf.valid is None and self._conversion_of(leaf).all_fit(leaf.values):
            self._write_clean(level, leaf, rows.flat)
            return
        with rows.side_by_side() as out:
            flat = SlotRows(out).flat
            if leaf.valid is None and self._conversion_of(leaf).all_fit(leaf.values):
                self._write_clean(level, leaf, flat)
            else:
                for start, stop in _runs_of(np.minimum(level.lengths, flat.array.shape[1]), _CHECKED_ITEMS):
                    part = replace(level.part(start, stop), valid=None)
                    self._write_checked(part, leaf, flat.array[start:stop], place.of_rows(start, stop))
            if level.valid is not None:
                self._fill_nulls(~level.valid, out, place, "the list is null")

    def _write_clean(self, level: ListLevel, leaf: LeafValues, rows: SlotRows) -> None:
        """Every value fits: rows of one length are one copy, others are copied row by row."""
        conversion = self._conversion_of(leaf)
        num_rows, width = len(rows), rows.array.shape[1]
        length = int(level.lengths[0])
        first = int(level.starts[0])
        step = int(level.starts[1]) - first if num_rows > 1 else length
        if (level.lengths == length).all() and (np.diff(level.starts) == step).all():
            size = leaf.values.itemsize
            dense = as_strided(leaf.values[first:], (num_rows, length), (step * size, size), writeable=False)
            conversion.cast_into(dense[:, :width], rows.columns(0, length))
            if length < width:
                rows.columns(length, width).put(self._field.pad)
            return
        copy_ragged(conversion.cast(leaf.values), level.starts, np.minimum(level.lengths, width), rows, self._field.pad)

    def _write_checked(self, level: ListLevel, leaf: LeafValues, flat: NDArray[Any], place: ValuePlace) -> None:
        """Looks at each value that is delivered, and at no other."""
        conversion = self._conversion_of(leaf)
        taken = np.minimum(level.lengths, flat.shape[1])
        places = item_places(level.starts, taken)
        items_place = place.of_items(taken)
        values = leaf.values[places]
        valid = None if leaf.valid is None else leaf.valid[places]
        self._refuse_misfits(values, valid, conversion, items_place)
        converted = conversion.cast(values)
        if valid is not None and not valid.all():
            converted = np.array(converted)
            self._fill_nulls(~valid, converted, items_place, "an item of the list is null")
        flat.fill(self._field.pad)
        num_rows, width = flat.shape
        flat.reshape(-1)[item_places(np.arange(num_rows, dtype=np.int64) * width, taken)] = converted

    def _refuse_misfits(
        self, values: NDArray[Any], valid: NDArray[np.bool_] | None, conversion: Conversion, place: ValuePlace
    ) -> None:
        bad = conversion.misfits(values)
        if valid is not None:
            bad &= valid
        if bad.any():
            at = int(np.argmax(bad))
            value = values[at].item()
            advice = "Set `exact = false` of the field to round it" if conversion.rounds else None
            place.add(bad, value, conversion.refusal_of(value), advice)

    def _fill_nulls(self, missing: NDArray[np.bool_], out: NDArray[Any], place: ValuePlace, what: str) -> None:
        if not missing.any():
            return
        if self._field.null is not None:
            out[missing] = self._field.null
            return
        advice = f"Set `null` of field {self.name!r} to the value to use instead"
        place.add(missing, "null", what, advice)

    def _conversion_of(self, leaf: LeafValues) -> Conversion:
        source = leaf.values.dtype
        if self._conversion is None or self._conversion.source != source:
            self._conversion = Conversion(source, self._target, exact=self._field.exact, flags=self._flags)
        return self._conversion


def _runs_of(counts: NDArray[np.int64], num_items: int) -> list[tuple[int, int]]:
    """Cuts rows of so many items each into runs of at most `num_items` of them, or one row."""
    ends = np.cumsum(counts)
    cuts = [0]
    while cuts[-1] < len(counts):
        done = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, done + num_items, side="right"))))
    return list(pairwise(cuts))


def _leaf_of(level: ListLevel) -> tuple[ListLevel, LeafValues]:
    """The leaf values that a level's rows use, and the level with its places counted from the first of them."""
    filled = level.lengths > 0
    if not filled.any():
        return level, leaf_values_of(level.items[:0])
    starts, lengths = level.starts[filled], level.lengths[filled]
    first, last = int(starts.min()), int((starts + lengths).max())
    values = leaf_values_of(level.items.slice(first, last - first))
    return ListLevel(level.starts - first, level.lengths, level.valid, level.items), values


def _under(level: ListLevel, above: NDArray[np.bool_] | None) -> ListLevel:
    """The level where rows under a null struct are null."""
    if above is None:
        return level
    return ListLevel(level.starts, np.where(above, level.lengths, 0), _both(level.valid, above), level.items)


def _both(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    if one is None:
        return other
    return one if other is None else one & other
