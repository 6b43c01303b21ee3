"""Reading a row group of which some columns are lists: those are decoded without their levels, the others as ever.

What comes out is what Arrow's reader gives for all of them, so nobody else knows of it. A column that turns out to need
its levels (nulls, empty lists) is not tried again in the same shard: its next row group is likely no better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from o41td.errors import O41Error
from o41td.projection import leaf_count
from o41td.workers.flat_chunk import FLAT_TYPES, NotFlat, flat_chunk
from o41td.workers.ranges import column_ranges

__all__ = ["FlatLists"]

_FEWEST_VALUES = 1 << 15
"""Chunks of fewer are decoded as fast with their levels: to open a file in memory takes 60 microseconds."""
_SHORTEST = 256
"""On average. Of a million values in lists of 16, 64, 128 and 256, Arrow takes 0.1, 0.8, 1.1 and 2.1 times as long."""
_SHORTEST_ALIKE = 16
"""Lists that may all be of one length, a multiple of eight: of 8 and 16 values, Arrow takes 0.3 and 2.2 times ours."""
_LISTS = frozenset([pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST])


class FlatLists:
    """The columns of one shard that may be decoded so.

    Args:
        metadata: The shard's footer, parsed.
        schema: Its Arrow schema.
        column_indices: The leaf columns that are read, ascending.
    """

    def __init__(self, metadata: Any, schema: Any, column_indices: Sequence[int]) -> None:
        self._metadata = metadata
        self._indices = list(column_indices)
        self._place_of: dict[int, int] = {}  # of each leaf its top-level column
        self._fields: dict[int, Any] = {}  # that may be decoded so, by leaf
        kinds = schema.types
        if not any(kind.id in _LISTS and kind.value_type in FLAT_TYPES for kind in kinds):
            return
        places = [place for place, kind in enumerate(kinds) for _leaf in range(leaf_count(kind))]
        for leaf in self._indices:
            place = self._place_of[leaf] = places[leaf]
            kind = kinds[place]
            if kind.id in _LISTS and kind.value_type in FLAT_TYPES:
                self._fields[leaf] = schema.field(place)

    def read(self, file: Any, row_group: int, parquet: Any) -> Any:
        """Returns the table of one row group's columns.

        Args:
            file: The shard, a `pyarrow.NativeFile`.
            row_group: The row group.
            parquet: Reads whatever has its levels: the shard's `pyarrow.parquet.ParquetFile`.

        Raises:
            Exception: Whatever Arrow's reader raises.
        """
        group = self._metadata.row_group(row_group)
        columns: dict[int, tuple[Any, Any]] = {}  # by place: the field and its array
        flat = []
        for leaf, field in list(self._fields.items()):
            column = group.column(leaf)
            if not _is_worth_it(column.num_values, group.num_rows):
                continue
            try:
                columns[self._place_of[leaf]] = field, self._lists(file, row_group, leaf, field.type)
            except NotFlat:
                del self._fields[leaf]
            else:
                flat.append(leaf)
        rest = [leaf for leaf in self._indices if leaf not in flat]
        if rest or not flat:
            table = parquet.reader.read_row_groups([row_group], column_indices=rest, use_threads=False)
            if not flat:
                return table
            for place, field, array in zip(
                sorted({self._place_of[leaf] for leaf in rest}), table.schema, table.columns, strict=True
            ):
                columns[place] = field, array
        fields, arrays = zip(*[columns[place] for place in sorted(columns)], strict=True)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _lists(self, file: Any, row_group: int, leaf: int, kind: Any) -> Any:
        """Returns a column's lists.

        Raises:
            NotFlat: They have to be read with their levels, or cannot be.
            O41Error: A store does not give them.
        """
        group = self._metadata.row_group(row_group)
        column = group.column(leaf)
        (place,) = column_ranges(self._metadata, [row_group], [leaf])
        levels = self._metadata.schema.column(leaf)
        if levels.max_repetition_level != 1:
            raise NotFlat("lists in lists")
        try:
            if not 0 <= place.start <= place.stop <= file.size():
                raise NotFlat("a chunk that is not in the file")
            file.seek(place.start)
            chunk = memoryview(file.read_buffer(column.total_compressed_size)).cast("B")
        except O41Error:  # a store that was asked again and again is not asked once more
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise NotFlat(str(error)) from None
        found = flat_chunk(chunk, column, kind.value_type, max_definition_level=levels.max_definition_level)
        del chunk  # as large as what is decoded now, where it is not compressed
        if len(found.starts) != group.num_rows:
            raise NotFlat(f"{len(found.starts)} lists of {group.num_rows}")
        try:
            values = pq.ParquetFile(pa.BufferReader(found.file)).reader
            values = values.read_row_groups([0], column_indices=[0], use_threads=False).column(0)
        except (OSError, pa.ArrowException) as error:
            raise NotFlat(str(error)) from None
        if values.type != kind.value_type or len(values) != column.num_values:
            raise NotFlat(f"{len(values)} values of type {values.type}")
        items = values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
        return _lists_of(items, found.starts, kind)


def _lists_of(items: Any, starts: NDArray[np.int64], kind: Any) -> Any:
    bounds = np.append(starts, len(items))
    if pa.types.is_fixed_size_list(kind):
        if (np.diff(bounds) != kind.list_size).any():
            raise NotFlat("lists of other sizes than the schema's")
        return pa.FixedSizeListArray.from_arrays(items, type=kind)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(_array_of(bounds, pa.int64()), items, type=kind)
    if len(items) >= 1 << 31:
        raise NotFlat("more values than 32 bits count")
    return pa.ListArray.from_arrays(_array_of(bounds.astype(np.int32), pa.int32()), items, type=kind)


def _array_of(numbers: NDArray[Any], kind: Any) -> Any:
    """As `pa.array`, which imports numpy.ma to see that these are not masked: 5 MiB in each worker."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _is_worth_it(num_values: int, num_lists: int) -> bool:
    """Whether so many values in lists are decoded faster without levels."""
    may_be_alike = num_values >= _SHORTEST_ALIKE * num_lists and num_values % max(1, 8 * num_lists) == 0
    return num_values >= _FEWEST_VALUES and (num_values >= _SHORTEST * num_lists or may_be_alike)
