"""What a loader's memory depends on, and how many slots of how many rows it has where the user does not say."""

from collections.abc import Sequence
from dataclasses import dataclass

from o41td.memory_costs import FETCH_WASTE

__all__ = [
    "BATCHES_GATHERING",
    "BATCHES_IN_HAND",
    "SLOT_ADVISED_BYTES",
    "LoaderShape",
    "block_fill_rows",
    "choose_block_rows",
    "slots_needed",
]

BATCHES_IN_HAND = 2
"""The batch a training step works on, and the one before it, which `for batch in stream` holds until it has the
next."""

BATCHES_GATHERING = 1

SLOT_TARGET_BYTES = 8 << 20
SLOT_MIN_BYTES = 64 << 10
SLOT_ADVISED_BYTES = 1 << 20  # a refusal advises no smaller slots: messages would cost more than decoding
WINDOW_EDGES_TARGET_BYTES = 256 << 20
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
