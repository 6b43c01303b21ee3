"""Between a running stream and its checkpoints: making them, and judging whether one fits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from o41td.checkpoint import Checkpoint, SourceRecord, differences, refuse_order_version, source_renamed
from o41td.cursor import Cursor
from o41td.errors import CheckpointError
from o41td.exclusions import Exclusions
from o41td.job import StreamJob
from o41td.order_lookup import OrderLookup
from o41td.order_version import ORDER_VERSION

if TYPE_CHECKING:
    from o41td.config import BatchStreamConfig

__all__ = [
    "CheckpointMaker",
    "carried_digest",
    "cursor_of",
    "exclusion_differences",
    "refuse_missing_shards",
]


_MAX_TOLD = 10


class CheckpointMaker:
    """Makes the checkpoints of one rank's stream; what is the same in all of them is put together once."""

    def __init__(
        self, config: BatchStreamConfig, job: StreamJob, lookup: OrderLookup, *, rank: int, world_size: int
    ) -> None:
        """`lookup` holds the orders and the index."""
        self._config = config
        self._job = job
        self._lookup = lookup
        self._rank = rank
        self._world_size = world_size

    @cached_property
    def _document(self) -> dict[str, Any]:
        return self._config.to_document() | {"lanes": self._job.lanes}

    @cached_property
    def _source_records(self) -> tuple[SourceRecord, ...]:
        return tuple(
            SourceRecord(
                name=source.name,
                stage=source.stage,
                source=source.source,
                uris=tuple(shard.uri for shard in source.shards),
                rows=tuple(shard.rows for shard in source.shards),
                size_bytes=tuple(shard.size_bytes for shard in source.shards),
                versions=tuple(shard.version for shard in source.shards),
                encoding=source.encoding,
            )
            for stage in self._lookup.sources
            for source in stage
        )

    def checkpoint_at(self, cursor: Cursor, order_digest: int) -> Checkpoint:
        """Returns the checkpoint of a stream that is at `cursor`; excluded batches count as passed, not as yielded."""
        excluded = self._job.excluded
        return Checkpoint(
            order_version=ORDER_VERSION,
            config=self._document,
            sources=self._source_records,
            cursor=cursor.history,
            batches_yielded=cursor.batches - excluded.count(0, cursor.batches),
            rows_yielded=sum(
                self._lookup.order(stage).rows_before(cursor.stage_position(stage)) for stage in _stages_of(cursor)
            )
            - self._excluded_rows(cursor),
            epochs=self._epochs_at(cursor),
            order_digest=order_digest,
            rank=self._rank,
            world_size=self._world_size,
        )

    def _excluded_rows(self, cursor: Cursor) -> int:
        rows = 0
        for run in cursor.runs():
            excluded = self._job.excluded.shifted(run.global_batch - run.position)
            rows += self._lookup.order(run.stage).excluded_rows(run.position, run.position + run.batches, excluded)
        return rows

    def _epochs_at(self, cursor: Cursor) -> dict[str, int]:
        """Whole epochs that each source has given, over all lanes."""
        epochs = {source.name: 0 for stage in self._lookup.sources for source in stage}
        for stage in _stages_of(cursor):
            order = self._lookup.order(stage)
            taken = order.source_rows_before(cursor.stage_position(stage)).tolist()
            for source in self._lookup.sources[stage]:
                epoch_rows = int(order.source_lane_rows[source.source].sum())
                epochs[source.name] = taken[source.source] // max(1, epoch_rows)
        return epochs

    def refuse_other_stream(self, checkpoint: Checkpoint) -> None:
        """Refuses a checkpoint of another order version, config or data.

        Raises:
            CheckpointError: The fields that differ are named, with both values.
        """
        refuse_order_version(checkpoint)
        differing = [found for found in differences(checkpoint, self._document) if source_renamed(found[0]) is None]
        differing.extend(exclusion_differences(checkpoint, self._job.excluded))
        for old, new in zip(checkpoint.sources, self._source_records, strict=False):
            differing.extend(_shard_differences(old, new))
        if differing:
            raise CheckpointError(
                "this state is of another stream",
                differences=differing,
                advice="Open the stream with resume_batch_stream(checkpoint), or with the config it was taken under",
            )

    def cursor_of(self, checkpoint: Checkpoint) -> Cursor:
        """Returns a checkpoint's cursor, which this stream can go to.

        Raises:
            CheckpointError: It has none, or one that names a stage or a batch that there is not.
        """
        cursor = cursor_of(checkpoint)
        self.refuse_impossible(cursor)
        return cursor

    def refuse_impossible(self, cursor: Cursor) -> None:
        """Refuses a cursor that names a stage or a batch that there is not.

        Raises:
            CheckpointError: It does.
        """
        for stage in _stages_of(cursor):
            if stage >= len(self._job.stages):
                why = f"stage {stage}, and there are {len(self._job.stages)} stages"
                raise CheckpointError(f"the checkpoint's `cursor` names {why}")
            total, position = self._lookup.order(stage).num_batches, cursor.stage_position(stage)
            if total is not None and position > total:
                raise CheckpointError(f"the checkpoint's `cursor` has {position} batches of stage {stage}, of {total}")


def refuse_missing_shards(checkpoint: Checkpoint, config: BatchStreamConfig) -> None:
    """Refuses a checkpoint that lacks a source's shards, or has those of another: a resume would read other data.

    Raises:
        CheckpointError: It does; the sources are named.
    """
    named = {(source.stage, source.source): source.name for source in checkpoint.sources}
    wanted = {
        (stage, source): config.source_key(stage, source)
        for stage in range(len(config.stages))
        for source in range(len(config.stages[stage].sources))
    }
    if named != wanted or len(named) != len(checkpoint.sources):
        told = [", ".join(map(repr, list(names.values())[:_MAX_TOLD])) for names in (named, wanted)]
        raise CheckpointError(f"the checkpoint has the shards of {told[0] or 'no source'}; its config is of {told[1]}")
    for source in checkpoint.sources:
        if not source.uris:
            raise CheckpointError(f"the checkpoint has no shards of source {source.name!r}")


def cursor_of(checkpoint: Checkpoint) -> Cursor:
    """Returns the cursor of a checkpoint.

    Raises:
        CheckpointError: It has none.
    """
    if not checkpoint.cursor:
        raise CheckpointError("the checkpoint's `cursor` is empty; it names at least the current stage")
    return Cursor(checkpoint.cursor)


def exclusion_differences(checkpoint: Checkpoint, excluded: Exclusions) -> list[tuple[str, Any, Any]]:
    """Returns how `excluded` rewrites what a checkpoint has behind it, empty if it does not.

    What lies ahead may be excluded anew, or no more: it was not delivered yet.
    """
    behind = sum(batches for _stage, batches in checkpoint.cursor)
    was, now = (
        [list(passed) for passed in ranges.overlap(0, behind)]
        for ranges in (Exclusions(checkpoint.config.get("exclude", ())), excluded)
    )
    return [] if was == now else [(f"exclude (before batch {behind})", was, now)]


def carried_digest(checkpoint: Checkpoint, rank: int, world_size: int) -> int:
    """Returns the digest to go on from: the checkpoint's own for the rank that took it, else 0."""
    return checkpoint.order_digest if (checkpoint.rank, checkpoint.world_size) == (rank, world_size) else 0


def _stages_of(cursor: Cursor) -> list[int]:
    return list(dict.fromkeys(stage for stage, _batches in cursor.history))


def _shard_differences(old: SourceRecord, new: SourceRecord) -> Iterator[tuple[str, Any, Any]]:
    where = f"sources[{new.name}]"
    if len(old.uris) != len(new.uris):
        yield f"{where}.shards", len(old.uris), len(new.uris)
        return
    for place, uri in enumerate(new.uris):
        for column in ("rows", "size_bytes", "versions"):
            was, now = getattr(old, column)[place], getattr(new, column)[place]
            if was != now:
                yield f"{where}.{column}[{uri}]", was, now
        if old.uris[place] != uri and old.size_bytes[place] is None and old.versions[place] is None:
            yield f"{where}.uris[{uri}]", old.uris[place], uri  # nothing else tells it from another shard
