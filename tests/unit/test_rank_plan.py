"""A rank's plan, worked out by hand where the order is the listed one."""

from __future__ import annotations

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.rank_plan import RankPlan
from o41td.order import StageOrder
from source_cases import make_source, records_of_batch


def plan_of(shards, *, batch_size, position=0, rank=0, world_size=1, block_rows=4, lanes=1, table=None, **options):
    """A plan over one source in listed order, and its table."""
    sources = [make_source(shards)]
    order = StageOrder(
        seed=0,
        stage_index=0,
        unit_rows=[sources[0].unit_rows],
        weights=[1.0],
        batch_size=batch_size,
        infinite=options.pop("infinite", False),
        drop_last=options.pop("drop_last", False),
        buffer_rows=options.pop("buffer_rows", 0),
        lanes=lanes,
    )
    table = table if table is not None else BlockTable(block_rows)
    plan = RankPlan(
        order,
        sources,
        stage=0,
        position=position,
        global_batch=position,
        rank=rank,
        world_size=world_size,
        block_rows=block_rows,
        resident=options.pop("resident", frozenset()),
        table=table,
        **options,
    )
    return plan, table, order, sources


def all_batches(plan):
    """All batches to the end."""
    batches = []
    while more := plan.next_batches():
        batches += more
    return batches


def starts_of(table, handles):
    """The first row of each block."""
    return [table[handle].planned.x_start for handle in handles]


def test_batches_of_a_listed_line():
    """9 rows, batches of 4, blocks of 4: rows 0-3 in one block, 4-7 in the next, which the last row shares none of."""
    plan, table, _, _ = plan_of([[3, 3, 3]], batch_size=4)
    first, second, third = all_batches(plan)  # units of 3 rows: a block each
    assert [batch.number for batch in (first, second, third)] == [0, 1, 2]
    assert starts_of(table, first.blocks) == [0, 3]
    assert starts_of(table, first.closes) == [0]
    assert first.places().rows.tolist() == [0, 1, 2, 0]
    assert starts_of(table, second.blocks) == [3, 6]
    assert starts_of(table, second.closes) == [3]
    assert second.places().rows.tolist() == [1, 2, 0, 1]
    assert starts_of(table, third.blocks) == starts_of(table, third.closes) == [6]
    assert third.places().rows.tolist() == [2]
    assert plan.open_handles() == []
    assert plan.next_batches() == []


def test_a_position_opens_only_the_blocks_that_are_still_needed():
    """From batch 1 on, the block of rows 0-2 is never claimed."""
    plan, table, _, _ = plan_of([[3, 3, 3]], batch_size=4, position=1)
    assert [batch.number for batch in all_batches(plan)] == [1, 2]
    assert sorted(block.planned.x_start for block in table) == [3, 6]


def test_ranks_that_share_a_lane_share_its_blocks():
    """Two ranks, one lane: each block is claimed by both; a rank closes it once it has passed the block's last row."""
    table = BlockTable(4)
    plans = [plan_of([[4] * 4], batch_size=2, rank=rank, world_size=2, table=table)[0] for rank in (0, 1)]
    batches = [all_batches(plan) for plan in plans]
    assert [[batch.number for batch in own] for own in batches] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert len(table) == 4
    assert all(block.claims == 2 for block in table)
    closed = [starts_of(table, [handle for batch in own for handle in batch.closes]) for own in batches]
    assert closed == [[0, 4, 8], [0, 4, 8, 12]]
    assert [starts_of(table, plan.open_handles()) for plan in plans] == [[12], []]


def test_a_short_last_batch_closes_what_others_used_up():
    """Others' batches 3 and 4 use up rows 6-8; rank 2's next is 5, the lane's last row: it closes that block too."""
    plan, table, _, _ = plan_of([[3, 3, 3, 2]], batch_size=2, rank=2, world_size=3, burst_rows=1)
    (second,), (fifth,) = plan.next_batches(), plan.next_batches()
    assert (second.number, second.places().rows.tolist()) == (2, [1, 2])
    assert starts_of(table, second.closes) == [3]
    assert (fifth.number, fifth.places().rows.tolist()) == (5, [1])
    assert starts_of(table, fifth.blocks) == [9]
    assert sorted(starts_of(table, fifth.closes)) == [6, 9]
    assert plan.open_handles() == []


def test_lanes_take_turns():
    """Two lanes of 6 rows on one rank: batches come in the order of their numbers, from the two halves of the line."""
    plan, _, order, sources = plan_of([[12]], batch_size=2, lanes=2)
    batches = all_batches(plan)
    assert [batch.number for batch in batches] == list(range(6))
    firsts = [records_of_batch(order, sources, batch.number)[0][2] for batch in batches]
    assert firsts == [0, 6, 2, 8, 4, 10]


def test_a_resident_source_is_claimed_whole_and_kept():
    """Its blocks are claimed at once, no batch closes them, and every epoch reads the same ones."""
    plan, table, _, _ = plan_of([[3, 2]], batch_size=5, infinite=True, resident=frozenset({0}), block_rows=3)
    handles = plan.open_handles()
    assert sorted(starts_of(table, handles)) == [0, 3]
    batches = plan.next_batches() + plan.next_batches()
    assert all(batch.closes == () and sorted(batch.blocks) == sorted(handles) for batch in batches)
    assert plan.open_handles() == handles
    assert len(table) == 2


def test_first_bursts_are_small():
    """The first batch does not wait for thousands: a burst grows from a 32nd of `burst_rows` to all of it."""
    plan, _, _, _ = plan_of([[1000]], batch_size=2, infinite=True, burst_rows=64, block_rows=1000)
    assert [len(plan.next_batches()) for _ in range(7)] == [1, 2, 4, 8, 16, 32, 32]


def test_dropped_rows_are_the_orders():
    """9 rows, batches of 2, two ranks: the fifth batch has no partner; the rank it would go to drops its row."""
    plans = [plan_of([[9]], batch_size=2, rank=rank, world_size=2)[0] for rank in (0, 1)]
    assert [len(all_batches(plan)) for plan in plans] == [2, 2]
    assert [plan.dropped_rows() for plan in plans] == [1, 0]
