"""Verifying: whether two streams are the same, and if not, the first batch at which they part, and why.

Two streams are the same where every global batch holds the same rows, in the same order, in the same arrays. A row is
named by its shard's version, which follows from its content: shards may have moved. What is compared:

* the past that both have (checkpoints): the same stages, taken in the same order;
* what is excluded;
* the batches of each stage. Equal inputs have equal orders, so mostly nothing needs to be worked out. Otherwise batches
  are, from the first one on, until they differ or `max_rows` rows of a stage did not.

How far each has come is no difference: a checkpoint is the same stream as its config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.document_differences import differences_of
from o41td.order.stage import StageOrder
from o41td.outline import Outline

__all__ = ["compare_streams", "first_difference"]

_READ_ROWS = 65536
_MAX_DIFFERENCES = 20
_MAX_ROWS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A stage's order with a name for each row's shard and projection: `names[source][unit]`, int64."""

    order: StageOrder
    names: list[NDArray[np.int64]]
    first_rows: list[NDArray[np.int64]]


def compare_streams(a: Outline, b: Outline, *, max_rows: int = _MAX_ROWS) -> dict[str, Any]:
    """Returns whether two streams are the same, and where they first part.

    Returns:
        `identical`; `first` (`batch`, `stage`, `stage_name`, `number`, `why`, None where they do not part);
        `differences`: settings and shards that differ, as [path, in a, in b]; `compared_rows`, or None where all of
        both streams is known to be equal; `advice`, "" where there is none.
    """
    names: dict[Any, int] = {}
    parted: list[dict[str, Any]] = []
    num_stages = max(len(a.job.stages), len(b.job.stages))
    longer = a if a.cursor.batches >= b.cursor.batches else b
    history = _first_other_move(a, b)
    if history is not None:
        parted.append(_parting(longer, history, *longer.cursor.locate(history), "taken of another stage"))
    excluded = _first_other_exclusion(a, b)
    if excluded is not None:
        inside = "the first" if excluded in a.job.excluded else "the second"
        parted.append(_parting(longer, excluded, *longer.walk.locate(excluded), f"excluded in {inside} only"))
    compared: int | None = None
    for stage in range(num_stages):
        if stage >= min(len(a.job.stages), len(b.job.stages)):
            holder, lacks = (a, "second") if stage < len(a.job.stages) else (b, "first")
            why = f"the {lacks} has no stage {holder.stage_names[stage]!r}"
            parted.append(_parting(holder, holder.global_batch_of(stage, 0), stage, 0, why))
            continue
        number, why, num_rows = first_difference(_rows_of(a, stage, names), _rows_of(b, stage, names), max_rows)
        compared = num_rows if compared is None or num_rows is None else min(compared, num_rows)
        if number is not None:
            on_walks = (outline.global_batch_of(stage, number) for outline in (longer, a, b))
            batch = next((batch for batch in on_walks if batch is not None), None)
            parted.append(_parting(longer, batch, stage, number, why))
    parted.sort(key=lambda part: (part["batch"] is None, part["batch"] or 0, part["stage"], part["number"]))
    differences = _input_differences(a, b)
    return {
        "identical": not parted and compared is None,
        "first": parted[0] if parted else None,
        "differences": [list(difference) for difference in differences],
        "compared_rows": None if parted else compared,
        "advice": _advice_on_lanes(a, b) or _advice_on_lanes(b, a),
    }


def first_difference(a: _Rows, b: _Rows, max_rows: int) -> tuple[int | None, str, int | None]:
    """Returns (number of the first batch of a stage that differs, why, rows compared).

    The number is None where none does, the rows None where none can: both orders have the same inputs.
    """
    if _are_same_inputs(a, b):
        return None, "", None
    ends = [order.num_batches for order in (a.order, b.order) if order.num_batches is not None]
    end = min(ends, default=None)
    lanes = max(a.order.lanes, b.order.lanes)
    batch_rows = max(a.order.batch_size, b.order.batch_size)
    step = max(1, _READ_ROWS // (batch_rows * lanes)) * lanes
    number = rows = 0
    while (end is None or number < end) and rows < max_rows:
        stop = number + step if end is None else min(end, number + step)
        left, right = _batches(a, number, stop), _batches(b, number, stop)
        for at, (mine, other) in enumerate(zip(left, right, strict=True)):
            why = _difference(mine, other)
            if why:
                return number + at, why, None
            rows += len(mine)
        number = stop
    if a.order.num_batches != b.order.num_batches and number == end:
        shorter = "first" if a.order.num_batches == end else "second"
        return number, f"the {shorter} has no more batches of this stage", None
    return None, "", None if number == end else rows


def _batches(rows: _Rows, start: int, stop: int) -> list[NDArray[np.int64]]:
    """The batches [start, stop) of a stage, each `[rows, 2] int64`: the name of its shard, and the row in it."""
    order = rows.order
    batches: list[NDArray[np.int64]] = [np.empty((0, 2), np.int64)] * (stop - start)
    for lane in range(order.lanes):
        first = start + (lane - start) % order.lanes
        if first >= stop:
            continue
        count = -(-(stop - first) // order.lanes)
        read = order.open_lane(lane, first // order.lanes).read_batches(count)
        found = np.empty((read.num_rows, 2), np.int64)
        for source in np.unique(read.source).tolist():
            chosen = read.source == source
            unit, row = order.locate(source, lane, read.x[chosen])
            found[chosen, 0] = rows.names[source][unit]
            found[chosen, 1] = rows.first_rows[source][unit] + row
        batches[first - start :: order.lanes] = np.split(found, read.offsets[1:-1])
    return batches


def _difference(mine: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    if len(mine) != len(other):
        return f"{len(mine)} rows in the first, {len(other)} in the second"
    if np.array_equal(mine, other):
        return ""
    place = int(np.flatnonzero((mine != other).any(axis=1))[0])
    same_rows = sorted(map(tuple, mine.tolist())) == sorted(map(tuple, other.tolist()))
    return f"the same rows in another order, from place {place} on" if same_rows else f"another row at place {place}"


def _rows_of(outline: Outline, stage: int, names: dict[Any, int]) -> _Rows:
    """A stage's order; equal (shard version, projection) have equal names in both streams, by way of `names`."""
    sources = outline.sources_of(stage)
    units = []
    for index in sources:
        job = outline.job.stages[stage].sources[index.source]
        fields = (*(repr(field.to_record()) for field in job.fields), job.chain and job.chain.fingerprint)
        of_shard = [names.setdefault((shard.version, shard.rows, fields), len(names)) for shard in index.shards]
        units.append(np.array(of_shard, np.int64)[index.unit_shard])
    first_rows = [index.unit_first_row for index in sources]
    return _Rows(order=outline.lookup.order(stage), names=units, first_rows=first_rows)


def _are_same_inputs(a: _Rows, b: _Rows) -> bool:
    scalars = ("seed", "stage_index", "batch_size", "buffer_rows", "infinite", "drop_last", "lanes", "num_sources")
    if any(getattr(a.order, name) != getattr(b.order, name) for name in scalars):
        return False
    pairs = [
        (a.order.shares, b.order.shares),
        (a.order.lane_rows, b.order.lane_rows),
        *zip(a.names, b.names, strict=True),
        *zip(a.first_rows, b.first_rows, strict=True),
    ]
    return all(np.array_equal(mine, other) for mine, other in pairs)


def _first_other_move(a: Outline, b: Outline) -> int | None:
    """The first global batch behind both cursors that they took of different stages."""
    common = min(a.cursor.batches, b.cursor.batches)
    edges = sorted({run.global_batch for outline in (a, b) for run in outline.cursor.runs()})
    return next((g for g in edges if g < common and a.cursor.locate(g) != b.cursor.locate(g)), None)


def _first_other_exclusion(a: Outline, b: Outline) -> int | None:
    """The first global batch that only one of them excludes."""
    edges = sorted({edge for outline in (a, b) for excluded in outline.job.excluded.ranges for edge in excluded})
    return next((g for g in edges if (g in a.job.excluded) != (g in b.job.excluded)), None)


def _parting(outline: Outline, batch: int | None, stage: int, number: int, why: str) -> dict[str, Any]:
    return {
        "batch": batch,
        "stage": stage,
        "stage_name": outline.stage_names[stage],
        "number": number,
        "why": why,
    }


def _advice_on_lanes(config: Outline, other: Outline) -> str:
    """What to ask instead where a config leaves its lanes to the world size, and the other has another number."""
    lanes = other.job.lanes
    if config.is_checkpoint or config.config.lanes is not None or config.job.lanes == lanes:
        return ""
    return (
        f"The config leaves `lanes` to --world-size, {config.world_size} here, and the other has {lanes}: "
        f"give --world-size {lanes} to compare what {lanes} ranks stream"
    )


def _input_differences(a: Outline, b: Outline) -> list[tuple[str, Any, Any]]:
    """What of config and shards differs and matters to the batches; the first few."""
    found = differences_of(_inputs_of(a), _inputs_of(b))
    return found[:_MAX_DIFFERENCES]


def _inputs_of(outline: Outline) -> dict[str, Any]:
    document = outline.config.to_document()
    inputs: dict[str, Any] = {key: document[key] for key in ("seed", "fields", "exclude")}
    inputs["lanes"] = outline.job.lanes
    inputs["stages"] = [
        {key: value for key, value in stage.items() if key not in ("sources", "name")} for stage in document["stages"]
    ]
    for number, stage in enumerate(outline.lookup.sources):
        inputs["stages"][number]["sources"] = [
            {
                "weight": outline.job.stages[number].sources[index.source].weight,
                "fields": document["stages"][number]["sources"][index.source]["fields"],
                "rows": index.num_rows,
                "shards": [f"{shard.uri} ({shard.rows} rows, {shard.version})" for shard in index.shards],
            }
            for index in stage
        ]
    return inputs
