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

Every constant below was measured by itself, as the comment at it says; tests/process/test_memory_bound.py holds the sum
against what processes take.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from o41td.errors import MemoryBoundError
from o41td.shm.layout import arena_bytes_of, batch_bytes_of
from o41td.sizes import human_bytes

__all__ = [
    "CACHE_WORK_BYTES",
    "FACTS_BYTES",
    "FETCH_WASTE",
    "HTTP_WORKER_BYTES",
    "MAX_OPEN_SHARDS",
    "MAX_RECORD_FEEDS",
    "RECORD_FETCH_BYTES",
    "RECORD_READ_AHEAD_BYTES",
    "RECORD_VALUES_FACTOR",
    "RECORD_WORK_BYTES",
    "S3_WORKER_BYTES",
    "STREAM_BATCH_BYTES",
    "TAILS_BYTES",
    "LoaderShape",
    "MemoryBound",
    "block_fill_rows",
    "choose_block_rows",
    "memory_bound",
    "read_ahead_bytes",
    "slots_needed",
    "stream_bytes",
]

MIB = 1 << 20

# Proportional set size (/proc/PID/smaps_rollup) on Linux 6.18, CPython 3.11, numpy 2.4, pyarrow 26, of one coordinator
# beside n workers that read 1000 rows: 82, 107 and 157 MiB together for n = 1, 2, 4. So: one copy of the libraries, and
# each process's own pages; with 4 MiB for other versions of them. Workers forked by their coordinator share its pages:
# 76, 80, 88 and 102 MiB for n = 1, 2, 4, 8, and 8 MiB more each where they have decoded all kinds of pages.
LIBRARIES_BYTES = 38 * MIB
COORDINATOR_BYTES = 23 * MIB
WORKER_BYTES = 26 * MIB
FORKING_COORDINATOR_BYTES = 37 * MIB
FORKED_WORKER_BYTES = 10 * MIB

# What follows was measured as growth of one process's own pages while it reads row groups of one kind over and over,
# 1 ms between two looks; kinds: lists of random, of few and of equal int32, of bool, images (fixed lists of float32),
# and 60 and 200 plain columns. "Decoding bytes" are values, offsets and levels, as `workers.footer` counts them.

# Decoding W bytes whole out of F fetched peaked at 291, 192, 131, 155, 240, 277, 273, 26 MiB for (W, F) = (124, 61),
# (124, 0), (66, 9), (63, 33), (99, 43), (138, 4), (80, 54), (7, 5): never above twice W (builders grow by doubling, and
# the allocator keeps what they grew out of) and F, with a page and a dictionary of each column.
PAGE_BYTES = 1 * MIB

STREAM_BATCH_BYTES = 8 * MIB
"""Decoding bytes of the rows that a stream over a large row group decodes at once."""

# One stream took 25 to 40 MiB on lists of the four kinds and on images, four of them 51 to 75: twice a batch each, and
# the allocator's share once. A column that is read keeps its input buffer, a page and a dictionary: 1.73 MiB each of 60
# columns of random numbers while nothing is decoded, and no more than about three times what there is of it.
STREAM_COLUMN_BYTES = 2 * MIB
STREAM_SPARE_BYTES = 24 * MIB

FACTS_BYTES = 4 * MIB
"""Footers that a worker keeps parsed, by their size in the file."""

MAX_OPEN_SHARDS = 8
"""Shards that a worker keeps open; the footer of each is in memory, whether kept or not."""

# Parsed they took 8.0 times their size for 8 000 row groups of a column, 7.3 for 20 of 200 columns.
PARSED_FOOTER_FACTOR = 9

# Whatever else: the values of a slice that are looked at one by one, a table about to be freed.
DECODE_SPARE_BYTES = 12 * MIB

# Of remote shards that are read forwards: at 50 ms a request, 8 MiB on their way are 160 MB/s.
READ_AHEAD_BYTES = 16 * MIB
READ_AHEAD_MAX_BYTES = 8 * MIB
READ_AHEAD_MIN_BYTES = 1 * MIB

# A worker that has read from S3 has 38 MiB more of its own (s3fs, botocore's models), one that has read by HTTP 14.
S3_WORKER_BYTES = 42 * MIB
HTTP_WORKER_BYTES = 18 * MIB

TAILS_BYTES = 4 * MIB
"""Ends of remote shards that a worker keeps, with their footers as they are in the files."""

FETCH_WASTE = 1.05
"""What is fetched ahead, by what is needed of it: gaps between column chunks are closed up to so much."""

CACHE_WORK_BYTES = 12 * MIB
"""What a worker takes more where it keeps blocks on disk: a part that is read, one that is written, two libraries."""

RECORD_WORK_BYTES = 8 * MIB
"""What a worker takes to read records of any shard: the text at hand, and the Python values of some of it."""

RECORD_VALUES_FACTOR = 3
"""What a byte of a large record's text takes beside that: half of its peak, like all that is decoded whole.

Records of 3 to 7 MB took 4 bytes (lists cut to little), 7 (floats, small integers), 10 (nulls between), 15 (short lists
in a list)."""

RECORD_FETCH_BYTES = 1 * MIB

RECORD_READ_AHEAD_BYTES = 4 * MIB
"""What is on its way of a remote shard of records, ahead of where it is read."""
MAX_RECORD_FEEDS = 24
"""Places at which a worker reads shards of records at most: three in each shard that is open."""

# Of a unit in the index: row count, first row, shard, row group, its place in an epoch's permutation, in two processes.
PLAN_UNIT_BYTES = 96
# Of a shard: its name, sizes and version, in the coordinator (as they came out of the index cache too) and in each
# trainer. With 200 000 shards, opening took them 2 360 and 600 bytes a shard at most.
PLAN_SHARD_BYTES = 2560
RANK_SHARD_BYTES = 640
# Of a live row in a shuffle window: key, row in the line, arena row, and a sorting copy of the keys.
PLAN_WINDOW_ROW_BYTES = 40
# Of an announced row: its place in the arena in the plan, the message, the socket's buffers and the consumer's queue.
# Measured with 66 batches of 65 536 rows announced: the coordinator held 150 MiB more, 36 bytes a row.
ANNOUNCED_ROW_BYTES = 48
# Of a row that is planned and not announced yet, while its blocks are decoded: its block and its place in it. With 6
# and 12 million rows planned, the coordinator held 28 and 24 bytes a row.
PLANNED_ROW_BYTES = 32
# Of a batch that is planned and not announced, beside its rows: its object, two arrays' headers, names of blocks. With
# 200 000 batches of 4 rows and 780 000 of one, the coordinator held 430 and 490 bytes a batch, rows included.
PLANNED_BATCH_BYTES = 512

BATCHES_IN_HAND = 2
"""The batch a training step works on, and the one before it, which `for batch in stream` holds until it has the
next."""

BATCHES_GATHERING = 1

SLOT_TARGET_BYTES = 8 * MIB
SLOT_MIN_BYTES = 64 << 10
SLOT_ADVISED_BYTES = 1 * MIB  # a refusal advises no smaller slots: messages would cost more than decoding
WINDOW_EDGES_TARGET_BYTES = 256 * MIB
MAX_UNITS_IN_BLOCK = 128
MAX_ROWS_IN_BLOCK = 128 << 10
MAX_BATCHES_IN_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderShape:
    """What the memory of one loader depends on.

    Attributes:
        field_row_bytes: Bytes of one row of each output field.
        block_rows: Rows in a slot.
        fill_rows: Rows that a block holds on average (`block_fill_rows`); None is `block_rows`.
        window_rows: Rows that must be live at once in each window, one entry per (lane, source) of all attached ranks:
            `shuffle.buffer_rows`, or 1 where the stage does not shuffle; never more than the window's rows in all.
        threads: Worker processes.
        forks: Whether the coordinator forks them, so that they share its pages.
        lookahead: Blocks in flight per worker.
        batch_size: Rows in a batch, of the stage where they are most.
        least_batch_size: Of the stage where they are fewest; None is `batch_size`.
        prefetch_batches: Batches assembled ahead, per rank.
        num_ranks: Ranks that the loader serves.
        ranks_a_window: Ranks that share each window, and its slots; each plans it for itself.
        num_columns: Columns that are read.
        whole_bytes: Decoding bytes of the largest unit that is decoded whole.
        whole_rows: Rows of the largest such unit.
        fetch_bytes: Compressed bytes of the largest such unit.
        stream_bytes: What one stream over a larger unit takes (`stream_bytes`), 0 where all are decoded whole.
        max_row_group_bytes: Above it, a unit is streamed. Units read in part take no more together, but for one.
        cache_bytes: What a worker takes for the block cache, 0 where there is none.
        held_units: How many units read in part a worker keeps: one for each window, and one that was left behind.
        footers_bytes: Footers of all shards, as they are in the files.
        largest_footer_bytes: The largest of them.
        remote_worker_bytes: What a worker takes to reach stores, 0 where all is local.
        remote_unit_bytes: Compressed bytes of the largest remote unit that is decoded whole.
        remote_row_bytes: The same of a row, where it is largest.
        remote_bytes: The same of all remote sources.
        num_units: Units of all sources.
        num_shards: Shards of all sources.
        extra_slots: Slots beyond the need, to keep small sources resident.
        announced_rows: Rows of the batches that are announced to one consumer at once.
        buffer_rows: The largest `shuffle.buffer_rows` of all stages, 0 without shuffle.
        reach_rows: Rows that can be planned at most, where no stage is infinite.
    """

    field_row_bytes: tuple[int, ...]
    block_rows: int
    fill_rows: int | None = None
    window_rows: tuple[int, ...]
    threads: int
    forks: bool = False
    lookahead: int
    batch_size: int
    least_batch_size: int | None = None
    prefetch_batches: int
    num_ranks: int = 1
    ranks_a_window: int = 1
    num_columns: int
    whole_bytes: int
    whole_rows: int
    fetch_bytes: int
    stream_bytes: int = 0
    max_row_group_bytes: int
    cache_bytes: int = 0
    held_units: int = 2
    footers_bytes: int = 0
    largest_footer_bytes: int = 0
    remote_worker_bytes: int = 0
    remote_unit_bytes: int = 0
    remote_row_bytes: int = 0
    remote_bytes: int = 0
    num_units: int
    num_shards: int = 0
    extra_slots: int = 0
    announced_rows: int = 0
    buffer_rows: int = 0
    reach_rows: int | None = None

    @property
    def ahead_rows(self) -> int:
        """Rows that may be planned for a rank beyond its announced batches, to find work for every worker."""
        rows = (self.threads * self.lookahead + 2) * self.block_rows + self.buffer_rows
        return rows if self.reach_rows is None else min(rows, self.reach_rows)

    @property
    def ahead_batches(self) -> int:
        """Batches that these rows are at most."""
        least = self.batch_size if self.least_batch_size is None else min(self.least_batch_size, self.batch_size)
        return -(-self.ahead_rows // least)

    @property
    def fetched_bytes(self) -> int:
        """Bytes of blocks that a worker holds, or has on their way: of a unit decoded whole, or of units packed."""
        block_bytes = max(self.remote_unit_bytes, min(self.remote_bytes, self.remote_row_bytes * self.block_rows))
        return int(FETCH_WASTE * self.lookahead * block_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.block_rows * sum(self.field_row_bytes)

    @property
    def num_slots(self) -> int:
        """Slots of the arena: for the windows, for blocks in flight and for the batch each rank gathers."""
        fill_rows = self.block_rows if self.fill_rows is None else self.fill_rows
        in_flight = self.threads * self.lookahead
        gathering = -(-self.batch_size * BATCHES_GATHERING * self.num_ranks // fill_rows)
        need = slots_needed(self.window_rows, self.block_rows, in_flight, fill_rows=fill_rows)
        return need + gathering + self.extra_slots


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
        workers = f"{shape.threads} worker{'' if shape.threads == 1 else 's'}"
        num_windows = len(shape.window_rows)
        windows = f"{sum(shape.window_rows)} rows in {num_windows} window{'' if num_windows == 1 else 's'}"
        kept = windows if shape.window_rows else "all of whose rows stay decoded"
        stories = {
            "arena": f"{shape.num_slots} slots of {shape.block_rows} rows ({human_bytes(shape.slot_bytes)})",
            "decode": f"{workers}, {human_bytes(_decode_bytes_of(shape))} each",
            "batches": f"{_batches_of(shape)} batches of {shape.batch_size} rows ({batch})",
            "plan": f"{shape.num_shards} shards, {shape.num_units} units, {kept}",
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


def stream_bytes(decoding_bytes: int, row_bytes: int, num_columns: int) -> int:
    """Returns what a stream over a row group holds: a batch twice, and each column's buffer, page and dictionary.

    Args:
        decoding_bytes: What decoding the row group's projected columns takes.
        row_bytes: The same of one row, on average.
        num_columns: The projected columns.
    """
    batch = max(min(STREAM_BATCH_BYTES, decoding_bytes), row_bytes)
    return 2 * batch + min(3 * decoding_bytes, num_columns * STREAM_COLUMN_BYTES)


def read_ahead_bytes(num_runs: int) -> int:
    """Returns what a file over a remote object holds ahead of its reader, who reads so many runs of it side by side."""
    return num_runs * max(READ_AHEAD_MIN_BYTES, min(READ_AHEAD_MAX_BYTES, READ_AHEAD_BYTES // max(1, num_runs)))


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


def slots_needed(window_rows: Sequence[int], block_rows: int, in_flight: int, *, fill_rows: int | None = None) -> int:
    """Returns the slots that keep every window decoded while others are filled.

    n consecutive rows of a line touch at most `⌈n / fill⌉ + 1` blocks that hold `fill` rows each: the first and the
    last are touched in part.

    Args:
        window_rows: Live rows of each window.
        block_rows: Rows in a slot.
        in_flight: Blocks being decoded or waiting at a worker: `threads · lookahead`.
        fill_rows: Rows that a block holds on average; None is full blocks.
    """
    fill = block_rows if fill_rows is None else fill_rows
    assert 1 <= fill <= block_rows, f"blocks of {block_rows} rows hold {fill}"
    return sum(-(-rows // fill) + 1 for rows in window_rows) + in_flight


def block_fill_rows(block_rows: int, unit_rows_typical: int) -> int:
    """Returns how many rows a block holds on average, where units have `unit_rows_typical` rows.

    Large units are cut into equal slices, the fewest that fit; small ones are packed whole, as many as fit.
    """
    if unit_rows_typical < 1:
        return block_rows
    if unit_rows_typical > block_rows:
        return unit_rows_typical // -(-unit_rows_typical // block_rows)
    return block_rows // unit_rows_typical * unit_rows_typical


def choose_block_rows(row_bytes: int, unit_rows_typical: int, num_windows: int, batch_size: int) -> int:
    """Returns the rows of a slot, where the user has set none.

    A slot is about 8 MiB: enough to make a message per block cheap, little enough that the first batch need not wait
    for much. A typical unit fits whole (up to 16 MiB), or is cut into equal slices (4 to 8 MiB each); small units are
    packed whole, as many as come to 4 to 8 MiB, but at most 128, as each costs a read of its own. Narrow rows come to
    131 072 at most, and to 4 096 batches: planning takes memory by the row and by the batch, whatever their width.

    Each window keeps its first and last block in part, so many windows would cost 16 MiB each: the target shrinks so
    that all edges come to 256 MiB, down to 64 KiB a slot. A row that is larger than all that has a slot of its own.

    Args:
        row_bytes: Bytes of one row over all fields.
        unit_rows_typical: Rows of a typical unit (the median by rows); 0 where nothing is known.
        num_windows: (lane, source) pairs that the loader serves at once.
        batch_size: Rows in a batch, of the stage where they are fewest.
    """
    edges = WINDOW_EDGES_TARGET_BYTES // (2 * max(1, num_windows))
    target_rows = max(1, max(SLOT_MIN_BYTES, min(SLOT_TARGET_BYTES, edges)) // max(1, row_bytes))
    target_rows = min(target_rows, MAX_ROWS_IN_BLOCK, MAX_BATCHES_IN_BLOCK * batch_size)
    unit_rows = unit_rows_typical
    if unit_rows < 1:
        return target_rows
    if unit_rows <= target_rows:
        return min(target_rows // unit_rows, MAX_UNITS_IN_BLOCK) * unit_rows
    if unit_rows <= 2 * target_rows:
        return unit_rows
    return -(-unit_rows // -(-unit_rows // target_rows))


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
