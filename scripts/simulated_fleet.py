"""A training run that does not exist: its shards as row counts, its ranks, its store, and what the order asks of them.

Nothing is read. Row counts are drawn from a fixed seed; everything else is what a loader would work out from them: the
order, the blocks of each lane, the requests for each row group, the size of the arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.config import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage
from o41td.coordinator.sizing import LoaderSize, size_loader
from o41td.index import ShardEntry, SourceIndex
from o41td.job import StreamJob, job_of
from o41td.order import StageOrder
from o41td.order_lookup import order_of
from o41td.workers.ranges import ByteRange, plan_requests
from o41td.workers.remote_file import MAX_GAP_BYTES, MAX_WASTE, PART_BYTES

__all__ = ["Fleet", "LaneCost", "Workload"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained on, and how fast: shards of one row group of about `unit_rows` rows; `width` values of f32 a row.

    A rank takes a batch of `batch_size` rows each `step_s`. A stored byte is half of a decoded one.
    """

    name: str
    width: int
    unit_rows: int
    batch_size: int
    step_s: float

    @property
    def row_bytes(self) -> int:
        """Bytes of a decoded row."""
        return 4 * self.width

    @property
    def bytes_per_s(self) -> float:
        """Decoded bytes that a rank takes a second."""
        return self.batch_size * self.row_bytes / self.step_s


class LaneCost(NamedTuple):
    """What a rank of its own lane reads in one epoch: rows, row groups, bytes of those from the store, requests."""

    rows: int
    units: int
    fetched_bytes: int
    requests: int


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The ranks of a run over `num_shards` shards, a lane each, and their loaders' settings."""

    workload: Workload
    num_shards: int
    num_ranks: int
    threads: int = 2
    lookahead: int = 2
    prefetch_batches: int = 2
    buffer_rows: int = 4096

    @cached_property
    def index(self) -> SourceIndex:
        """The shards as a loader knows them, once their footers are read."""
        unit_rows = self.workload.unit_rows
        rows = np.random.default_rng(1).integers(unit_rows * 3 // 4, unit_rows * 5 // 4, self.num_shards)
        decoded = rows * self.workload.row_bytes
        entry = ShardEntry(uri="s3://bucket/shard.parquet", rows=unit_rows, size_bytes=0, mtime_ns=0, version="v")
        return SourceIndex(
            stage=0,
            source=0,
            name="shards",
            encoding="parquet",
            shards=(entry,) * self.num_shards,
            unit_shard=np.arange(self.num_shards, dtype=np.int32),
            unit_row_group=np.zeros(self.num_shards, np.int32),
            unit_rows=rows,
            unit_first_row=np.zeros(self.num_shards, np.int64),
            unit_decoded_bytes=decoded,
            unit_decoding_bytes=decoded,
            unit_compressed_bytes=decoded // 2,
            footers_bytes=600 * self.num_shards,
            largest_footer_bytes=600,
        )

    @cached_property
    def job(self) -> StreamJob:
        """What a config of these settings comes to."""
        config = BatchStreamConfig(
            fields=[ProjectedField(name="values", dtype="f32", length=self.workload.width)],
            stages=[
                Stage(
                    sources=[FileSource(files=["s3://bucket/shard.parquet"])],
                    batch_size=self.workload.batch_size,
                    shuffle=Shuffle(buffer_rows=self.buffer_rows),
                )
            ],
            threads=self.threads,
            lookahead=self.lookahead,
            prefetch_batches=self.prefetch_batches,
            seed=1,
        )
        return job_of(config, lanes=self.num_ranks)

    @cached_property
    def order(self) -> StageOrder:
        """The order that all ranks share."""
        return order_of(self.job, 0, [self.index])

    def size(self, ranks: int = 1) -> LoaderSize:
        """What a loader for the first `ranks` ranks takes."""
        return size_loader(
            self.job,
            [[self.index]],
            world_size=self.num_ranks,
            limit_bytes=1 << 50,
            ranks=range(ranks),
            forks=True,
        )

    @cached_property
    def unit_requests(self) -> NDArray[np.int64]:
        """Requests for each row group: one for its shard's footer, and those for its column chunks."""
        sizes, which = np.unique(self.index.unit_compressed_bytes, return_inverse=True)
        counts = [
            len(
                plan_requests(
                    [ByteRange(0, size)], max_gap_bytes=MAX_GAP_BYTES, max_waste=MAX_WASTE, part_bytes=PART_BYTES
                )
            )
            for size in sizes.tolist()
        ]
        return np.array(counts, np.int64)[which] + 1

    def lane_cost(self, lane: int) -> LaneCost:
        """Walks a lane's row groups; one that a lane's edge cuts is fetched whole on either side of it."""
        rows = int(self.order.lane_rows[lane])
        units = self.order.line_runs(0, lane, 0, rows).unit
        return LaneCost(
            rows,
            len(units),
            int(self.index.unit_compressed_bytes[units].sum()),
            int(self.unit_requests[units].sum()),
        )
