"""The arena's arithmetic. Numbers are worked out by hand beside each test."""

import msgpack
import pytest

from o41td.errors import SharedMemoryError
from o41td.shm.layout import ArenaLayout, arena_bytes_of, batch_bytes_of, plan_arena, round_up

FIELDS = [("tokens", "<i4", (100,)), ("label", "<f8", ()), ("seen", "|b1", (2, 3))]


def test_regions_follow_each_other_on_page_boundaries():
    """Each region starts on the first page behind the one before it."""
    layout = plan_arena(FIELDS, num_slots=3, block_rows=7)
    # 21 rows: tokens 21*400 = 8400 -> 12288; label 21*8 = 168 -> one page; seen 21*6 = 126 -> one page.
    assert [(field.offset, field.row_bytes) for field in layout.fields] == [(0, 400), (12288, 8), (16384, 6)]
    assert layout.total_bytes == 20480
    assert layout.slot_bytes == 7 * 414
    assert layout.num_rows == 21
    assert layout.row_bytes == 414


def test_slot_rows_tile_the_arena():
    """Slots are equal, disjoint and complete runs of arena rows."""
    layout = plan_arena(FIELDS, num_slots=3, block_rows=7)
    assert [layout.slot_rows(slot) for slot in range(3)] == [slice(0, 7), slice(7, 14), slice(14, 21)]
    for outside in (-1, 3):
        with pytest.raises(AssertionError, match="not in"):
            layout.slot_rows(outside)


def test_byte_range_of_slots():
    """A field's slots lie at its offset, slot after slot."""
    layout = plan_arena(FIELDS, num_slots=3, block_rows=7)
    assert layout.byte_range(layout.fields[1], 1, 3) == (12288 + 56, 12288 + 168)


def test_record_survives_msgpack():
    """A layout sent as a record arrives equal."""
    layout = plan_arena(FIELDS, num_slots=3, block_rows=7)
    assert ArenaLayout.from_record(msgpack.unpackb(msgpack.packb(layout.to_record()))) == layout


@pytest.mark.parametrize(
    "change",
    [
        {"layout_version": 2},
        {"total_bytes": 20479},
        {"num_slots": 0},
        {"num_slots": 2.0},
        {"block_rows": True},
        {"fields": []},
        {"fields": [["a", "<i4", [0]]]},
        {"fields": [["a", "<i4", [-4]]]},
        {"fields": [["a", ">i4", [4]]]},
        {"fields": [["a", "O", [4]]]},
        {"fields": [["a", "nonsense", []]]},
        {"fields": [["a", "<i4", []], ["a", "<i4", []]]},
        {"fields": 7},
    ],
)
def test_records_that_do_not_hold_are_refused(change):
    """A record with any part changed is refused as an error of ours."""
    record = plan_arena(FIELDS, num_slots=3, block_rows=7).to_record() | change
    with pytest.raises(SharedMemoryError, match="layout"):
        ArenaLayout.from_record(record)


def test_record_without_a_key_is_refused():
    """A missing key is refused too."""
    record = plan_arena(FIELDS, num_slots=3, block_rows=7).to_record()
    del record["block_rows"]
    with pytest.raises(SharedMemoryError, match="block_rows"):
        ArenaLayout.from_record(record)


def test_senseless_plans_are_our_bug():
    """Planning an arena without slots is an assertion: config was checked before."""
    with pytest.raises(AssertionError, match="num_slots"):
        plan_arena(FIELDS, num_slots=0, block_rows=7)


def test_arena_and_batch_bytes():
    """The memory bound's formulas give what is planned."""
    assert arena_bytes_of([400, 8, 6], num_slots=3, block_rows=7) == 20480
    # 7 rows: 2800 -> 2816, 56 -> 64, 42 -> 64.
    assert batch_bytes_of([400, 8, 6], 7) == 2816 + 64 + 64
    assert [round_up(n, 64) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
