"""A rank's plan against the order, row by row, for random shards, lanes, world sizes, positions and residents."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.rank_plan import RankPlan
from o41td.order import StageOrder, row_digests, total_digest
from source_cases import make_source, records_of_batch, records_of_slot

MOST_BATCHES = 24


@st.composite
def cases(draw):
    """A stage, a place in it, and how it is read."""
    num_sources = draw(st.integers(1, 3))
    shards = [
        draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4))
        for _ in range(num_sources)
    ]
    if not any(rows for source in shards for units in source for rows in units):
        shards[0][0][0] = draw(st.integers(1, 9))
    infinite = draw(st.booleans())
    sources = [make_source(units, source=number) for number, units in enumerate(shards)]
    order = StageOrder(
        seed=draw(st.integers(0, 5)),
        stage_index=0,
        unit_rows=[source.unit_rows for source in sources],
        weights=[draw(st.sampled_from([0.5, 1.0, 2.5])) for _ in sources],
        batch_size=draw(st.integers(1, 6)),
        buffer_rows=draw(st.sampled_from([0, 0, 1, 2, 5, 12, 40])),
        infinite=infinite,
        drop_last=draw(st.booleans()),
        lanes=draw(st.integers(1, 4)),
    )
    may_stay = [source.source for source in sources if infinite and source.num_rows]
    last = order.num_batches if order.num_batches is not None else 40
    return {
        "sources": sources,
        "order": order,
        "resident": frozenset(draw(st.sets(st.sampled_from(may_stay))) if may_stay else ()),
        "world_size": draw(st.integers(1, 5)),
        "position": draw(st.integers(0, last)),
        "global_batch": draw(st.integers(0, 1000)),
        "block_rows": draw(st.sampled_from([1, 2, 3, 5, 7, 12, 24])),
        "burst_rows": draw(st.sampled_from([1, 8, 64, 512])),
    }


@settings(max_examples=50, deadline=None)
@given(cases())
def test_plan_is_the_order(case):
    """Every batch's rows are the order's, its digest is theirs, and each claim ends once; ranks add up to the stage."""
    order, sources, world_size, position = case["order"], case["sources"], case["world_size"], case["position"]
    table = BlockTable(case["block_rows"])
    seen: list[int] = []
    for rank in range(world_size):
        plan = RankPlan(
            order,
            sources,
            stage=0,
            position=position,
            global_batch=case["global_batch"],
            rank=rank,
            world_size=world_size,
            block_rows=case["block_rows"],
            resident=case["resident"],
            table=table,
            burst_rows=case["burst_rows"],
        )
        claims_before = Counter({block.handle: block.claims for block in table})
        for handle in plan.open_handles():
            claims_before[handle] -= 1
        closed: Counter[int] = Counter()
        numbers: list[int] = []
        while len(numbers) < MOST_BATCHES:
            batches = plan.next_batches()
            if not batches:
                break
            for batch in batches:
                check_batch(case, table, batch)
                assert not closed.keys() & set(batch.blocks), "a block is used after it was closed"
                closed.update(batch.closes)
            numbers += [batch.number for batch in batches]
        assert numbers == list(range(position + rank, position + rank + len(numbers) * world_size, world_size))
        rounds = order.rounds(position, world_size)
        assert rounds is None or len(numbers) == rounds or len(numbers) >= MOST_BATCHES
        claims = Counter({block.handle: block.claims for block in table})
        own = claims - claims_before
        assert own == closed + Counter(plan.open_handles())
        assert all(count == 1 for count in own.values())
        seen += numbers
    if order.num_batches is not None and order.rounds(position, world_size) * 1 < MOST_BATCHES:
        assert sorted(seen) == list(range(position, position + order.rounds(position, world_size) * world_size))


def check_batch(case, table, batch):
    """Compare a batch with the order, row by row."""
    order, sources = case["order"], case["sources"]
    expected = records_of_batch(order, sources, batch.number)
    contents = {handle: records_of_slot(table, sources, handle) for handle in batch.blocks}
    places = batch.places()
    rows = list(zip(places.handles.tolist(), places.rows.tolist(), strict=True))
    assert len(rows) == batch.num_rows
    assert [contents[handle][row] for handle, row in rows] == expected
    assert sorted(batch.blocks) == sorted(set(places.handles.tolist()))
    assert all(len(content) <= case["block_rows"] for content in contents.values())
    number = batch.number - case["position"] + case["global_batch"]
    columns = list(zip(*expected, strict=True))
    assert batch.digest == total_digest(row_digests(number, range(len(expected)), *columns))
