"""How much memory a loader needs, computed before the first read, and which setting to change where it is too much.

A bound is a sum of named terms:

| term | what it is |
|---|---|
| `arena` | slots · bytes of a slot, reserved at open |
| `decode` | per worker: decoding its largest unit, units read in part, parsed footers, NumPy's temporaries |
| `batches` | per rank: prefetched batches, the one being gathered, those in the user's hands |
| `plan` | row counts of every unit, shuffle windows, rows planned ahead |
| `processes` | interpreters and libraries of the coordinator and the workers |

Recycled batches are no term of their own: the memory of a dropped batch is that of a later one, and no more is mapped
while one is free. Pure: what the host has is passed in.

What each part takes is `o41td.memory_costs`', and was measured.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from o41td.counted import counted_text
from o41td.errors import MemoryBoundError
from o41td.loader_shape import BATCHES_GATHERING, BATCHES_IN_HAND, SLOT_ADVISED_BYTES, LoaderShape
from o41td.memory_costs import (
    ANNOUNCED_ROW_BYTES,
    COORDINATOR_BYTES,
    DECODE_SPARE_BYTES,
    FACTS_BYTES,
    FORKED_WORKER_BYTES,
    FORKING_COORDINATOR_BYTES,
    LIBRARIES_BYTES,
    MAX_OPEN_SHARDS,
    PAGE_BYTES,
    PARSED_FOOTER_FACTOR,
    PLAN_SHARD_BYTES,
    PLAN_UNIT_BYTES,
    PLAN_WINDOW_ROW_BYTES,
    PLANNED_BATCH_BYTES,
    PLANNED_ROW_BYTES,
    RANK_SHARD_BYTES,
    STREAM_SPARE_BYTES,
    TAILS_BYTES,
    WORKER_BYTES,
)
from o41td.shm.layout import arena_bytes_of, batch_bytes_of
from o41td.sizes import human_bytes

__all__ = ["MemoryBound", "memory_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """The most memory a loader uses, as a sum of named terms.

    Attributes:
        terms: Bytes by term.
        shape: What it was computed from.
    """

    terms: dict[str, int]
    shape: LoaderShape

    @property
    def total_bytes(self) -> int:
        """The whole sum."""
        return sum(self.terms.values())

    def to_record(self) -> dict[str, Any]:
        """Returns `{"bound_bytes": …, "terms": {…}}`, as `stats()` shows it: a new dict of plain values."""
        return {"bound_bytes": self.total_bytes, "terms": dict(self.terms)}

    def explain(self) -> str:
        """Returns the sum as a small table in plain text, biggest term first."""
        terms = sorted(self.terms.items(), key=lambda term: (-term[1], term[0]))
        rows = [(name, human_bytes(value), self._story_of(name)) for name, value in terms]
        rows.append(("total", human_bytes(self.total_bytes), ""))
        name_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(
            f"{name:<{name_width}}  {value:>{value_width}}  {story}".rstrip() for name, value, story in rows
        )

    def check(self, limit_bytes: int) -> None:
        """Compares the bound with what may be used.

        Raises:
            MemoryBoundError: It is more; with every term, and the value of each setting that alone would make it fit,
            or
                of several together where none does.
        """
        if self.total_bytes <= limit_bytes:
            return
        raise MemoryBoundError(
            "the stream needs more memory than it may use",
            needed_bytes=self.total_bytes,
            limit_bytes=limit_bytes,
            terms=self.terms,
            advice=self._advice(limit_bytes),
        )

    def _advice(self, limit_bytes: int) -> str:
        raised = f"memory_limit_bytes = {self.total_bytes} ({human_bytes(self.total_bytes)}), if the host has it"
        alone = [
            f"{setting.name} = {value} (now {setting.now(self.shape)})"
            for setting in _SETTINGS
            if (value := setting.largest_fit(self.shape, limit_bytes)) is not None
        ]
        if alone:
            return f"Any one of these makes it fit: {'; '.join(alone)}; {raised}"
        least = self.shape
        for setting in _SETTINGS:
            least = setting.put(least, min(setting.lowest(least), setting.now(least)))
        least_bytes = memory_bound(least).total_bytes
        if least_bytes > limit_bytes:
            return (
                f"No smaller settings make it fit: the least it can do with is {human_bytes(least_bytes)}. Set {raised}"
            )
        shape, together = least, []
        for setting in reversed(_SETTINGS):  # give each back as much as there is room for, the last to give way first
            value = setting.now(self.shape)
            whole = setting.undone(shape, self.shape)
            if memory_bound(whole).total_bytes > limit_bytes:
                value = setting.largest_fit(whole, limit_bytes) or setting.lowest(whole)
                together.append(f"{setting.name} = {value} (now {setting.now(self.shape)})")
            shape = setting.put(whole, value)
        return f"These together make it fit: {'; '.join(together)}. Or set {raised}"

    def _story_of(self, term: str) -> str:
        """How one term comes about, in the words of the settings."""
        shape = self.shape
        batch = human_bytes(batch_bytes_of(shape.field_row_bytes, shape.batch_size))
        workers = counted_text(shape.threads, "worker")
        rows = f"{counted_text(shape.batch_size, 'row')} ({batch})"
        block = f"{counted_text(shape.block_rows, 'row')} ({human_bytes(shape.slot_bytes)})"
        windows = f"{counted_text(sum(shape.window_rows), 'row')} in {counted_text(len(shape.window_rows), 'window')}"
        kept = windows if shape.window_rows else "all of whose rows stay decoded"
        stories = {
            "arena": f"{counted_text(shape.num_slots, 'slot')} of {block}",
            "decode": f"{workers}, {human_bytes(_decode_bytes_of(shape))} each",
            "batches": f"{counted_text(_batches_of(shape), 'batch', 'batches')} of {rows}",
            "plan": f"{counted_text(shape.num_shards, 'shard')}, {counted_text(shape.num_units, 'unit')}, {kept}",
            "processes": f"1 coordinator, {workers}",
        }
        return stories.get(term, "")


def memory_bound(shape: LoaderShape) -> MemoryBound:
    """Computes the bound of one loader."""
    return MemoryBound(
        terms={
            "arena": arena_bytes_of(shape.field_row_bytes, num_slots=shape.num_slots, block_rows=shape.block_rows),
            "decode": shape.threads * _decode_bytes_of(shape),
            "batches": _batches_of(shape) * batch_bytes_of(shape.field_row_bytes, shape.batch_size),
            "plan": shape.num_shards * (PLAN_SHARD_BYTES + shape.num_ranks * RANK_SHARD_BYTES)
            + shape.num_units * PLAN_UNIT_BYTES
            + sum(shape.window_rows) * shape.ranks_a_window * PLAN_WINDOW_ROW_BYTES
            + shape.announced_rows * shape.num_ranks * ANNOUNCED_ROW_BYTES
            + shape.num_ranks * (shape.ahead_rows * PLANNED_ROW_BYTES + shape.ahead_batches * PLANNED_BATCH_BYTES),
            "processes": LIBRARIES_BYTES
            + (FORKING_COORDINATOR_BYTES if shape.forks else COORDINATOR_BYTES)
            + shape.threads * (FORKED_WORKER_BYTES if shape.forks else WORKER_BYTES)
            + shape.threads * shape.remote_worker_bytes,
        },
        shape=shape,
    )


def _decode_bytes_of(shape: LoaderShape) -> int:
    """What one worker takes to decode, beside its interpreter and libraries.

    Either a unit is decoded whole, beside others that were read in part; or slices of streams are, several of which are
    open where several windows are read.
    """
    whole = 2 * shape.whole_bytes + shape.fetch_bytes + min(shape.whole_bytes, shape.num_columns * PAGE_BYTES)
    if shape.whole_rows > shape.block_rows:
        others_bytes = (shape.held_units - 1) * shape.whole_bytes
        whole += min(max(0, shape.max_row_group_bytes - shape.whole_bytes), others_bytes)
    streamed = 0
    if shape.stream_bytes:
        open_bytes = min(shape.max_row_group_bytes, shape.held_units * shape.stream_bytes)
        streamed = max(shape.stream_bytes, open_bytes) + STREAM_SPARE_BYTES
    kept_footers = min(shape.footers_bytes, FACTS_BYTES + MAX_OPEN_SHARDS * shape.largest_footer_bytes)
    footers = PARSED_FOOTER_FACTOR * (kept_footers + 2 * shape.largest_footer_bytes)  # one new, one's hole in the heap
    if shape.remote_worker_bytes:
        footers += min(shape.footers_bytes, TAILS_BYTES) + shape.largest_footer_bytes
    most = max(whole, streamed) + shape.fetched_bytes
    return most + footers + shape.cache_bytes + shape.slot_bytes + DECODE_SPARE_BYTES


def _batches_of(shape: LoaderShape) -> int:
    return shape.num_ranks * (shape.prefetch_batches + BATCHES_GATHERING + BATCHES_IN_HAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A setting that a smaller value of makes the bound smaller."""

    name: str
    now: Callable[[LoaderShape], int]
    put: Callable[[LoaderShape, int], LoaderShape]
    lowest: Callable[[LoaderShape], int]
    attributes: tuple[str, ...]

    def undone(self, shape: LoaderShape, original: LoaderShape) -> LoaderShape:
        """Returns `shape` with this setting as in `original`."""
        return replace(shape, **{name: getattr(original, name) for name in self.attributes})

    def largest_fit(self, shape: LoaderShape, limit_bytes: int) -> int | None:
        """The largest smaller value that makes the bound fit, all else as it is; None where none does."""
        low, high = self.lowest(shape), self.now(shape) - 1
        if low > high or memory_bound(self.put(shape, low)).total_bytes > limit_bytes:
            return None
        while low < high:  # `low` fits at all times, so what is returned does
            middle = (low + high + 1) // 2
            if memory_bound(self.put(shape, middle)).total_bytes <= limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def _with_block_rows(shape: LoaderShape, block_rows: int) -> LoaderShape:
    fill = None if shape.fill_rows is None else max(1, shape.fill_rows * block_rows // shape.block_rows)
    return replace(shape, block_rows=block_rows, fill_rows=fill)


def _with_buffer_rows(shape: LoaderShape, buffer_rows: int) -> LoaderShape:
    windows = tuple(min(rows, buffer_rows) for rows in shape.window_rows)
    return replace(shape, window_rows=windows, buffer_rows=min(shape.buffer_rows, buffer_rows))


def _settings() -> Iterator[_Setting]:
    """In the order in which to give way: what costs speed before what changes the batches."""
    yield _Setting(
        name="block_rows",
        attributes=("block_rows", "fill_rows"),
        now=lambda shape: shape.block_rows,
        put=_with_block_rows,
        lowest=lambda shape: max(1, SLOT_ADVISED_BYTES // max(1, sum(shape.field_row_bytes))),
    )
    yield _Setting(
        name="prefetch_batches",
        attributes=("prefetch_batches",),
        now=lambda shape: shape.prefetch_batches,
        put=lambda shape, value: replace(shape, prefetch_batches=value),
        lowest=lambda _: 1,
    )
    yield _Setting(
        name="threads",
        attributes=("threads",),
        now=lambda shape: shape.threads,
        put=lambda shape, value: replace(shape, threads=value),
        lowest=lambda _: 1,
    )
    yield _Setting(
        name="shuffle.buffer_rows",
        attributes=("window_rows", "buffer_rows"),
        now=lambda shape: max(shape.window_rows, default=1),
        put=_with_buffer_rows,
        lowest=lambda _: 1,
    )
    yield _Setting(
        name="batch_size",
        attributes=("batch_size",),
        now=lambda shape: shape.batch_size,
        put=lambda shape, value: replace(shape, batch_size=value),
        lowest=lambda _: 1,
    )


_SETTINGS = tuple(_settings())
