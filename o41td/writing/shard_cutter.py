"""Rows into shards of about one size: cut, written by a few threads, read back, and compared by digest.

`o41td write` and `o41td pack` are passes over their inputs that end here. What follows from the inputs alone comes out
the same when a killed job runs again, so shards that are done are passed over, and checked to be of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Self

from o41td.errors import CorruptDataError, DatasetConflictError
from o41td.writing.dataset_writer import DatasetWriter
from o41td.writing.row_digest import digest_of
from o41td.writing.row_spool import RowSpool
from o41td.writing.saved_shard import SavedShard
from o41td.writing.shard_reading import shard_batches

__all__ = ["ShardCutter"]

_MASK = (1 << 64) - 1


class ShardCutter:
    """Fills a shard for each split at a time, and has full ones written.

    Args:
        writer: The data set.
        stage: The curriculum stage of all shards, if any.
        shard_bytes: What a shard's rows take when decoded, about.
        threads: Shards that are written at once.
        on_shard: Hears of each shard that is finished, in the caller's thread.
    """

    def __init__(
        self,
        writer: DatasetWriter,
        *,
        stage: str | None,
        shard_bytes: int,
        threads: int,
        on_shard: Callable[[SavedShard], object],
    ) -> None:
        self._shards: list[SavedShard] = []
        self.reused = 0
        self._writer = writer
        self._stage = stage
        self._shard_bytes = shard_bytes
        self._threads = threads
        self._on_shard = on_shard
        self._spools: dict[str, RowSpool] = {}
        self._counts: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="o41td-write")
        self._pending: set[Future[tuple[SavedShard, bool]]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for spool in self._spools.values():
            spool.clear()

    def add(self, split: str, batch: Any) -> None:
        """Adds rows to the split's shard, and sends it off when it is full.

        Blocks: while as many shards as there are threads are being written.
        """
        spool = self._spools.get(split)
        if spool is None:
            spool = self._spools[split] = RowSpool()
        spool.add(batch)
        if spool.num_bytes >= self._shard_bytes:
            self._send(split)

    def finish(self, *, rows: int, digest: int) -> tuple[SavedShard, ...]:
        """Waits for all shards and returns them by split and id.

        Args:
            rows: How many rows they are to have.
            digest: Those rows' digest.

        Raises:
            CorruptDataError: They have others.
            O41Error: A shard could not be written.
        """
        for split in list(self._spools):
            self._send(split)
        while self._pending:
            self._collect()
        written = sum(int(shard.notes["row_digest"], 16) for shard in self._shards) & _MASK
        have = sum(shard.records for shard in self._shards)
        if (have, written) != (rows, digest):
            raise CorruptDataError(
                f"{rows} rows with digest {digest:016x} came in, and the shards hold {have} with {written:016x}",
                shard=self._writer.folder.uri,
                advice="Please report this; nothing was published",
            )
        return tuple(sorted(self._shards, key=lambda shard: (shard.split, shard.shard_id)))

    def _send(self, split: str) -> None:
        spool = self._spools.pop(split)
        shard_id = f"{self._counts.get(split, 0):06d}"
        self._counts[split] = self._counts.get(split, 0) + 1
        while len(self._pending) >= self._threads:
            self._collect()
        self._pending.add(self._pool.submit(self._written, split, shard_id, spool))

    def _written(self, split: str, shard_id: str, spool: RowSpool) -> tuple[SavedShard, bool]:
        """Saves one shard and reads it back; says whether it was there before.

        Called by: a thread of the pool.
        """
        with spool:
            digest = digest_of(spool.batches())
            before = self._writer.saved(split, shard_id)
            shard = self._writer.save(
                split, self._stage, spool.batches(), shard_id=shard_id, notes={"row_digest": f"{digest:016x}"}
            )
            if shard.notes.get("row_digest") != f"{digest:016x}" or shard.records != spool.num_rows:
                raise DatasetConflictError(
                    f"shard {shard_id} of split {split!r} is finished already, with other rows",
                    where=self._writer.folder.at(shard.uri),
                    advice="Write into an empty folder",
                )
        if before is None:
            back = digest_of(shard_batches(self._writer.folder, shard, self._writer.encoding))
            if back != digest:
                self._writer.folder.remove(shard.record_name)
                raise CorruptDataError(
                    "the shard, read back, does not hold the rows that were written",
                    shard=self._writer.folder.at(shard.uri),
                    advice="Check the disk, then run the same again",
                )
        return shard, before is not None

    def _collect(self) -> None:
        done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)
        for future in done:
            shard, was_there = future.result()
            self._shards.append(shard)
            self.reused += was_there
            self._on_shard(shard)
