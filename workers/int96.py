"""INT96 timestamps that 64 bits of nanoseconds do not hold: found by reading them a second time, in seconds.

Arrow gives these columns as nanoseconds, which reach from 1677 to 2262 and wrap beyond without a word: the last day of
9999, which stands for "never" in much that Spark wrote, comes out as one of 1816. Seconds hold any date, so where both
disagree a value has wrapped. Files without such columns, which are nearly all, pay nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.errors import ValueRefusedError
from o41td.projection import FieldProjection, ProjectionPlan
from o41td.workers.leaf_values import leaf_values_of
from o41td.workers.lost_handles import again_if_lost
from o41td.workers.object_store import ObjectInfo
from o41td.workers.row_group_stream import RowGroupStream

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["Int96Check"]

_NANOSECONDS = 10**9
_MAX_STREAMS = 4


class Int96Check:
    """Looks at what was read of a shard's INT96 columns.

    Args:
        path: The shard.
        objects: Where remote shards are read, or None.
        info: What a remote shard must be.
        metadata: Its footer.
        plan: How its columns become fields.
        source: The source's name, for errors.
    """

    def __init__(
        self,
        path: str,
        objects: RemoteObjects | None = None,
        *,
        info: ObjectInfo | None = None,
        metadata: Any,
        plan: ProjectionPlan,
        source: str | None = None,
    ) -> None:
        self._path = path
        self._objects = objects
        self._info = info
        self._metadata = metadata
        self._source = source
        # Of a row group's column, not of the schema: a footer whose schema was looked at is a cycle.
        group = metadata.row_group(0) if metadata.num_row_groups else None
        self._items = {
            item.leaf_index: item
            for item in plan.fields
            if item.leaf_type == pa.timestamp("ns")
            and group is not None
            and group.column(item.leaf_index).physical_type == "INT96"
        }
        self._streams: OrderedDict[int, RowGroupStream] = OrderedDict()

    @property
    def is_needed(self) -> bool:
        """Whether there are such columns."""
        return bool(self._items)

    def check(self, row_group: int, row_start: int, table: Any) -> None:
        """Checks the rows of a table, which begins at this row of the row group.

        Raises:
            ValueRefusedError: A timestamp has wrapped; the earliest row is named.

        Blocks: On the store, and for decoding the INT96 columns once more.
        """
        if not self._items or not table.num_rows:
            return
        seconds = again_if_lost(
            lambda: self._stream_of(row_group).read_rows(row_start, row_start + table.num_rows), reopen=self.close
        )
        wrapped = [(row, item, value) for item in self._items.values() for row, value in _wrapped(item, table, seconds)]
        if wrapped:
            row, item, value = min(wrapped, key=lambda found: found[0])
            first_row = sum(self._metadata.row_group(group).num_rows for group in range(row_group))
            raise ValueRefusedError(
                f"this INT96 timestamp, {value} s from 1970, is none that 64 bits of nanoseconds hold (1677 to 2262)",
                source=self._source,
                shard=self._path,
                row_group=row_group,
                row=first_row + row_start + row,
                column=item.label,
                value=f"{value} s",
                advice="Write the column as timestamps of microseconds",
            )

    def close(self) -> None:
        """Closes what is open."""
        while self._streams:
            self._streams.popitem()[1].close()

    def _stream_of(self, row_group: int) -> RowGroupStream:
        stream = self._streams.pop(row_group, None)
        if stream is None:
            if len(self._streams) == _MAX_STREAMS:
                self._streams.popitem(last=False)[1].close()
            group = self._metadata.row_group(row_group)
            stream = RowGroupStream(
                self._path,
                self._objects,
                info=self._info,
                metadata=self._metadata,
                row_group=row_group,
                column_indices=list(self._items),
                decoding_bytes=sum(16 * group.column(index).num_values for index in self._items),
                int96_unit="s",
            )
        self._streams[row_group] = stream
        return stream


def _wrapped(item: FieldProjection, table: Any, seconds: Any) -> list[tuple[int, int]]:
    """The first row whose nanoseconds are not those of its seconds, and these; nothing where there is none."""
    column, true_column = (each.column(each.schema.get_field_index(item.column)) for each in (table, seconds))
    true = _leaf_of(item, true_column)
    wrong = np.flatnonzero(_leaf_of(item, column) // _NANOSECONDS != true)
    if not len(wrong):
        return []
    low, high = 0, len(column) - 1  # the first row of which some leaf is behind the wrong one's place
    while low < high:
        row = (low + high) // 2
        low, high = (low, row) if len(_leaf_of(item, column.slice(0, row + 1))) > wrong[0] else (row + 1, high)
    return [(low, int(true[wrong[0]]))]


def _leaf_of(item: FieldProjection, column: Any) -> NDArray[np.int64]:
    """All leaf values of a column, end to end; 0 for a null."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    for member in item.path:
        array = array.field(member)
    for _ in range(item.num_lists):
        array = array.flatten()
    numbers = leaf_values_of(array)
    return numbers.values if numbers.valid is None else np.where(numbers.valid, numbers.values, 0)
