"""`o41td write`: rows of any format into a data set of ours, split, shuffled, cut into shards, verified.

    inputs ─► digest ─► split by hash ─┬─────────────────► cut into shards ─► save ─► read back, compare digests
                                       └─► shuffle (disk) ─┘

One pass over the inputs, whatever the number of splits. Everything follows from the inputs and the job, so a job that
was killed is simply run again: shards that are done are passed over, and the job's own record refuses to go on with
other inputs or settings in the same folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import PARQUET
from o41td.errors import ConfigError, CorruptDataError, DatasetConflictError
from o41td.order.hash import hash_range, stream_key
from o41td.storage_config import StorageConfig
from o41td.writing.dataset_writer import DatasetWriter
from o41td.writing.inputs import InputFile, columns_of, list_inputs, read_inputs
from o41td.writing.layout import BALANCED, Layout
from o41td.writing.row_digest import digest_of, row_hashes
from o41td.writing.row_shuffle import RowShuffle
from o41td.writing.row_spool import RowSpool
from o41td.writing.saved_shard import RECORDS_FOLDER, SavedShard
from o41td.writing.shard_reading import shard_batches

__all__ = ["WriteJob", "WriteProgress", "WriteReport", "run_write"]

_SPLIT, _SHUFFLE = 1, 2
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """What to write.

    Attributes:
        inputs: Files, folders and globs to read.
        manifest_uri: The manifest to publish; shards lie beside it.
        input_format: What the inputs are; from their suffixes if left out.
        columns: The columns to keep, in order; all if left out.
        encoding: The shards' encoding.
        layout: How Parquet is laid out.
        splits: Each split's name and share of the rows; the shares add up to 1.
        split_by: The column whose value decides a row's split; each row for itself if left out.
        stage: The curriculum stage of all shards, if any.
        shuffle: Whether rows are shuffled once over the whole data set.
        seed: Of splits and shuffle.
        shard_bytes: What a shard's rows take when decoded, about.
        threads: Shards that are written at once.
        scratch: Where the shuffle's temporary files go; beside the data set, or the system's folder if it is remote.
    """

    inputs: Sequence[str]
    manifest_uri: str
    input_format: str | None = None
    columns: Sequence[str] | None = None
    encoding: str = PARQUET
    layout: Layout = BALANCED
    splits: Mapping[str, float]
    split_by: str | None = None
    stage: str | None = None
    shuffle: bool = False
    seed: int = 0
    shard_bytes: int = 256 << 20
    threads: int = 2
    scratch: str | None = None

    def __post_init__(self) -> None:
        shares = list(self.splits.values())
        if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            told = ", ".join(f"{name}={share:g}" for name, share in self.splits.items())
            raise ConfigError(f"the splits' shares are to be above 0 and add up to 1; given are {told or 'none'}")
        if self.shard_bytes < 1 or self.threads < 1:
            raise ConfigError("a shard's bytes and the number of threads are at least 1")

    def record(self, files: Sequence[InputFile]) -> bytes:
        """Returns all that the rows of shards follow from, as the document that guards a folder."""
        document = {
            "version": 1,
            "inputs": [[file.path, file.format, file.size_bytes, file.mtime_ns] for file in files],
            "columns": None if self.columns is None else list(self.columns),
            "encoding": self.encoding,
            "layout": [self.layout.name, self.layout.row_group_bytes],
            "splits": dict(self.splits),
            "split_by": self.split_by,
            "stage": self.stage,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "shard_bytes": self.shard_bytes,
        }
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteProgress:
    """How far a job is: rows read and bytes of the inputs they stood in, rows in finished shards, shards."""

    rows_read: int
    input_bytes: int
    rows_done: int
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What a job did.

    Attributes:
        manifest_uri: The manifest that was published.
        shards: The shards of it.
        rows: Rows read, and so written.
        input_bytes: The inputs' size.
        reused: How many shards were done before.
        digest: The rows' digest, of what was read and of what the shards hold.
    """

    manifest_uri: str
    shards: tuple[SavedShard, ...]
    rows: int
    input_bytes: int
    reused: int
    digest: int

    @property
    def size_bytes(self) -> int:
        """The shards' size."""
        return sum(shard.size_bytes for shard in self.shards)


def run_write(
    job: WriteJob, *, storage: StorageConfig | None = None, on_progress: Callable[[WriteProgress], object] | None = None
) -> WriteReport:
    """Writes a data set and publishes its manifest.

    Args:
        job: What to write.
        storage: How to reach an object store.
        on_progress: Hears now and then how far it is, in this thread.

    Raises:
        O41Error: The inputs, the settings or the store do not allow it. Shards that were finished stay finished.

    Blocks: until all is written, read back and published.
    """
    files = list_inputs(job.inputs, job.input_format)
    writer = DatasetWriter(job.manifest_uri, job.encoding, storage, layout=job.layout)
    _claim(writer, job.record(files))
    with ExitStack() as held:
        run = held.enter_context(_Run(job, files, writer, on_progress))
        if job.shuffle:
            scratch = job.scratch or (writer.folder.uri if "://" not in writer.folder.uri else None)
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=".o41td-shuffle-", dir=scratch)))
            shuffles = {split: held.enter_context(RowShuffle(folder)) for split in job.splits}
            for split, batch, first in run.routed():
                shuffles[split].add(batch, first)
            for split, shuffle in shuffles.items():
                for batch in shuffle.batches():
                    run.cut(split, batch)
        else:
            for split, batch, _ in run.routed():
                run.cut(split, batch)
        shards = run.finish()
    return WriteReport(
        manifest_uri=writer.commit_manifest(),
        shards=tuple(shards),
        rows=run.rows_read,
        input_bytes=sum(file.size_bytes for file in files),
        reused=run.reused,
        digest=run.digest,
    )


def _claim(writer: DatasetWriter, record: bytes) -> None:
    """Makes the folder this job's; another job's is left alone."""
    name = f"{RECORDS_FOLDER}/job.json"
    if writer.folder.create(name, record):
        return
    before, now = (json.loads(data) for data in (writer.folder.read(name) or b"{}", record))
    differing = [key for key in now if before.get(key) != now[key]]
    if differing:
        raise DatasetConflictError(
            f"this folder was begun with other {', '.join(differing)}",
            where=writer.folder.at(name),
            advice="Go on with the same, or write into an empty folder",
        )


class _Run:
    """One job at work: a shard being filled for each split, and some being written."""

    def __init__(
        self,
        job: WriteJob,
        files: Sequence[InputFile],
        writer: DatasetWriter,
        on_progress: Callable[[WriteProgress], object] | None,
    ) -> None:
        self.rows_read = 0
        self.digest = 0
        self.reused = 0
        self._job = job
        self._files = files
        self._writer = writer
        self._on_progress = on_progress
        self._input_bytes = 0
        self._spools: dict[str, RowSpool] = {}
        self._counts = dict.fromkeys(job.splits, 0)
        self._pool = ThreadPoolExecutor(job.threads, thread_name_prefix="o41td-write")
        self._pending: set[Future[tuple[SavedShard, bool]]] = set()
        self._shards: list[SavedShard] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for spool in self._spools.values():
            spool.clear()

    def routed(self) -> Iterator[tuple[str, Any, NDArray[np.uint64]]]:
        """Yields all rows that are read, by split, with the keys of their shuffled order."""
        names = list(self._job.splits)
        edges = np.cumsum(list(self._job.splits.values()))[:-1]
        done_bytes = np.cumsum([0, *(file.size_bytes for file in self._files)]).tolist()
        for rows in read_inputs(self._files):
            batch = columns_of(rows.batch, self._job.columns)
            first, stop = self.rows_read, self.rows_read + batch.num_rows
            self.digest = (self.digest + digest_of([batch])) & _MASK
            self.rows_read, self._input_bytes = stop, done_bytes[rows.file]
            keys = hash_range(stream_key(self._job.seed, _SHUFFLE), first, stop)
            if len(names) == 1:
                yield names[0], batch, keys
            else:
                chosen = np.searchsorted(edges, self._luck(batch, first, stop), side="right")
                for place, name in enumerate(names):
                    mine = np.flatnonzero(chosen == place)
                    if len(mine):
                        yield name, batch.take(mine), keys[mine]
            self._tell()

    def cut(self, split: str, batch: Any) -> None:
        """Adds rows to the split's shard, and sends it off when it is full."""
        spool = self._spools.get(split)
        if spool is None:
            spool = self._spools[split] = RowSpool()
        spool.add(batch)
        if spool.num_bytes >= self._job.shard_bytes:
            self._send(split)

    def finish(self) -> list[SavedShard]:
        """Waits for all shards, checks that they hold what was read, and returns them by split and id."""
        for split in list(self._spools):
            self._send(split)
        while self._pending:
            self._collect()
        written = sum(int(shard.notes["row_digest"], 16) for shard in self._shards) & _MASK
        rows = sum(shard.records for shard in self._shards)
        if (rows, written) != (self.rows_read, self.digest):
            raise CorruptDataError(
                f"{self.rows_read} rows were read with digest {self.digest:016x}, and the shards hold {rows} with "
                f"{written:016x}",
                shard=self._writer.folder.uri,
                advice="Please report this; nothing was published",
            )
        return sorted(self._shards, key=lambda shard: (shard.split, shard.shard_id))

    def _luck(self, batch: Any, first: int, stop: int) -> NDArray[np.float64]:
        """A number in [0, 1) for each row: by its place in the inputs, or by the value that splits go by."""
        if self._job.split_by is None:
            numbers = hash_range(stream_key(self._job.seed, _SPLIT), first, stop)
        else:
            numbers = row_hashes(columns_of(batch, [self._job.split_by]))
            numbers = numbers ^ np.uint64(stream_key(self._job.seed, _SPLIT))
            numbers *= np.uint64(0x9E3779B97F4A7C15)
        return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _send(self, split: str) -> None:
        spool = self._spools.pop(split)
        shard_id = f"{self._counts[split]:06d}"
        self._counts[split] += 1
        while len(self._pending) >= self._job.threads:
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
                split, self._job.stage, spool.batches(), shard_id=shard_id, notes={"row_digest": f"{digest:016x}"}
            )
            if shard.notes.get("row_digest") != f"{digest:016x}" or shard.records != spool.num_rows:
                raise DatasetConflictError(
                    f"shard {shard_id} of split {split!r} is finished already, with other rows",
                    where=self._writer.folder.at(shard.uri),
                    advice="Write into an empty folder",
                )
        if before is None:
            back = digest_of(shard_batches(self._writer.folder, shard, self._job.encoding))
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
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            rows_done = sum(shard.records for shard in self._shards)
            self._on_progress(
                WriteProgress(
                    rows_read=self.rows_read,
                    input_bytes=self._input_bytes,
                    rows_done=rows_done,
                    shards=len(self._shards),
                )
            )
