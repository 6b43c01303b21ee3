"""Batches that lie in the arena are their holder's for as long as anything shows them, in a fork and behind the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from o41td.lent_batches import LentBatches
from o41td.shm.layout import plan_arena
from o41td.shm.pages import address_of
from o41td.shm.segment import MappedArena, create_segment, map_arena

FIELDS = [("tokens", "<i4", (2048,)), ("label", "<f8", ()), ("seen", "|b1", (3,))]
BLOCK_ROWS = 16
LAYOUT = plan_arena(FIELDS, num_slots=4, block_rows=BLOCK_ROWS)


@pytest.fixture(params=["shm", "memfd"])
def descriptor(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of the segment behind the arena."""
    with create_segment(LAYOUT.total_bytes, prefer=request.param) as segment:
        assert segment.kind == request.param
        yield segment.fd


@pytest.fixture
def arena(descriptor: int) -> Iterator[MappedArena]:
    """Four slots of 16 rows: row r has r everywhere."""
    with map_arena(descriptor, LAYOUT, writable=True) as mapped:
        rows = np.arange(LAYOUT.num_rows)
        for name, _, shape in FIELDS:
            mapped.region(name)[...] = rows.reshape(-1, *[1] * len(shape))
        yield mapped


@pytest.fixture
def lent(arena: MappedArena) -> LentBatches:
    """Lends of up to two slots in stage 0, of none in stage 1."""
    lender = LentBatches(arena)
    lender.most_slots = [2, 0]
    return lender


def test_a_lent_batch_is_the_arena_itself(arena, lent):
    """Arrays are what a batch needs, hold the rows asked for, and writing to them writes to the arena."""
    batch = lent.lend(0, 21, 5)
    assert {name: (array.shape, array.dtype.str) for name, array in batch.items()} == {
        "tokens": ((5, 2048), "<i4"),
        "label": ((5,), "<f8"),
        "seen": ((5, 3), "|b1"),
    }
    for array in batch.values():
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
    assert batch["label"].tolist() == [21.0, 22.0, 23.0, 24.0, 25.0]
    assert batch["tokens"][:, -1].tolist() == [21, 22, 23, 24, 25]
    batch["label"][1] = -1.0
    assert arena.region("label")[20:24].tolist() == [20.0, 21.0, -1.0, 23.0]
    assert {name: array.shape for name, array in lent.lend(0, 26, 2).items()}["tokens"] == (2, 2048)


def test_a_slot_is_held_as_long_as_anything_shows_it(lent):
    """A view of a view of one field holds the slot; when it goes, the slot is free."""
    view = lent.lend(0, 3, 4)["tokens"][1:].reshape(-1)[2:]
    other = lent.lend(0, 40, 1)
    assert lent.held_slots() == {0, 2}
    del other
    assert lent.held_slots() == {0}
    del view
    assert lent.held_slots() == frozenset()


def test_no_more_slots_are_held_than_may_be(lent):
    """Two slots that are held shut out a third, not more of their own rows; one that is given back makes room."""
    kept = [lent.lend(0, 0, 2), lent.lend(0, 16, 2)]
    assert lent.lend(0, 32, 2) is None
    kept += [lent.lend(0, 2, 2), lent.lend(0, 18, 2)]
    assert None not in kept
    del kept[1], kept[-1]
    kept.append(lent.lend(0, 32, 2))
    assert kept[-1] is not None
    assert lent.lend(0, 18, 2) is None
    assert lent.held_slots() == {0, 2}


def test_the_newest_slot_counts_when_nothing_of_it_is_held(lent):
    """Rows of a slot that was given back and of others: never more slots at once than may be held."""
    first = lent.lend(0, 0, 1)
    lent.lend(0, 16, 1)  # the newest slot, given back at once
    second = lent.lend(0, 32, 1)
    assert lent.lend(0, 17, 1) is None
    assert lent.held_slots() == {0, 2}
    del first, second
    assert lent.lend(0, 17, 1) is not None


def test_nothing_is_lent_where_nobody_has_allowed_it(arena, lent):
    """Not in a stage whose rows come again, not before the coordinator has spoken, and not behind the end."""
    assert lent.lend(1, 0, 2) is None
    assert LentBatches(arena).lend(0, 0, 2) is None
    kept = lent.lend(0, 0, 2)
    lent.retire()
    assert lent.lend(0, 2, 2) is None
    assert kept is not None


def test_word_is_due_of_a_slot_that_is_back(lent):
    """Word is due when a slot that the coordinator was told of is held no more, and rows have come of another."""
    first = lent.lend(0, 0, 1)
    lent.told = lent.held_slots()
    assert not lent.is_return_due
    second = lent.lend(0, 16, 1)
    assert not lent.is_return_due
    del first
    assert lent.is_return_due
    lent.told = lent.held_slots()
    assert not lent.is_return_due
    del second
    lent.lend(0, 32, 1)
    assert lent.is_return_due


def test_a_batch_that_is_kept_behind_the_end_keeps_its_own_pages(descriptor, arena):
    """The rest of the arena's memory is given back, and with the last batch the mapping."""
    start = f"{address_of(arena.bytes()):x}-"
    lender = LentBatches(arena)
    lender.most_slots = [2]
    kept = lender.lend(0, 17, 3)
    dropped = lender.lend(0, 1, 3)
    del dropped
    reserved = os.fstat(descriptor).st_blocks * 512
    assert reserved >= LAYOUT.total_bytes
    lender.retire()
    arena.close()
    # 3 rows of 8 KiB begin and end within pages: 8 of tokens at most, and one or two of each other field.
    assert os.fstat(descriptor).st_blocks * 512 <= 12 * 4096
    assert kept["tokens"].min(axis=1).tolist() == kept["tokens"].max(axis=1).tolist() == [17, 18, 19]
    assert kept["label"].tolist() == [17.0, 18.0, 19.0]
    maps = Path("/proc/self/maps")
    assert start in maps.read_text()
    del kept, lender
    assert start not in maps.read_text()


@pytest.mark.parametrize("is_retired", [False, True])
def test_a_fork_has_what_was_held_and_neither_sees_what_the_other_writes(arena, lent, is_retired):
    """The child has the batch as it was at the fork, whatever the parent writes later, and the other way round."""
    kept, beside = lent.lend(0, 17, 3), arena.region("label")
    gone = lent.lend(0, 1, 1)
    del gone
    if is_retired:
        lent.retire()
        arena.close()
    go_read, go_write = os.pipe()
    seen_read, seen_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go_write)
            os.read(go_read, 1)
            seen = [kept["tokens"][:, 7].tolist(), kept["label"].tolist(), kept["seen"].all().item()]
            kept["label"][...] = 99.0
            os.write(seen_write, repr(seen).encode())
        finally:
            os._exit(0)
    try:
        kept["label"][...] = 55.0
        kept["tokens"][...] = 66
        os.write(go_write, b"!")
        os.close(seen_write)
        assert os.read(seen_read, 1 << 12).decode() == "[[17, 18, 19], [17.0, 18.0, 19.0], True]"
    finally:
        os.waitpid(child, 0)
        for end in (go_read, go_write, seen_read):
            os.close(end)
    assert kept["label"].tolist() == [55.0, 55.0, 55.0]
    if not is_retired:
        assert beside[16] == 16.0
        assert lent.lend(0, 20, 1)["label"].tolist() == [20.0]


def test_a_fork_without_batches_leaves_the_arena_alone(arena, lent):
    """Where nothing is held, a fork shares the arena as before: the child's writes are seen."""
    child = os.fork()
    if child == 0:
        try:
            arena.region("label")[0] = -7.0
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert arena.region("label")[0] == -7.0
    assert lent.held_slots() == frozenset()


def test_what_is_lent_in_the_middle_of_a_fork_is_the_childs_own_too(arena, lent):
    """A batch that was lent by another thread when all was set aside already is right in the child, and only there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            lent.most_slots = [2]  # nothing is lent in a fork otherwise
            early = lent.lend(0, 17, 3)
            lent.set_aside()
            late = lent.lend(0, 20, 2)
            lent.make_private()
            if (early["label"].tolist(), late["label"].tolist()) == ([17.0, 18.0, 19.0], [20.0, 21.0]):
                late["label"][...] = 9.0
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert arena.region("label")[20:22].tolist() == [20.0, 21.0]
