import random

import pytest

from o41td.shm.slots import SlotPool


def test_fresh_slots_ascend_and_warm_ones_come_first():
    """Never used slots go out in order; the slot released last goes out before them."""
    pool = SlotPool(4)
    assert [pool.acquire("a"), pool.acquire("b"), pool.acquire("c")] == [0, 1, 2]
    pool.release(0)
    pool.release(1)
    assert [pool.acquire(), pool.acquire(), pool.acquire(), pool.acquire()] == [1, 0, 3, None]
    assert (pool.num_free, pool.num_held) == (0, 4)


def test_double_release_tells_the_story():
    """A slot released twice is an assertion that says who held it and when it went."""
    pool = SlotPool(2)
    slot = pool.acquire("block 17")
    assert pool.holder_of(slot) == "block 17"
    pool.release(slot)
    with pytest.raises(AssertionError, match=r"slot 0 .* event 0: acquired by 'block 17'; event 1: released"):
        pool.release(slot)
    pool.validate()
    assert pool.num_free == 2


@pytest.mark.parametrize(("slot", "story"), [(1, "nothing about it"), (2, "slots 0 to 1 only"), (-1, "slots 0 to 1")])
def test_release_of_what_was_never_acquired(slot, story):
    """A slot that was never acquired, or does not exist, cannot be released."""
    with pytest.raises(AssertionError, match=story):
        SlotPool(2).release(slot)


def test_random_use_keeps_every_slot_accounted_for():
    """Whatever the order of calls, a held slot is never handed out again and none is lost."""
    rng = random.Random(7)
    pool, held = SlotPool(9), set()
    for _ in range(2000):
        if held and rng.random() < 0.5:
            slot = rng.choice(sorted(held))
            held.remove(slot)
            pool.release(slot)
        elif (slot := pool.acquire()) is not None:
            assert slot not in held
            held.add(slot)
        pool.validate()
        assert (pool.num_held, pool.num_free) == (len(held), 9 - len(held))


def test_validate_sees_a_lost_slot():
    """A slot that is neither free nor held is found."""
    pool = SlotPool(3)
    pool._free.remove(1)
    with pytest.raises(AssertionError, match=r"slots \[1\] are neither"):
        pool.validate()


def test_a_kept_slot_is_free_once_it_is_released_and_not_kept():
    """A slot that somebody still reads is not handed out again, in whichever order release and end of keeping come."""
    pool = SlotPool(3)
    first, second = pool.acquire("one"), pool.acquire("two")
    pool.keep(frozenset({first, second}))
    pool.release(first)
    pool.validate()
    assert (pool.num_free, pool.num_held, pool.num_kept_back) == (1, 2, 1)
    assert [pool.acquire(), pool.acquire()] == [2, None]
    pool.keep(frozenset({second}))
    pool.validate()
    assert pool.acquire("three") == first
    pool.keep(frozenset())
    pool.release(second)
    assert pool.acquire() == second
    pool.validate()


def test_a_slot_that_holds_nothing_cannot_be_kept():
    """To keep a free slot is an assertion that tells the slot's story, and changes nothing."""
    pool = SlotPool(2)
    pool.release(pool.acquire("one"))
    with pytest.raises(AssertionError, match=r"slots \[0\] are kept but not held: event 0: acquired by 'one'"):
        pool.keep(frozenset({0}))
    pool.validate()
    assert pool.num_free == 2


def test_random_keeping_never_gives_a_kept_slot_away():
    """Whatever is acquired, released and kept, in whatever order: no kept slot goes out, and none is lost."""
    rng = random.Random(11)
    pool, held, kept = SlotPool(7), set(), set()
    for _ in range(3000):
        match rng.randrange(3):
            case 0 if held:
                slot = rng.choice(sorted(held))
                held.remove(slot)
                pool.release(slot)
            case 1:
                kept = {slot for slot in held | kept if rng.random() < 0.3}
                pool.keep(frozenset(kept))
            case _ if (slot := pool.acquire()) is not None:
                assert slot not in held | kept
                held.add(slot)
        pool.validate()
        assert pool.num_free == 7 - len(held | kept)
