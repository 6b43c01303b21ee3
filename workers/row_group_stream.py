"""A large row group, read in slices: bounded memory, forwards; going back begins the row group anew.

Column chunks are read through small buffers page by page, so neither the compressed nor the decoded row group is ever
whole in memory. What is held is one decoded batch and, of each column, its buffer, its page and its dictionary:
`stream_bytes` of `o41td.memory`, which the bound counts with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from o41td.memory_costs import STREAM_BATCH_BYTES, read_ahead_bytes, stream_bytes
from o41td.workers.object_store import ObjectInfo
from o41td.workers.ranges import column_ranges
from o41td.workers.shard_file import open_shard_file

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["RowGroupStream"]

_BUFFER_BYTES = 256 << 10


class RowGroupStream:
    """Serves consecutive row ranges of one row group.

    Args:
        path: The shard.
        objects: Where remote shards are read, or None.
        info: What a remote shard must be.
        metadata: The shard's footer.
        row_group: The row group.
        column_indices: The leaf columns to read.
        decoding_bytes: What decoding these columns takes; it sets how many rows are decoded at once.
        int96_unit: The unit in which INT96 timestamps are read; nanoseconds by default.
    """

    def __init__(
        self,
        path: str,
        objects: RemoteObjects | None = None,
        *,
        info: ObjectInfo | None = None,
        metadata: Any,
        row_group: int,
        column_indices: Sequence[int],
        decoding_bytes: int,
        int96_unit: str | None = None,
    ) -> None:
        self._row_group = row_group
        self._column_indices = list(column_indices)
        self._num_rows: int = metadata.row_group(row_group).num_rows
        self.batch_rows = max(1, STREAM_BATCH_BYTES * self._num_rows // max(1, decoding_bytes))
        self.nbytes = stream_bytes(decoding_bytes, decoding_bytes // max(1, self._num_rows), len(column_indices))
        if objects is not None:
            self.nbytes += read_ahead_bytes(len(column_indices))
        self._file = open_shard_file(path) if objects is None else self._open_remote(path, objects, info, metadata)
        self._parquet = pq.ParquetFile(
            self._file,
            metadata=metadata,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit=int96_unit,
        )
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._restart()

    def read_rows(self, row_start: int, row_stop: int) -> Any:
        """Decodes rows [row_start, row_stop) of the row group.

        Returns:
            A `pyarrow.Table`; it has fewer rows where the row group ends too early.
        """
        if row_start < self._row:
            self._restart()
        parts = []
        while self._row < row_stop:
            if self._batch is None or self._batch.num_rows == 0:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    break
                continue
            skipped = min(max(0, row_start - self._row), self._batch.num_rows)
            taken = 0 if skipped == self._batch.num_rows else min(row_stop - self._row, self._batch.num_rows) - skipped
            if taken > 0:
                parts.append(self._batch.slice(skipped, taken))
            self._row += skipped + taken
            self._batch = self._batch.slice(skipped + taken)
        return pa.Table.from_batches(parts, None if parts else pa.schema([]))

    def has_more(self) -> bool:
        """Whether rows are left; looks ahead by one batch."""
        while self._batch is None or self._batch.num_rows == 0:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return False
        return True

    def close(self) -> None:
        """Closes the file."""
        self._batches, self._batch = iter(()), None
        self._file.close()

    def _open_remote(self, path: str, objects: RemoteObjects, info: ObjectInfo | None, metadata: Any) -> Any:
        from o41td.workers.read_ahead_file import ReadAheadFile

        assert info is not None, "a remote shard is known before it is read"
        runs = column_ranges(metadata, [self._row_group], self._column_indices)
        file = ReadAheadFile(objects, path, info, runs=runs, window_bytes=read_ahead_bytes(len(runs)))
        return pa.PythonFile(file, mode="r")

    def _restart(self) -> None:
        self._row = 0
        self._batch = None
        self._batches = self._parquet.reader.iter_batches(
            self.batch_rows, [self._row_group], column_indices=self._column_indices, use_threads=False
        )
