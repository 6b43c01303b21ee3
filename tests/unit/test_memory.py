"""The memory bound. Sums are worked out by hand beside each test."""

import re
from dataclasses import replace

import pytest

from o41td.errors import MemoryBoundError
from o41td.loader_shape import LoaderShape, block_fill_rows, choose_block_rows, slots_needed
from o41td.memory import memory_bound
from o41td.memory_costs import stream_bytes

MIB = 1 << 20

SHAPE = LoaderShape(
    field_row_bytes=(8192, 4),
    block_rows=1024,
    window_rows=(4096, 4096),
    threads=2,
    lookahead=2,
    batch_size=32,
    prefetch_batches=2,
    num_columns=2,
    whole_bytes=20 * MIB,
    whole_rows=1000,
    fetch_bytes=5 * MIB,
    max_row_group_bytes=64 * MIB,
    num_units=1000,
    num_shards=20,
)


def test_terms_by_hand():
    """Each term is its formula, and the total their sum."""
    bound = memory_bound(SHAPE)
    # windows 2 * (4 + 1), in flight 4, one batch of 32 rows: 15 slots.
    assert SHAPE.num_slots == 15
    assert bound.terms == {
        "arena": 15 * 1024 * 8192 + 15 * 1024 * 4,  # both whole pages
        "decode": 2 * (2 * 20 * MIB + 5 * MIB + 2 * MIB + 1024 * 8196 + 12 * MIB),
        "batches": 5 * (32 * 8192 + 128),
        # ahead: 4 blocks in flight and 2, of 32 batches each
        "plan": 20 * (2560 + 640) + 1000 * 96 + 8192 * 40 + 6 * (1024 * 32 + 32 * 512),
        "processes": (38 + 23 + 2 * 26) * MIB,
    }
    assert bound.total_bytes == sum(bound.terms.values())
    assert bound.to_record() == {"bound_bytes": bound.total_bytes, "terms": bound.terms}


def each_decodes(shape: LoaderShape) -> int:
    """What a worker takes to decode, without a slot's worth of temporaries and the spare."""
    return memory_bound(shape).terms["decode"] // shape.threads - 1024 * 8196 - 12 * MIB


def test_units_read_in_part_count_beside_the_one_that_is_decoded():
    """A unit cut into slices is kept for the next; two windows keep two, and never more than max_row_group_bytes."""
    sliced = replace(SHAPE, whole_rows=1025, held_units=3)
    assert each_decodes(sliced) == (47 + 2 * 20) * MIB
    assert each_decodes(replace(sliced, held_units=2)) == (47 + 20) * MIB
    assert each_decodes(replace(sliced, held_units=10)) == (47 + 44) * MIB
    assert each_decodes(replace(sliced, whole_bytes=64 * MIB)) == (2 * 64 + 7) * MIB


def test_streams_count_instead_where_they_take_more():
    """Two windows may have three streams open, within max_row_group_bytes; a single larger one is open all the same."""
    small = replace(SHAPE, whole_bytes=0, fetch_bytes=0, held_units=3)
    assert each_decodes(replace(small, stream_bytes=16 * MIB)) == (3 * 16 + 24) * MIB
    assert each_decodes(replace(small, stream_bytes=30 * MIB)) == (64 + 24) * MIB
    assert each_decodes(replace(small, stream_bytes=90 * MIB)) == (90 + 24) * MIB
    assert each_decodes(replace(SHAPE, stream_bytes=1 * MIB)) == 47 * MIB


@pytest.mark.parametrize(
    ("decoding_bytes", "row_bytes", "num_columns", "expected"),
    [
        (1 << 40, 8192, 1, 16 * MIB + 2 * MIB),  # two batches of 8 MiB, and what a column keeps
        (1 << 40, 8192, 60, 16 * MIB + 120 * MIB),
        (1 << 40, 100 * MIB, 1, 200 * MIB + 2 * MIB),  # a batch has a row at least
        (1 * MIB, 10, 200, 5 * MIB),  # no more than there is: two batches of it all, and its pages thrice
    ],
)
def test_stream_bytes(decoding_bytes, row_bytes, num_columns, expected):
    """A stream holds two batches, and of each column what reading it takes."""
    assert stream_bytes(decoding_bytes, row_bytes, num_columns) == expected


def test_footers_count_parsed():
    """Nine times what they are in the files: those kept or open, the one that is parsed, and one more."""
    assert each_decodes(replace(SHAPE, footers_bytes=1000, largest_footer_bytes=100)) - 47 * MIB == 9 * 1200
    many = replace(SHAPE, footers_bytes=1 << 40, largest_footer_bytes=MIB)
    assert each_decodes(many) == (47 + 9 * (4 + 8 + 2)) * MIB


def test_no_more_rows_are_planned_than_there_are():
    """Rows planned ahead: six blocks and the shuffle's buffer, or the whole of a finite stage."""
    assert replace(SHAPE, buffer_rows=4096).ahead_rows == 6 * 1024 + 4096
    assert replace(SHAPE, buffer_rows=4096, reach_rows=5000).ahead_rows == 5000


def test_ranks_and_resident_slots_count():
    """Each rank has batches of its own, and slots kept for residency are part of the arena."""
    shape = replace(SHAPE, num_ranks=8, extra_slots=7, batch_size=1024)
    assert shape.num_slots == 10 + 4 + 8 + 7
    assert memory_bound(shape).terms["batches"] == 8 * 5 * (1024 * 8196)


def test_what_fits_passes():
    """A limit of exactly the bound is enough; a byte less is not."""
    bound = memory_bound(SHAPE)
    bound.check(bound.total_bytes)
    with pytest.raises(MemoryBoundError):
        bound.check(bound.total_bytes - 1)


def applied(shape: LoaderShape, name: str, value: int) -> LoaderShape:
    """Change one setting by its name."""
    if name == "shuffle.buffer_rows":
        return replace(shape, window_rows=tuple(min(rows, value) for rows in shape.window_rows))
    return replace(shape, **{name: value})


def test_refusal_names_terms_and_settings_that_fit():
    """Each value the refusal names makes the stream fit, alone, and one more would not."""
    shape = replace(SHAPE, whole_rows=2000)  # units are cut into slices, whatever block_rows is
    bound = memory_bound(shape)
    limit = bound.total_bytes - 40 * MIB
    with pytest.raises(MemoryBoundError) as caught:
        bound.check(limit)
    error = caught.value
    assert (error.needed_bytes, error.limit_bytes, error.terms) == (bound.total_bytes, limit, bound.terms)
    assert all(term in str(error) for term in bound.terms)
    advice = error.advice
    assert advice.startswith("Any one of these")
    named = dict(re.findall(r"([a-z_.]+) = (\d+) \(now", advice))
    assert set(named) == {"block_rows", "threads", "shuffle.buffer_rows"}
    for name, text in named.items():
        assert memory_bound(applied(shape, name, int(text))).total_bytes <= limit
        if name != "threads":
            assert memory_bound(applied(shape, name, int(text) + 1)).total_bytes > limit
    assert f"memory_limit_bytes = {bound.total_bytes}" in advice


def test_refusal_combines_settings_where_none_suffices():
    """Where no setting alone is enough, several are named that together are."""
    bound = memory_bound(SHAPE)
    limit = 214 * MIB
    with pytest.raises(MemoryBoundError) as caught:
        bound.check(limit)
    advice = caught.value.advice
    assert advice.startswith("These together")
    shape = SHAPE
    for name, text in re.findall(r"([a-z_.]+) = (\d+) \(now", advice):
        shape = applied(shape, name, int(text))
    # What is left over is too little for another row in a block, and little altogether.
    assert limit - 2 * MIB < memory_bound(shape).total_bytes <= limit


def test_refusal_is_honest_where_nothing_helps():
    """Where even the smallest settings are too large, the least possible is stated."""
    with pytest.raises(MemoryBoundError, match="No smaller settings"):
        memory_bound(SHAPE).check(50 * MIB)


def test_explain_is_a_table_biggest_first():
    """The table has a line per term, biggest first, and the total last."""
    lines = memory_bound(SHAPE).explain().splitlines()
    # decode 134 MiB, arena 120.1 MiB, processes 113 MiB.
    assert [line.split()[0] for line in lines] == ["decode", "arena", "processes", "batches", "plan", "total"]
    assert "15 slots of 1,024 rows (8.0 MiB)" in lines[1]
    assert "120.1 MiB" in lines[1]
    assert lines[3].split()[1:3] == ["1.3", "MiB"]
    assert lines[4].endswith("20 shards, 1,000 units, 8,192 rows in 2 windows")
    one = memory_bound(replace(SHAPE, window_rows=(512,))).explain()
    assert "512 rows in 1 window\n" in one
    resident = memory_bound(replace(SHAPE, window_rows=(), extra_slots=9)).explain().splitlines()
    assert resident[4].endswith("20 shards, 1,000 units, all of whose rows stay decoded")


@pytest.mark.parametrize(
    ("row_bytes", "unit_rows", "num_windows", "block_rows"),
    [
        (8192, 0, 1, 1024),  # nothing known: 8 MiB
        (8192, 1000, 1, 1000),  # a unit just below the target fits whole
        (8192, 300, 1, 900),  # three whole units
        (8192, 1500, 1, 1500),  # up to 16 MiB fits whole
        (8192, 2048, 1, 2048),
        (8192, 2049, 1, 683),  # above: three equal slices
        (8192, 10_000, 1, 1000),  # ten equal slices
        (10 * MIB, 1, 1, 1),  # a row above the target has a slot of its own
        (10 * MIB, 5, 1, 1),
        (8, 1, 1, 128),  # at most 128 units in a block
        (8, 1 << 20, 1, 1 << 17),  # at most 131 072 rows
        (8, 0, 1, 1 << 17),
        (8192, 10_000, 16, 1000),  # edges of 16 windows: 16 * 16 MiB
        (8192, 0, 64, 256),  # 256 MiB / 128 = 2 MiB
        (8192, 0, 1_000_000, 8),  # not below 64 KiB
        (1 << 40, 0, 1_000_000, 1),  # never under one row
    ],
)
def test_block_rows(row_bytes, unit_rows, num_windows, block_rows):
    """A slot is about 8 MiB, cut to typical units, and smaller where many windows are served."""
    assert choose_block_rows(row_bytes, unit_rows, num_windows, 32) == block_rows


@pytest.mark.parametrize(("batch_size", "block_rows"), [(1, 4096), (4, 16384), (31, 126_976), (33, 131_072)])
def test_block_rows_of_small_batches(batch_size, block_rows):
    """A block has no more than 4 096 batches, which are planned one by one."""
    assert choose_block_rows(8, 0, 1, batch_size) == block_rows


def test_planned_batches_are_counted():
    """The plan's term has 512 bytes for each batch of what is planned ahead, of the stage with the smallest ones."""
    shape = replace(SHAPE, reach_rows=None, buffer_rows=0)
    rows = (shape.threads * shape.lookahead + 2) * shape.block_rows
    of_one = memory_bound(replace(shape, least_batch_size=1)).terms["plan"]
    of_two = memory_bound(replace(shape, least_batch_size=2)).terms["plan"]
    assert of_one - of_two == 512 * rows // 2


@pytest.mark.parametrize(
    ("block_rows", "unit_rows", "fill"),
    [(900, 300, 900), (1000, 300, 900), (683, 2049, 683), (1000, 2001, 667), (1000, 0, 1000), (1000, 1000, 1000)],
)
def test_block_fill(block_rows, unit_rows, fill):
    """Whole units are packed, large ones cut into equal slices."""
    assert block_fill_rows(block_rows, unit_rows) == fill


def test_slots_needed_by_hand():
    """Each window needs the blocks its rows span and one edge more; blocks in flight come on top."""
    assert slots_needed([], 100, 4) == 4
    assert slots_needed([1], 100, 4) == 2 + 4
    assert slots_needed([100, 101], 100, 0) == 2 + 3
    assert slots_needed([100, 101], 100, 0, fill_rows=50) == 3 + 4


@pytest.mark.parametrize("fill", [1, 3, 7, 10])
def test_slots_needed_is_enough_at_any_alignment(fill):
    """Wherever a window starts, its rows touch no more blocks than were counted."""
    for rows in range(1, 40):
        worst = max((start + rows - 1) // fill - start // fill + 1 for start in range(fill))
        assert worst <= slots_needed([rows], fill, 0) <= worst + 1
