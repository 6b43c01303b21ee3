"""Open readers of many shards, of either kind: `ReaderPool`."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from o41td.encodings import PARQUET, holds_records
from o41td.fields import FieldPlan
from o41td.listing import is_local
from o41td.memory_costs import MAX_OPEN_SHARDS
from o41td.projection import PlanMemory
from o41td.workers.held_groups import HeldGroups
from o41td.workers.parquet import ShardReader
from o41td.workers.shard_facts import FactsShelf

if TYPE_CHECKING:
    from o41td.workers.record_reader import RecordReader
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ReaderPool"]


class ReaderPool:
    """Open readers of many shards: the least recently used is closed, so descriptors stay few.

    Args:
        objects: Where remote shards are read; None where none is.
        facts: What is known of shards.
        max_open: Readers kept open; each takes one descriptor, and one more where it streams.
        max_row_group_bytes: As for `ShardReader`; also about what partly read row groups may take together.
        max_held_units: How many of these there may be.

    Called by: A worker, from one thread.
    """

    def __init__(
        self,
        *,
        objects: RemoteObjects | None = None,
        facts: FactsShelf | None = None,
        max_open: int = MAX_OPEN_SHARDS,
        max_row_group_bytes: int = 64 << 20,
        max_held_units: int = sys.maxsize,
    ) -> None:
        self._objects = objects
        self._max_open = max_open
        self._max_row_group_bytes = max_row_group_bytes
        self._held = HeldGroups(max_row_group_bytes, max_held_units)
        self._readers: OrderedDict[tuple[int, str], ShardReader | RecordReader] = OrderedDict()
        self._facts = FactsShelf() if facts is None else facts
        self._plans = PlanMemory()

    def reader(
        self,
        source_index: int,
        path: str,
        fields: Sequence[FieldPlan],
        *,
        encoding: str = PARQUET,
        source: str | None = None,
        size_bytes: int | None = None,
        mtime_ns: int | None = None,
        num_rows: int | None = None,
        etag: str | None = None,
        plans: PlanMemory | None = None,
    ) -> ShardReader | RecordReader:
        """The open reader of a source's shard, opened if need be.

        Args:
            source_index: Tells sources with different fields apart.
            path: As for `ShardReader`, like all that follow.
            fields: The source's fields.
            encoding: The source's encoding.
            source: The source's name.
            size_bytes: Its size when indexed.
            mtime_ns: Its modification time when indexed.
            num_rows: Its rows when indexed; of records, they are counted as they are read.
            etag: Its etag when indexed.
            plans: Plans other than those of the fields.
        """
        key = (source_index, path)
        reader = self._readers.get(key)
        if reader is not None:
            self._readers.move_to_end(key)
            return reader
        while len(self._readers) >= self._max_open:
            self._readers.popitem(last=False)[1].close()
        objects = None if is_local(path) else self._objects
        if holds_records(encoding):
            reader = self._readers[key] = self._record_reader(
                path,
                fields,
                encoding=encoding,
                source=source,
                size_bytes=size_bytes,
                mtime_ns=mtime_ns,
                etag=etag,
                objects=objects,
            )
            return reader
        known = self._facts.get(key)
        reader = ShardReader(
            path,
            fields,
            source=source,
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            num_rows=num_rows,
            etag=etag,
            objects=objects,
            max_row_group_bytes=self._max_row_group_bytes,
            held=self._held,
            known=known,
            plans=plans or self._plans,
        )
        self._readers[key] = reader
        if reader.facts is not known:
            self._facts.put(key, reader.facts)
        return reader

    def is_held(self, source_index: int, path: str, row_group: int) -> bool:
        """Whether a row group is decoded here, or being read in slices, and its next slice is there for the asking.

        Called by: any thread; what it says may have changed the moment after.
        """
        reader = self._readers.get((source_index, path))
        return reader is not None and (id(reader), row_group) in self._held

    def _record_reader(self, path: str, fields: Sequence[FieldPlan], **keys: Any) -> RecordReader:
        # Imported only where there are records: it brings msgspec, isal and zstandard.
        from o41td.workers.record_reader import RecordReader

        return RecordReader(path, fields, max_row_group_bytes=self._max_row_group_bytes, **keys)

    def close(self) -> None:
        """Closes every reader."""
        while self._readers:
            self._readers.popitem()[1].close()
