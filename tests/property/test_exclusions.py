"""Excluded batches against sets of numbers: positions, stretches, ranks in step, rows that add up, plans."""

from __future__ import annotations

from collections import Counter
from itertools import count, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.excluding_plan import ExcludingPlan, plan_rank
from o41td.coordinator.rank_plan import RankPlan
from o41td.exclusions import NOTHING_EXCLUDED, Exclusions, rank_stretches
from o41td.order import StageOrder
from source_cases import make_source, records_of_batch, records_of_slot

LIMIT = 60


@st.composite
def ranges(draw, most=40):
    """Some ranges, in any order, touching and overlapping as they like."""
    starts = draw(st.lists(st.integers(0, most), max_size=5))
    return [(start, start + draw(st.integers(1, 12))) for start in starts]


def numbers_in(pairs):
    """The numbers that ranges hold."""
    return {number for start, stop in pairs for number in range(start, stop)}


@settings(max_examples=50, deadline=None)
@given(ranges(), st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(0, 20))
def test_counts_and_positions_are_those_of_the_set(pairs, start, stop, num_taken):
    """Membership, counts, overlap, stretches, shifts and the position behind the n-th taken number."""
    excluded, numbers = Exclusions(pairs), numbers_in(pairs)
    assert numbers_in(excluded.ranges) == numbers
    assert all(a[1] < b[0] for a, b in pairwise(excluded.ranges))
    assert [n in excluded for n in range(LIMIT)] == [n in numbers for n in range(LIMIT)]
    assert bool(excluded) == bool(numbers)
    if start <= stop:
        inside = {n for n in numbers if start <= n < stop}
        assert excluded.count(start, stop) == len(inside)
        assert numbers_in(excluded.overlap(start, stop)) == inside
        stretches = list(excluded.stretches(start, stop))
        assert [n for a, b in stretches for n in range(a, b)] == [n for n in range(start, stop) if n not in numbers]
        assert all(a < b for a, b in stretches)
        assert all(x[1] < y[0] for x, y in pairwise(stretches))
    taken = list(islice((n for n in count(start) if n not in numbers), num_taken))
    assert excluded.after(start, num_taken) == (taken[-1] + 1 if taken else start)
    assert numbers_in(excluded.shifted(start).ranges) == {n - start for n in numbers if n >= start}
    assert numbers_in(excluded.shifted(-7).ranges) == {n + 7 for n in numbers}
    assert Exclusions(reversed(pairs)) == excluded
    assert hash(Exclusions(reversed(pairs))) == hash(excluded)


@settings(max_examples=50, deadline=None)
@given(ranges(), st.integers(0, 30), st.integers(1, 5), st.integers(0, 12))
def test_ranks_take_turns_over_what_is_left(pairs, position, world_size, rounds):
    """Rank r of W takes the r-th, (r+W)-th, … number from the position on that is not excluded: all equally many."""
    left = list(islice((n for n in count(position) if n not in numbers_in(pairs)), rounds * world_size))
    for rank in range(world_size):
        stretches = list(rank_stretches(position, rank, world_size, rounds, Exclusions(pairs)))
        taken = [start + first + k * world_size for start, first, num in stretches for k in range(num)]
        assert taken == left[rank::world_size]
        assert all(num > 0 for _, _, num in stretches)
        endless = list(rank_stretches(position, rank, world_size, None, Exclusions(pairs)))
        start, first, num = endless[-1]
        assert num is None
        taken = [s + f + k * world_size for s, f, n in endless[:-1] for k in range(n)]
        taken += [start + first + k * world_size for k in range(LIMIT)]
        assert taken[:rounds] == left[rank::world_size]


@pytest.mark.parametrize("pair", [(3, 3), (4, 2), (-1, 2)])
def test_a_range_that_is_none_is_refused(pair):
    """Empty, turned around, negative."""
    with pytest.raises(ValueError, match="must be 0 <= start < stop"):
        Exclusions([pair])


def test_ranges_that_end_in_the_middle_of_a_round_by_hand():
    """Two ranks, batch 2 excluded: rank 0 takes 0, 3, 5 and rank 1 takes 1, 4, 6; batch 7 has no partner."""
    excluded = Exclusions([[2, 3]])
    assert list(rank_stretches(0, 0, 2, 3, excluded)) == [(0, 0, 1), (3, 0, 2)]
    assert list(rank_stretches(0, 1, 2, 3, excluded)) == [(0, 1, 1), (3, 1, 2)]
    odd = Exclusions([[3, 4]])  # rank 0 takes 0, 2, 5 and rank 1 takes 1, 4, 6
    assert list(rank_stretches(0, 0, 2, 3, odd)) == [(0, 0, 2), (4, 1, 1)]
    assert list(rank_stretches(0, 1, 2, 3, odd)) == [(0, 1, 1), (4, 0, 2)]


@st.composite
def stages(draw):
    """A stage with exclusions, and how it is read."""
    sources = [
        make_source(
            [*draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=3)), [3]],
            source=number,
        )
        for number in range(draw(st.integers(1, 2)))
    ]
    infinite = draw(st.booleans())
    order = StageOrder(
        seed=draw(st.integers(0, 5)),
        stage_index=0,
        unit_rows=[source.unit_rows for source in sources],
        weights=[1.0] * len(sources),
        batch_size=draw(st.integers(1, 5)),
        buffer_rows=draw(st.sampled_from([0, 3, 12])),
        infinite=infinite,
        drop_last=draw(st.booleans()),
        lanes=draw(st.integers(1, 4)),
    )
    last = order.num_batches if order.num_batches is not None else 30
    position = draw(st.integers(0, last))
    return {
        "order": order,
        "sources": sources,
        "position": position,
        "world_size": draw(st.integers(1, 5)),
        "excluded": Exclusions(draw(ranges())),
        "resident": frozenset({0} if infinite and draw(st.booleans()) else ()),
        "block_rows": draw(st.integers(1, 6)),
        "burst_rows": draw(st.sampled_from([1, 16, 512])),
    }


@settings(max_examples=50, deadline=None)
@given(stages())
def test_rows_taken_dropped_and_excluded_add_up(case):
    """From a position on, over all ranks: delivered + dropped + excluded = the stage's rows; without ranges as ever."""
    order, position, world_size, excluded = (case[key] for key in ("order", "position", "world_size", "excluded"))
    rounds = order.rounds(position, world_size, excluded)
    if rounds is None:
        assert order.dropped_rows(position, 0, world_size, excluded) == 0
        return
    left = [n for n in range(position, order.num_batches) if n not in excluded]
    assert rounds == len(left) // world_size
    delivered = sum(order.batch_rows(n) for n in left[: rounds * world_size])
    dropped = [order.dropped_rows(position, rank, world_size, excluded) for rank in range(world_size)]
    passed = order.excluded_rows(position, order.num_batches, excluded)
    assert passed == sum(order.batch_rows(n) for n in range(position, order.num_batches) if n in excluded)
    assert order.rows_before(position) + delivered + passed + sum(dropped) == order.total_rows
    for ordinal, number in enumerate(left[rounds * world_size :]):
        assert dropped[ordinal] >= order.batch_rows(number)  # the leftover batch of rank `ordinal`
    plain = [order.dropped_rows(position, rank, world_size) for rank in range(world_size)]
    assert plain == [order.dropped_rows(position, rank, world_size, NOTHING_EXCLUDED) for rank in range(world_size)]


@settings(max_examples=50, deadline=None)
@given(stages())
def test_a_plan_passes_over_what_is_excluded_and_closes_every_claim(case):
    """Every batch holds the order's rows; a rank's numbers are its turns; a claim ends once, none is left open."""
    order, sources, world_size, position = (case[key] for key in ("order", "sources", "world_size", "position"))
    excluded = case["excluded"]
    table = BlockTable(case["block_rows"])
    end = LIMIT if order.num_batches is None else order.num_batches
    left = [n for n in range(position, end) if n not in excluded]
    rounds = len(left) // world_size
    for rank in range(world_size):
        claims_before = sum(block.claims for block in table)
        plan = plan_rank(
            order,
            sources,
            excluded=excluded.shifted(-1000),  # global batches: the stage began at 1000
            stage=0,
            position=position,
            global_batch=position + 1000,
            rank=rank,
            world_size=world_size,
            block_rows=case["block_rows"],
            resident=case["resident"],
            table=table,
            burst_rows=case["burst_rows"],
        )
        assert isinstance(plan, ExcludingPlan) == any(stop > position for _, stop in excluded.ranges)
        closed: Counter[int] = Counter()
        numbers: list[int] = []
        while len(numbers) < rounds:
            for batch in plan.next_batches():
                contents = {handle: records_of_slot(table, sources, handle) for handle in batch.blocks}
                rows = zip(*[column.tolist() for column in batch.places()], strict=True)
                assert [contents[handle][row] for handle, row in rows] == records_of_batch(order, sources, batch.number)
                closed.update(batch.closes)
                numbers.append(batch.number)
        assert numbers[:rounds] == left[rank::world_size][:rounds]
        own = sum(block.claims for block in table) - claims_before
        assert own == closed.total() + len(plan.open_handles())
        if order.num_batches is not None:
            assert plan.next_batches() == []
            assert numbers == left[rank::world_size][:rounds]
            assert isinstance(plan, RankPlan) or plan.open_handles() == []
            assert plan.dropped_rows() == order.dropped_rows(position, rank, world_size, excluded)
