"""Tracing: what was in a batch, and in which batches a row comes. Arithmetic on an `Outline`; no row is read.

Kinds of number: a *global batch* counts through all stages, `number` within its stage; a *step* is a rank's own count
of batches from the stream's beginning, given that the world size was the same all along.
"""

from __future__ import annotations

from typing import Any

from o41td.errors import ConfigError
from o41td.outline import Outline
from o41td.shard_lookup import places_of_row, shard_named, unit_of

__all__ = ["batch_of_step", "trace_batch", "trace_row"]


def batch_of_step(outline: Outline, step: int, rank: int) -> int:
    """Returns the global batch that a rank takes in its step `step`, both from 0."""
    return outline.job.excluded.after(0, step * outline.world_size + rank + 1) - 1


def trace_batch(outline: Outline, batch: int) -> dict[str, Any]:
    """Returns what is known of a global batch, excluded ones too: where it stands, and where its rows come from.

    Raises:
        ConfigError: The stream has no such batch.
    """
    stage, number = outline.walk.locate(batch)
    total = outline.lookup.order(stage).num_batches
    if total is not None and number >= total:
        raise _no_such_batch(outline, batch)
    sources = outline.sources_of(stage)
    rows = []
    for place, (source, shard, row) in enumerate(outline.lookup.coordinates(stage, number).tolist()):
        index = sources[source]
        unit = unit_of(index, shard, row)
        rows.append(
            {
                "place": place,
                "source": index.name,
                "shard": index.shards[shard].uri,
                "encoding": index.encoding,
                "row": row,
                "row_group": int(index.unit_row_group[unit]),
                "row_in_group": row - int(index.unit_first_row[unit]),
            }
        )
    return {**_place_of(outline, batch, stage, number), "rows": rows}


def trace_row(outline: Outline, shard: str, row: int, *, epochs: int | None = None) -> dict[str, Any]:
    """Returns every batch in which a row comes.

    Args:
        outline: The stream.
        shard: The shard's path or URI, or an end of it that only one shard has.
        row: The row's number in the shard.
        epochs: In the first so many epochs of its sources; None takes a checkpoint's batches so far, of a config the
            first epoch.

    Raises:
        ConfigError: No source has such a shard, or the shard no such row.
    """
    occurrences = []
    uri = shard_named(outline.lookup.sources, shard)
    found = list(places_of_row(outline.lookup.sources, uri, row))
    so_far = epochs is None and outline.is_checkpoint
    for index, unit, row_in_unit in found:
        order = outline.lookup.order(index.stage)
        position = outline.cursor.stage_position(index.stage)
        looked_at = order.epochs_begun(index.source, position) if so_far else epochs or 1
        for come in order.find(index.source, unit, row_in_unit, epochs=looked_at):
            batch = outline.global_batch_of(index.stage, come.batch)
            if so_far and (batch is None or batch >= outline.cursor.batches):
                continue
            place = _place_of(outline, batch, index.stage, come.batch)
            occurrences.append({**place, "source": index.name, "epoch": come.epoch, "place": come.place})
    occurrences.sort(key=lambda come: (come["batch"] is None, come["batch"] or 0, come["stage"], come["number"]))
    return {
        "shard": uri,
        "row": row,
        "sources": [index.name for index, _unit, _row in found],
        "so_far": so_far,
        "occurrences": occurrences,
    }


def _place_of(outline: Outline, batch: int | None, stage: int, number: int) -> dict[str, Any]:
    """A batch's place in the stream; one that the walk passes by (a last round that is not full) has no global number.

    `state` is "excluded", "delivered" (behind a checkpoint), "ahead", or "dropped".
    """
    excluded = outline.job.excluded
    place: dict[str, Any] = {
        "batch": batch,
        "stage": stage,
        "stage_name": outline.stage_names[stage],
        "number": number,
        "lane": number % outline.job.lanes,
        "world_size": outline.world_size,
        "step": None,
        "rank": None,
        "state": "dropped",
    }
    if batch is None:
        return place
    if batch in excluded:
        return place | {"state": "excluded"}
    if outline.has_end and batch >= outline.walk.batches:
        return place
    taken_before = batch - excluded.count(0, batch)
    step, rank = divmod(taken_before, outline.world_size)
    state = "delivered" if batch < outline.cursor.batches else "ahead"
    return place | {"step": step, "rank": rank, "state": state}


def _no_such_batch(outline: Outline, batch: int) -> ConfigError:
    end = outline.walk.batches
    names = outline.stage_names
    ranks = "1 rank" if outline.world_size == 1 else f"{outline.world_size} ranks"
    return ConfigError(
        "there is no such batch",
        problems=[("batch", f"{batch}, and the stages {', '.join(names)} have {end} for {ranks}, from 0")],
    )
