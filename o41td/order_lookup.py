"""From a batch's number to the records in it: the order joined with the index. Nothing is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.batch import COORDINATE_DTYPE
from o41td.index import SourceIndex
from o41td.job import StageJob, StreamJob
from o41td.order.stage import StageOrder
from o41td.shard_lookup import places_of_row, shard_named

__all__ = ["OrderLookup", "most_batch_rows", "order_of"]


class OrderLookup:
    """The orders of a job's stages over their sources; each is made when first asked for."""

    def __init__(self, job: StreamJob, sources: Sequence[SourceIndex]) -> None:
        """`sources` are those of all stages."""
        self._job = job
        self._orders: dict[int, StageOrder] = {}
        self.sources: tuple[tuple[SourceIndex, ...], ...] = tuple(
            tuple(source for source in sources if source.stage == stage) for stage in range(len(job.stages))
        )

    @property
    def batch_rows(self) -> list[int]:
        """How many rows a batch of each stage has at most."""
        stages = zip(self._job.stages, self.sources, strict=True)
        return [most_batch_rows(stage, self._job.lanes, sources) for stage, sources in stages]

    def order(self, stage: int) -> StageOrder:
        """Returns a stage's order."""
        order = self._orders.get(stage)
        if order is None:
            order = self._orders[stage] = order_of(self._job, stage, self.sources[stage])
        return order

    def coordinates(self, stage: int, number: int) -> NDArray[Any]:
        """Returns where the rows of a stage's batch `number` come from, `COORDINATE_DTYPE` [rows]."""
        source, unit, row = self.order(stage).coordinates(number)
        result = np.empty(len(source), COORDINATE_DTYPE)
        result["source"] = source
        for index in self.sources[stage]:
            chosen = source == index.source
            result["shard"][chosen] = index.unit_shard[unit[chosen]]
            result["row"][chosen] = index.unit_first_row[unit[chosen]] + row[chosen]
        return result

    def find(self, shard: str, row: int, *, epochs: int) -> list[tuple[int, int]]:
        """Returns the batches in which a row comes in the first epochs of its sources: stage, and number in it.

        Args:
            shard: The shard's path or URI, or an end of it that only one shard has.
            row: The row's number in the shard.
            epochs: How many of each source's epochs are looked through.

        Raises:
            ConfigError: No source has such a shard, or the shard no such row.
        """
        uri = shard_named(self.sources, shard)
        return [
            (index.stage, come.batch)
            for index, unit, row_in_unit in places_of_row(self.sources, uri, row)
            for come in self.order(index.stage).find(index.source, unit, row_in_unit, epochs=epochs)
        ]

    def key(self, stage: int, number: int) -> str:
        """Returns a name for the content of a batch: shards' versions, projection and coordinates, digested."""
        digest = hashlib.blake2b(digest_size=16)
        for source in self.sources[stage]:
            digest.update(repr([(shard.version, shard.rows) for shard in source.shards]).encode())
            job = self._job.stages[stage].sources[source.source]
            digest.update(repr([field.to_record() for field in job.fields]).encode())
            if job.chain is not None:
                digest.update(job.chain.fingerprint.encode())
        digest.update(self.coordinates(stage, number).tobytes())
        return digest.hexdigest()


def most_batch_rows(stage: StageJob, lanes: int, sources: Sequence[SourceIndex]) -> int:
    """Returns a batch size that gives the same batches as the stage's own, and room for no more rows than there are.

    A lane with fewer rows than a batch has them all in its one batch, which must not be taken for a full one.
    """
    if stage.infinite:
        return stage.batch_size
    return min(stage.batch_size, sum(-(-source.num_rows // lanes) for source in sources) + 1)


def order_of(job: StreamJob, stage: int, sources: Sequence[SourceIndex]) -> StageOrder:
    """Returns the order of a stage of the job over its sources' units."""
    stage_job = job.stages[stage]
    return StageOrder(
        seed=job.seed,
        stage_index=stage,
        unit_rows=[source.unit_rows for source in sources],
        weights=[source.weight for source in stage_job.sources],
        batch_size=most_batch_rows(stage_job, job.lanes, sources),
        buffer_rows=stage_job.buffer_rows,
        infinite=stage_job.infinite,
        drop_last=stage_job.drop_last,
        lanes=job.lanes,
    )
