"""Reading rows of a Parquet shard, every row counted: `ShardReader`.

Measured on the benchmark's sets (CPU ns a row for tokens, docs, tabular, images): `read_row_group` by leaf index 19
600, 12 300, 920, 163 000; with `pre_buffer` 19 600, 12 000, 985, 167 000; `iter_batches` 22 200, 11 900, 1 000 to 1
800, 163 000; a read buffer changes nothing. The figures differ by less than they vary, so a row group is one plain
`read_row_group`, without pre-buffering, which would hold its compressed bytes as well. Page checksums are verified
where there are any, at no cost where there are none. Arrow's default allocator (mimalloc) matters more: the system's
costs 40 % on tokens in page faults. Columns of long lists take half as long without their levels (`flat_lists`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from o41td.errors import ChangedDataError, CorruptDataError
from o41td.fields import FieldPlan
from o41td.memory_costs import STREAM_BATCH_BYTES, stream_bytes
from o41td.projection import PlanMemory
from o41td.workers.footer import metadata_of_tail
from o41td.workers.held_groups import HeldGroups
from o41td.workers.int96 import Int96Check
from o41td.workers.lost_handles import again_if_lost
from o41td.workers.ranges import column_ranges
from o41td.workers.row_group_stream import RowGroupStream
from o41td.workers.shard_facts import ShardFacts, facts_of
from o41td.workers.shard_file import check_unchanged, indexed_identity, open_shard_file, raise_failure

if TYPE_CHECKING:
    from o41td.workers.remote_file import RemoteFile
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["ShardReader"]


class ShardReader:
    """One open shard.

    Args:
        path: The shard.
        fields: The fields to read it for.
        source: The source's name, for errors.
        size_bytes: The shard's size when it was indexed; None takes it as it is now.
        mtime_ns: The shard's modification time when it was indexed.
        num_rows: The rows that the index or a manifest says it has; other ones are refused.
        etag: The object's etag when it was indexed, where it had one.
        objects: Where remote shards are read, or None for this machine's files.
        max_row_group_bytes: Row groups whose decoding takes more are streamed in slices.
        held: Where partly read row groups are kept; by default the reader's own.
        known: What an earlier reader of the very same file had learned, which spares parsing the footer again.
        plans: Where the plan of another shard of the same schema may be found.

    Raises:
        MissingShardError: There is no such file.
        ChangedDataError: It is not the file that was indexed.
        CorruptDataError: It is no readable Parquet file.
        SchemaError: Its columns do not give the fields.
    """

    def __init__(
        self,
        path: str,
        fields: Sequence[FieldPlan],
        *,
        source: str | None = None,
        size_bytes: int | None = None,
        mtime_ns: int | None = None,
        num_rows: int | None = None,
        etag: str | None = None,
        objects: RemoteObjects | None = None,
        max_row_group_bytes: int = 64 << 20,
        held: HeldGroups | None = None,
        known: ShardFacts | None = None,
        plans: PlanMemory | None = None,
    ) -> None:
        self.path = path
        self.source = source
        self._objects = objects
        self._held = held or HeldGroups(max_row_group_bytes)
        self._max_row_group_bytes = max_row_group_bytes
        self._identity = indexed_identity(
            path, objects, source=source, size_bytes=size_bytes, mtime_ns=mtime_ns, etag=etag
        )
        self._remote: RemoteFile | None = None
        self._metadata: Any = None
        if known is not None and known.identity == self._identity:
            self._metadata = known.metadata
        self._file, self._parquet = self._opened()
        if self._metadata is None:
            self._metadata = self._parquet.metadata
        if known is None or known.metadata is not self._metadata:
            schema = self._parquet.schema_arrow
            known = facts_of(
                self._identity,
                self._metadata,
                schema,
                fields,
                source=source,
                shard=path,
                plans=plans or PlanMemory(),
            )
        self.facts = known
        self.plan, self.projector = known.plan, known.projector
        if num_rows is not None and self._metadata.num_rows != num_rows:
            self._file.close()
            why = f"the shard has {self._metadata.num_rows} rows, and its index or manifest says {num_rows}"
            raise ChangedDataError(why, source=source, shard=path)
        self._column_indices = list(self.plan.column_indices)
        self._int96 = Int96Check(
            path, objects, info=self._identity.info, metadata=self._metadata, plan=self.plan, source=source
        )

    @property
    def num_row_groups(self) -> int:
        """Row groups in the shard."""
        return int(self._metadata.num_row_groups)

    def read_rows(
        self,
        row_group: int,
        row_start: int,
        row_stop: int,
        *,
        group_rows: int | None = None,
        decoding_bytes: int | None = None,
    ) -> Any:
        """Decodes rows [row_start, row_stop) of a row group: a `pyarrow.Table` of the projected leaf columns.

        Slices asked for one after the other cost one decode of the row group. A row group that takes more than
        `max_row_group_bytes` is decoded slice by slice; going back in it decodes it again from its beginning.

        Args:
            row_group: The row group.
            row_start: First row, within the row group.
            row_stop: One past the last row.
            group_rows: The row group's rows when it was indexed.
            decoding_bytes: What the index says that decoding its projected columns takes.

        Raises:
            ChangedDataError: The shard is not what was indexed any more.
            CorruptDataError: A page is damaged, or the rows are not as many as the footer says.
            ValueRefusedError: An INT96 timestamp is one that nanoseconds do not hold.

        Blocks: On the store, and for the decoding.
        """
        num_rows = self._rows_of(row_group, group_rows)
        assert 0 <= row_start < row_stop <= num_rows, "the range lies in the row group"
        try:
            table = self._fresh(lambda: self._read(row_group, row_start, row_stop, num_rows, decoding_bytes))
            self._int96.check(row_group, row_start, table)
        except Exception as error:  # noqa: BLE001 - whatever damaged bytes make Arrow raise is that row group's error
            self._held.drop((id(self), row_group))
            self._check_unchanged()
            raise_failure(error, source=self.source, shard=self.path, row_group=row_group)
        self._check_unchanged()
        return table

    def read_groups(self, groups: Sequence[tuple[int, int]]) -> Any:
        """Decodes whole row groups, given with their rows when indexed, in one go: one table, their rows end to end.

        Raises:
            ChangedDataError: As for `read_rows`.
            CorruptDataError: Some page is damaged, or the rows are not as many as the footer says; of which row group
                is not said.

        Blocks: On the store, and for the decoding.
        """
        num_rows = sum(self._rows_of(row_group, group_rows) for row_group, group_rows in groups)
        try:
            table = self._fresh(lambda: self._decode([row_group for row_group, _rows in groups]))
            self._check_count(groups[0][0], num_rows, table.num_rows)
            if self._int96.is_needed:
                self._check_groups(groups, table)
        except Exception as error:  # noqa: BLE001 - as in read_rows
            self._check_unchanged()
            raise_failure(error, source=self.source, shard=self.path)
        self._check_unchanged()
        return table

    def rows_at_once(self, row_group: int, decoding_bytes: int) -> int:
        """How many rows to ask `read_rows` for at once: rows that are cut to little may be large before the cut."""
        num_rows = self._rows_of(row_group, None)
        if decoding_bytes <= self._max_row_group_bytes:
            return max(1, num_rows)
        return max(1, num_rows * STREAM_BATCH_BYTES // decoding_bytes)

    def will_need(self, row_group: int) -> None:
        """Asks the kernel to read a row group's projected columns ahead, which goes on while others are decoded.

        Only for local files (`BlockFetcher` sees to others); whatever is wrong here shows when the rows are read.
        """
        if self._objects is not None or not 0 <= row_group < self.num_row_groups:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for place in column_ranges(self._metadata, [row_group], self._column_indices):
                    os.posix_fadvise(descriptor, place.start, place.stop - place.start, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Closes the file and lets go of what is held of it."""
        self._held.drop_reader(id(self))
        self._int96.close()
        self._file.close()

    def _opened(self) -> tuple[Any, Any]:
        file: Any = None
        try:
            file = open_shard_file(self.path) if self._objects is None else self._open_remote(self._objects)
            return file, pq.ParquetFile(
                file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True
            )
        except Exception as error:  # noqa: BLE001 - as in read_rows
            if file is not None:
                file.close()
            raise_failure(error, source=self.source, shard=self.path)

    def _open_remote(self, objects: RemoteObjects) -> Any:
        from o41td.workers.remote_file import RemoteFile  # with all that reaches stores, which local streams do without

        if self._metadata is None:
            self._metadata = metadata_of_tail(objects.tail(self.path, self._identity.info))
        self._remote = RemoteFile(objects, self.path, self._identity.info)
        return pa.PythonFile(self._remote, mode="r")

    def _fetched(self, row_groups: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """Has what some row groups need of a remote shard asked for at once, and not chunk by chunk."""
        if self._remote is None:
            return contextlib.nullcontext()
        return self._remote.holding(column_ranges(self._metadata, row_groups, self._column_indices))

    def _read(self, row_group: int, row_start: int, row_stop: int, num_rows: int, decoding_bytes: int | None) -> Any:
        key = (id(self), row_group)
        whole = row_start == 0 and row_stop == num_rows
        held = self._held.get(key)
        if held is None and (decoding_bytes or 0) > self._max_row_group_bytes and not (whole and num_rows == 1):
            row_bytes = (decoding_bytes or 0) // max(1, num_rows)
            self._held.make_room(stream_bytes(decoding_bytes or 0, row_bytes, len(self._column_indices)))
            held = self._stream(row_group, decoding_bytes or 0)  # takes its buffers at once
            self._held.put(key, held, held.nbytes)
        if isinstance(held, RowGroupStream):
            rows = held.read_rows(row_start, row_stop)
            self._check_count(row_group, row_stop - row_start, rows.num_rows)
            if row_stop == num_rows:
                if held.has_more():
                    self._check_count(row_group, num_rows, num_rows + 1)
                self._held.drop(key)
            return rows
        if held is None:
            self._held.make_room(decoding_bytes or 0)
            held = self._decode([row_group])
            self._check_count(row_group, num_rows, held.num_rows)
            if row_stop < num_rows:
                self._held.put(key, held, held.nbytes)
        elif row_stop == num_rows:
            self._held.drop(key)
        return held if whole else held.slice(row_start, row_stop - row_start)

    def _decode(self, row_groups: list[int]) -> Any:
        with self._fetched(row_groups):
            if len(row_groups) == 1:
                return self.facts.flat_lists.read(self._file, row_groups[0], self._parquet)
            return self._parquet.reader.read_row_groups(
                row_groups, column_indices=self._column_indices, use_threads=False
            )

    def _fresh(self, read: Callable[[], Any]) -> Any:
        """Reads; once again where a network file system lost the open handle."""
        return again_if_lost(read, reopen=self._reopen)

    def _reopen(self) -> None:
        """Opens the file anew, the same or refused; what was streamed has handles of its own, and begins again."""
        self._held.drop_reader(id(self))
        self._file.close()
        self._file, self._parquet = self._opened()
        self._check_unchanged()

    def _stream(self, row_group: int, decoding_bytes: int) -> RowGroupStream:
        return RowGroupStream(
            self.path,
            self._objects,
            info=self._identity.info,
            metadata=self._metadata,
            row_group=row_group,
            column_indices=self._column_indices,
            decoding_bytes=decoding_bytes,
        )

    def _rows_of(self, row_group: int, group_rows: int | None) -> int:
        if not 0 <= row_group < self._metadata.num_row_groups:
            why = f"it has {self._metadata.num_row_groups} row groups, and the index has a row group {row_group}"
            raise ChangedDataError(
                f"the shard changed after it was indexed: {why}", source=self.source, shard=self.path
            )
        num_rows = int(self._metadata.row_group(row_group).num_rows)
        if group_rows is not None and group_rows != num_rows:
            why = f"the row group has {num_rows} rows, and had {group_rows}"
            raise ChangedDataError(
                f"the shard changed after it was indexed: {why}",
                source=self.source,
                shard=self.path,
                row_group=row_group,
            )
        return num_rows

    def _check_groups(self, groups: Sequence[tuple[int, int]], table: Any) -> None:
        row = 0
        for row_group, group_rows in groups:
            self._int96.check(row_group, 0, table.slice(row, group_rows))
            row += group_rows

    def _check_unchanged(self) -> None:
        check_unchanged(self._identity, self.path, self._objects, source=self.source)

    def _check_count(self, row_group: int, expected: int, got: int) -> None:
        if expected != got:
            word = "fewer" if got < expected else "more"
            why = f"the row group holds {word} rows than the footer says: {got} of {expected}"
            raise CorruptDataError(why, source=self.source, shard=self.path, row_group=row_group)
