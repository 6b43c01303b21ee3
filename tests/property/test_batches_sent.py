"""Batches on their way, against plain models: the blocks they wait for, their rows in the arena, words of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import BlockPiece, PlannedBlock
from o41td.coordinator.events import BlockKey, Burst, BurstRows, PlannedBatch, RowRun
from o41td.coordinator.rank_state import RankState
from o41td.gatherer import arena_rows_of
from o41td.workers.messages import BatchesReady

BLOCK_ROWS = 10
HANDLES = st.integers(0, 5)
NEEDED = st.lists(HANDLES, min_size=1, max_size=4, unique=True)


def batch_of(rows=None, *, num_rows=1, blocks=(), closes=()):
    """A batch of which nothing but this matters."""
    return PlannedBatch(number=0, digest=0, num_rows=num_rows, rows=rows, blocks=blocks, closes=closes)


@st.composite
def tables(draw):
    """A table of blocks in slots that are not in the order of their handles."""
    table = BlockTable(BLOCK_ROWS)
    slots = draw(st.permutations(range(6)))
    for number, slot in enumerate(slots):
        planned = PlannedBlock(0, BLOCK_ROWS, (BlockPiece(0, 0, BLOCK_ROWS, 0),))
        table.hold(table[table.claim(BlockKey(0, 0, number, 0), planned)], slot)
    return table


@st.composite
def sent_batches(draw, table):
    """Batches of some bursts, in any order that keeps each burst's own, some of them left out, and runs in between."""
    handles = np.array(draw(st.permutations(range(6))), np.int64)
    lanes = []
    for _ in range(draw(st.integers(0, 3))):
        num_batches, num_rows = draw(st.integers(1, 6)), draw(st.integers(1, 3))
        shape = (num_batches, num_rows)
        numbers = st.lists(st.integers(0, 5), min_size=num_batches * num_rows, max_size=num_batches * num_rows)
        burst = Burst(handles, *(np.array(draw(numbers), np.int64).reshape(shape) for _ in range(2)))
        places = [place for place in range(num_batches) if draw(st.booleans())]
        lanes.append([batch_of(BurstRows(burst, place), num_rows=num_rows) for place in places])
    runs = st.builds(RowRun, st.integers(0, 5), st.integers(0, BLOCK_ROWS - 4))
    lanes.append([batch_of(run, num_rows=draw(st.integers(1, 4))) for run in draw(st.lists(runs, max_size=4))])
    sent = []
    while any(lanes):
        sent.append(draw(st.sampled_from([lane for lane in lanes if lane])).pop(0))
    return sent


@given(st.data())
def test_each_batch_has_its_own_rows(data):
    """What a consumer makes of the message are, batch by batch, the arena rows of what was planned."""
    table = data.draw(tables())
    batches = data.draw(sent_batches(table))
    first_rows, listed = table.arena_rows(batches)
    message = BatchesReady(
        generation=1,
        stage=0,
        numbers=[0] * len(batches),
        num_rows=[batch.num_rows for batch in batches],
        digests=[0] * len(batches),
        releases=[False] * len(batches),
        first_rows=first_rows,
        rows=listed.tobytes(),
    )
    found = arena_rows_of(message)
    assert len(found) == len(batches)
    for batch, rows in zip(batches, found, strict=True):
        assert isinstance(rows, slice) == isinstance(batch.rows, RowRun)
        handles, places = batch.places()
        expected = [
            table[handle].slot * BLOCK_ROWS + place
            for handle, place in zip(handles.tolist(), places.tolist(), strict=True)
        ]
        assert np.arange(6 * BLOCK_ROWS)[rows].tolist() == expected


class NoPlan:
    stage = 0


def asked_one_by_one(num_unasked, closings, of_closing, at_least_every, of_last):
    """The rule, batch by batch: those that close, one in so many, the last; and how many came since."""
    asked = []
    for closes in closings:
        num_unasked += 1
        asked.append((of_closing and closes) or num_unasked >= at_least_every)
        num_unasked = 0 if asked[-1] else num_unasked
    if of_last and not asked[-1]:
        asked[-1], num_unasked = True, 0
    return asked, num_unasked


@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=1, max_size=12), st.booleans(), st.integers(1, 9), st.booleans()),
        max_size=6,
    )
)
def test_of_which_batches_a_word_is_asked(messages):
    """Message after message, whatever is asked for changes in between: as the rule says it one by one."""
    rank, num_unasked = RankState(0, 1, NoPlan(), 0), 0
    for closings, of_closing, at_least_every, of_last in messages:
        batches = [batch_of(closes=(3,) if closes else ()) for closes in closings]
        expected, num_unasked = asked_one_by_one(num_unasked, closings, of_closing, at_least_every, of_last)
        found = rank.asked_of(batches, of_closing=of_closing, at_least_every=at_least_every, of_last=of_last)
        assert found == expected


@given(
    st.data(),
    st.lists(st.lists(NEEDED, min_size=1, max_size=5), min_size=1, max_size=4),
    st.frozensets(HANDLES),
)
def test_what_waits_is_wanted_once_by_the_first_that_needs_it(data, bursts, under_way):
    """In the order of need, however many batches need a block; one that is under way or decoded is not asked for."""
    table, rank = data.draw(tables()), RankState(0, 1, NoPlan(), 0)
    num_sent = data.draw(st.integers(0, len(bursts[0])))
    under_way = under_way.union(*bursts[0][:num_sent])
    for handle in under_way:
        table.move(table[handle], "issue")
    needs = {}
    for place, blocks in enumerate(blocks for burst in bursts for blocks in burst):
        for handle in blocks:
            if handle not in under_way:
                needs.setdefault(handle, place - num_sent + (1 if num_sent else 0))
    for number, burst in enumerate(bursts):
        rank.expect([batch_of(blocks=tuple(blocks)) for blocks in burst], table)
        if not number:
            rank.send(num_sent)
    assert rank.num_wanted == len(needs)
    found = {}
    while (wanted := rank.first_wanted()) is not None:
        distance, block = wanted
        found[block.handle] = distance
        table.move(block, "issue")
    assert list(found.items()) == list(needs.items())


@given(st.data())
def test_blocks_of_batches_in_one_piece_are_noted_as_lent(data):
    """Of all those that are sent, and no others: what a consumer may have written to is not sent again."""
    table = data.draw(tables())
    batches = data.draw(sent_batches(table))
    table.note_lent(batches)
    lent = {block.handle for block in table if block.is_lent}
    assert lent == {batch.rows.handle for batch in batches if isinstance(batch.rows, RowRun)}
