"""How large a loader is: which sources stay resident, and an arena that any batch fits into."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.rank_plan import RankPlan
from o41td.coordinator.sizing import size_loader
from o41td.errors import MemoryBoundError
from o41td.fields import FieldPlan
from o41td.job import SourceJob, StageJob, StreamJob
from o41td.order_lookup import order_of
from source_cases import make_source

GIB = 1 << 30
TOKENS = FieldPlan(
    name="tokens", source="tokens", dtype="i32", shape=(256,), pad=0, null=None, exact=True, source_dtype=None
)  # 1 KiB a row


def job_of(stages, *, lanes=1, block_rows=None, threads=2, lookahead=2):
    """A job of stages given as (number of sources, batch size, buffer rows, infinite)."""
    return StreamJob(
        stages=tuple(
            StageJob(
                name=f"stage {number}",
                sources=tuple(
                    SourceJob(name=f"source {source}", files=("x",), weight=1.0 + source, fields=(TOKENS,))
                    for source in range(num_sources)
                ),
                batch_size=batch_size,
                buffer_rows=buffer_rows,
                infinite=infinite,
                drop_last=False,
            )
            for number, (num_sources, batch_size, buffer_rows, infinite) in enumerate(stages)
        ),
        seed=1,
        lanes=lanes,
        threads=threads,
        lookahead=lookahead,
        prefetch_batches=2,
        block_rows=block_rows,
        memory_limit_bytes=None,
        max_row_group_bytes=64 << 20,
        stall_timeout_s=120.0,
    )


def test_a_batch_far_above_the_rows_there_are_takes_no_room_for_more():
    """100 rows on 3 lanes, at most 34 on one: batches of 2 000 000 000 rows take the memory of batches of 35."""
    sources = [[make_source([[60, 40]])]]
    huge, small = (
        size_loader(job_of([(1, batch_size, 0, False)], lanes=3), sources, world_size=3, limit_bytes=GIB)
        for batch_size in (2_000_000_000, 35)
    )
    assert huge == small
    job = job_of([(1, 2_000_000_000, 0, False)], lanes=3)
    order = order_of(job, 0, sources[0])
    assert [len(order.coordinates(number)[0]) for number in range(order.num_batches)] == [33, 33, 34]


@pytest.mark.parametrize(("batch_size", "num_batches"), [(34, 1), (100, 0), (2**31 - 1, 0)])
def test_a_batch_that_cannot_be_filled_is_dropped_whatever_its_size(batch_size, num_batches):
    """With `drop_last` the lane of 34 rows of 100 fills a batch of 34 rows and none of more."""
    (stage,) = job_of([(1, batch_size, 0, False)], lanes=3).stages
    job = replace(job_of([]), stages=(replace(stage, drop_last=True),), lanes=1)
    assert order_of(job, 0, [make_source([[34]])]).num_batches == num_batches


def test_slots_of_a_plain_stage():
    """4 096 live rows in blocks of 1 000: 5 blocks and an edge; 4 in flight; 1 for the batch being gathered."""
    size = size_loader(
        job_of([(1, 32, 4096, False)], block_rows=1000), [[make_source([[1000] * 50])]], world_size=1, limit_bytes=GIB
    )
    assert size.layout.num_slots == (5 + 1) + 4 + 1
    assert size.layout.block_rows == 1000
    assert size.resident == (frozenset(),)
    assert size.window_batches == (256,)
    assert size.ahead_rows == 6 * 1000 + 4096


def test_a_rank_pays_for_its_own_lanes():
    """Of 8 lanes a rank of 8 serves one, a rank of 2 four: as many windows, and not more slots each."""
    sources = [[make_source([[1000] * 80])]]
    slots = [
        size_loader(
            job_of([(1, 32, 4096, False)], lanes=8, block_rows=1000), sources, world_size=world_size, limit_bytes=GIB
        ).layout.num_slots
        for world_size in (8, 2)
    ]
    assert slots == [1 * (5 + 1) + 4 + 1, 4 * (5 + 1) + 4 + 1]


def test_small_sources_of_an_infinite_stage_stay():
    """What fits into half of what the limit leaves is decoded once: the small source of two, not the large one."""
    sources = [[make_source([[1000] * 2]), make_source([[1000] * 3000], source=1)]]
    job = job_of([(2, 32, 64, True)], block_rows=1000)
    assert size_loader(job, sources, world_size=1, limit_bytes=8 * GIB).resident == (frozenset({0}),)
    finite = job_of([(2, 32, 64, False)], block_rows=1000)
    assert size_loader(finite, sources, world_size=1, limit_bytes=8 * GIB).resident == (frozenset(),)


def test_a_source_smaller_than_its_window_stays_whatever_the_limit():
    """3 rows, block after block of them, would take more slots than once: resident even with no memory to spare."""
    sources = [[make_source([[3]]), make_source([[1000] * 300], source=1)]]
    job = job_of([(2, 64, 0, True)], block_rows=1000)
    free = size_loader(job, sources, world_size=1, limit_bytes=8 * GIB)
    tight = size_loader(job, sources, world_size=1, limit_bytes=free.bound.total_bytes)
    assert 0 in tight.resident[0]
    assert tight.bound.total_bytes <= free.bound.total_bytes


def test_too_little_memory_is_refused():
    """A limit below the bound is an error that names both."""
    with pytest.raises(MemoryBoundError) as caught:
        size_loader(job_of([(1, 32, 4096, False)]), [[make_source([[1000] * 50])]], world_size=1, limit_bytes=100 << 20)
    assert caught.value.limit_bytes == 100 << 20
    assert caught.value.needed_bytes > 100 << 20


@pytest.mark.parametrize("seed", range(40))
def test_any_batch_fits_into_the_arena(seed):
    """For odd row groups, many epochs and many sources, every batch fits into the slots that are not to lend."""
    rng = random.Random(seed)
    infinite = rng.random() < 0.5
    num_sources = rng.choice([1, 1, 2, 4])
    kinds = [
        lambda: [rng.choice([100, 100, 100, 37])] * rng.randint(1, 30) + [rng.randint(1, 100)],
        lambda: [rng.randint(1, 120) for _ in range(rng.randint(1, 40))],
        lambda: [rng.randint(1, 4)],
        lambda: [rng.choice([100, 1]) for _ in range(30)],
        lambda: [100] * 30 + [51, 51] * 9,
        lambda: [500 + rng.randint(0, 1)] * rng.randint(1, 6),
    ]
    sources = [
        [make_source([rng.choice(kinds)() for _ in range(rng.randint(1, 3))], source=s) for s in range(num_sources)]
    ]
    stage = (num_sources, rng.choice([1, 64, 300, 1500]), rng.choice([0, 0, 10, 250]), infinite)
    job = job_of(
        [stage], lanes=rng.choice([1, 1, 3]), block_rows=rng.choice([20, 64, 100, 101]), threads=1, lookahead=1
    )
    free = size_loader(job, sources, world_size=1, limit_bytes=64 * GIB)
    size = size_loader(job, sources, world_size=1, limit_bytes=free.bound.total_bytes)
    plan = RankPlan(
        order_of(job, 0, sources[0]),
        sources[0],
        stage=0,
        position=0,
        global_batch=0,
        rank=0,
        world_size=1,
        block_rows=size.layout.block_rows,
        resident=size.resident[0],
        table=BlockTable(size.layout.block_rows),
    )
    num_rows = 0
    while num_rows < 8000 and (batches := plan.next_batches()):
        assert max(len(batch.blocks) for batch in batches) <= size.layout.num_slots - max(size.lent_slots)
        num_rows += sum(batch.num_rows for batch in batches)


def test_batches_that_are_kept_leave_room_for_those_of_any_stage():
    """A stage whose batches may lie in 4 blocks takes the slots that another, which needs 2, could lend."""
    odd = make_source([[100] * 30 + [51] * 18])
    even = make_source([[100] * 40], stage=1)

    def sized(stages, sources):
        return size_loader(
            job_of(stages, block_rows=101, threads=1, lookahead=1), sources, world_size=1, limit_bytes=GIB
        )

    alone = sized([(1, 1, 0, False)], [[even]])
    assert (alone.layout.num_slots, alone.lent_slots) == (4, (2,))
    beside = sized([(1, 8, 0, False), (1, 1, 0, False)], [[odd], [even]])
    assert (beside.layout.num_slots, beside.lent_slots) == (4, (0, 0))


def _sized(lanes, world_size, ranks, **keys):
    sources = [[make_source([[1000] * 80])]]
    job = job_of([(1, 32, 4096, False)], lanes=lanes, block_rows=1000, **keys)
    return size_loader(job, sources, world_size=world_size, limit_bytes=GIB, ranks=ranks)


@pytest.mark.parametrize(
    ("lanes", "ranks", "windows", "sharers"),
    [(8, range(8), 8, 1), (1, range(8), 1, 8), (4, (0, 1, 4), 2, 2), (4, range(8), 4, 2), (16, (3,), 2, 1)],
    ids=["a lane each", "one lane", "0 and 4 share", "two a lane", "two lanes for one"],
)
def test_served_ranks_share_the_windows_of_lanes_in_common(lanes, ranks, windows, sharers):
    """Of a world of 8 on L lanes, rank r reads the lanes l with l = r modulo gcd(8, L): a window each, once."""
    size = _sized(lanes, 8, ranks)
    shape = size.bound.shape
    assert (len(shape.window_rows), shape.ranks_a_window, shape.num_ranks) == (windows, sharers, len(ranks))
    assert size.layout.num_slots >= windows * (5 + 1) + 4 + 1  # as in the first test of this file


def test_each_served_rank_has_room_for_a_batch_of_its_own():
    """A batch of one lane lies in up to n blocks: the arena has as many for each of the ranks."""
    alone, together = (
        size_loader(
            job_of([(1, 512, 4096, False)], block_rows=64),
            [[make_source([[64] * 400])]],
            world_size=8,
            limit_bytes=GIB,
            ranks=ranks,
        ).layout.num_slots
        for ranks in ((0,), range(8))
    )
    most_blocks_of_a_batch = 64  # 512 rows that leave a buffer of 4 096 = 64 blocks, and the next 512 keys' 8 to 16
    assert together >= 8 * most_blocks_of_a_batch > alone


def test_the_bound_counts_every_served_rank():
    """Batches, announced and planned rows are each rank's own; the workers and the units' index are there once."""
    one, eight = _sized(1, 8, (0,)).bound, _sized(1, 8, range(8)).bound
    assert eight.terms["batches"] == 8 * one.terms["batches"]
    index = 80 * 96 + 2560  # 80 units of a shard; its name and sizes are in each trainer too
    assert eight.terms["plan"] - index == 8 * (one.terms["plan"] - index)
    assert eight.terms["processes"] == one.terms["processes"]
    assert eight.terms["decode"] == one.terms["decode"]


def _far_away(source):
    shards = tuple(replace(shard, uri=f"s3://bucket/{shard.uri}") for shard in source.shards)
    return replace(source, shards=shards)


@pytest.mark.parametrize(
    ("threads", "said", "near", "far"),
    [(1, None, 2, 16), (2, None, 2, 8), (4, None, 2, 4), (32, None, 2, 2), (2, 3, 3, 3)],
)
def test_remote_shards_have_sixteen_blocks_on_their_way(threads, said, near, far):
    """Where nobody says how many, workers have two each, and together sixteen where a shard is remote."""
    local = make_source([[1000] * 80])
    job = job_of([(1, 32, 4096, False)], threads=threads, lookahead=said)
    sizes = [size_loader(job, [[source]], world_size=1, limit_bytes=16 * GIB) for source in (local, _far_away(local))]
    assert [size.lookahead for size in sizes] == [near, far]
    assert [size.bound.shape.lookahead for size in sizes] == [near, far]


def test_remote_shards_have_fewer_blocks_on_their_way_where_memory_is_short():
    """A limit that sixteen blocks would exceed is kept with two a worker; one below that is refused."""
    source = _far_away(make_source([[1000] * 80]))
    free, said = (job_of([(1, 32, 4096, False)], lookahead=lookahead) for lookahead in (None, 2))
    least = size_loader(said, [[source]], world_size=1, limit_bytes=GIB).bound.total_bytes
    assert size_loader(free, [[source]], world_size=1, limit_bytes=GIB).bound.total_bytes > least
    assert size_loader(free, [[source]], world_size=1, limit_bytes=least).lookahead == 2
    with pytest.raises(MemoryBoundError):
        size_loader(free, [[source]], world_size=1, limit_bytes=least - 1)
