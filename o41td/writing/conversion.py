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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import PARQUET
from o41td.errors import ConfigError, DatasetConflictError
from o41td.listing import is_local
from o41td.order.hash import hash_range, stream_key
from o41td.storage_config import StorageConfig
from o41td.writing.dataset_writer import DatasetWriter
from o41td.writing.inputs import InputFile, columns_of, list_inputs, read_inputs
from o41td.writing.layout import BALANCED, Layout
from o41td.writing.row_digest import digest_of, row_hashes
from o41td.writing.row_shuffle import RowShuffle
from o41td.writing.saved_shard import RECORDS_FOLDER, SavedShard
from o41td.writing.shard_cutter import ShardCutter

__all__ = ["WriteJob", "WriteProgress", "WriteReport", "claimed_folder", "run_write"]

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
    """How far a job is: rows read, bytes of the inputs that are behind, shards that are finished."""

    rows_read: int
    input_bytes: int
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
    files = list_inputs(job.inputs, job.input_format, to=job.manifest_uri)
    writer = DatasetWriter(job.manifest_uri, job.encoding, storage, layout=job.layout)
    reading = _Reading(job, files)
    shards: list[SavedShard] = []

    def tell() -> None:
        if on_progress is not None:
            on_progress(WriteProgress(rows_read=reading.rows, input_bytes=reading.input_bytes, shards=len(shards)))

    def on_shard(shard: SavedShard) -> None:
        shards.append(shard)
        tell()

    with ExitStack() as held:
        held.enter_context(claimed_folder(writer, job.record(files)))
        cutter = held.enter_context(
            ShardCutter(writer, stage=job.stage, shard_bytes=job.shard_bytes, threads=job.threads, on_shard=on_shard)
        )
        if job.shuffle:
            here = writer.folder.uri if is_local(writer.folder.uri) else tempfile.gettempdir()
            folder = Path(job.scratch or here)
            shuffles = {split: held.enter_context(RowShuffle(folder)) for split in job.splits}
            for split, batch, keys in reading.routed():
                shuffles[split].add(batch, keys)
                tell()
            for split, shuffle in shuffles.items():
                for batch in shuffle.batches():
                    cutter.add(split, batch)
        else:
            for split, batch, _ in reading.routed():
                cutter.add(split, batch)
                tell()
        finished = cutter.finish(rows=reading.rows, digest=reading.digest)
        if not finished:
            raise ConfigError("the inputs have no rows, so there is nothing to write", where=", ".join(job.inputs))
    return WriteReport(
        manifest_uri=writer.commit_manifest(),
        shards=finished,
        rows=reading.rows,
        input_bytes=sum(file.size_bytes for file in files),
        reused=cutter.reused,
        digest=reading.digest,
    )


@contextmanager
def claimed_folder(writer: DatasetWriter, record: bytes) -> Iterator[None]:
    """Makes a data set's folder one job's, for good; but for one that claimed it and fails before it has a shard.

    Raises:
        DatasetConflictError: It is another job's; the settings that differ are named.
    """
    name = f"{RECORDS_FOLDER}/job.json"
    is_new = writer.folder.create(name, record)
    if not is_new:
        _check_same_job(writer, name, record)
    try:
        yield
    except BaseException:
        if is_new and not writer.folder.sizes(f"{RECORDS_FOLDER}/shards/"):
            writer.folder.remove(name)
            writer.folder.remove_empty_folders()
        raise


def _check_same_job(writer: DatasetWriter, name: str, record: bytes) -> None:
    before, now = (json.loads(data) for data in (writer.folder.read(name) or b"{}", record))
    differing = [key for key in now if before.get(key) != now[key]]
    if differing:
        raise DatasetConflictError(
            f"this folder was begun with other {', '.join(differing)}",
            where=writer.folder.at(name),
            advice="Go on with the same, or write into an empty folder",
        )


class _Reading:
    """The inputs being read: rows by split, and how far that is."""

    def __init__(self, job: WriteJob, files: Sequence[InputFile]) -> None:
        self.rows = 0
        self.digest = 0
        self.input_bytes = 0
        self._job = job
        self._files = files

    def routed(self) -> Iterator[tuple[str, Any, NDArray[np.uint64]]]:
        """Yields all rows, by split, with the keys of their shuffled order."""
        names = list(self._job.splits)
        edges = np.cumsum(list(self._job.splits.values()))[:-1]
        done_bytes = np.cumsum([0, *(file.size_bytes for file in self._files)]).tolist()
        wanted = None if self._job.columns is None else [*self._job.columns]
        if wanted is not None and self._job.split_by is not None and self._job.split_by not in wanted:
            wanted.append(self._job.split_by)
        for part in read_inputs(self._files, wanted):
            batch = columns_of(part.batch, self._job.columns)
            first, stop = self.rows, self.rows + batch.num_rows
            self.digest = (self.digest + digest_of([batch])) & _MASK
            self.rows, self.input_bytes = stop, done_bytes[part.file]
            keys = hash_range(stream_key(self._job.seed, _SHUFFLE), first, stop)
            decides = None if self._job.split_by is None else columns_of(part.batch, [self._job.split_by])
            if len(names) == 1:
                yield names[0], batch, keys
                continue
            chosen = np.searchsorted(edges, self._luck(decides, first, stop), side="right")
            for place, name in enumerate(names):
                mine = np.flatnonzero(chosen == place)
                if len(mine):
                    yield name, batch.take(mine), keys[mine]

    def _luck(self, decides: Any, first: int, stop: int) -> NDArray[np.float64]:
        """A number in [0, 1) for each row: by its place in the inputs, or by the column that splits go by."""
        if decides is None:
            numbers = hash_range(stream_key(self._job.seed, _SPLIT), first, stop)
        else:
            numbers = row_hashes(decides)
            numbers = numbers ^ np.uint64(stream_key(self._job.seed, _SPLIT))
            numbers *= np.uint64(0x9E3779B97F4A7C15)
        return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
