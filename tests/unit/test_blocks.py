"""Blocks of a lane's line: complete, small enough, aligned, and the same from wherever one starts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from o41td.coordinator.blocks import GROUP_BLOCKS, BlockPiece, LaneBlocks, PlannedBlock, slice_rows_of
from o41td.order import StageOrder

CASES = [
    # unit rows, block rows, lanes, shuffled
    ([10], 4, 1, False),
    ([3, 4, 1, 9, 2, 2, 2], 4, 1, True),
    ([5, 0, 7, 0, 0, 1], 3, 2, False),
    ([1] * 40, 3, 3, True),
    ([400, 3, 250, 1, 1, 90], 2, 1, True),  # several groups an epoch
    ([130, 131, 7, 64, 65, 66], 1, 2, False),
    ([129, 5, 129, 5, 129, 5, 129, 5], 2, 1, True),
    ([7, 5, 11, 2] * 30, 6, 1, True),
]


def line_of(unit_rows, lanes=1, lane=0, shuffled=False):
    """One lane of a source whose units have these rows."""
    order = StageOrder(
        seed=3,
        stage_index=0,
        unit_rows=[unit_rows],
        weights=[1.0],
        batch_size=1,
        buffer_rows=8 if shuffled else 0,
        infinite=True,
        lanes=lanes,
    )
    return order.lane_line(0, lane)


def blocks_between(line, unit_rows, block_rows, x_start, x_stop):
    """The blocks from the one that holds `x_start` to the one that reaches `x_stop`."""
    blocks = LaneBlocks(line, np.array(unit_rows, np.int64), block_rows=block_rows, x_start=x_start)
    found = [blocks.next_block()]
    while found[-1].x_stop < x_stop:
        found.append(blocks.next_block())
    return found


@pytest.mark.parametrize(("unit_rows", "block_rows", "lanes", "shuffled"), CASES)
def test_blocks_cover_each_lane_line_once(unit_rows, block_rows, lanes, shuffled):
    """Over three epochs blocks follow each other without gap or overlap, and hold just the rows of the line."""
    for lane in range(lanes):
        line = line_of(unit_rows, lanes, lane, shuffled)
        stop = 3 * line.rows_per_epoch
        x = 0
        for block in blocks_between(line, unit_rows, block_rows, 0, stop):
            assert block.x_start == x
            assert 1 <= block.num_rows <= block_rows
            assert block.x_start // line.rows_per_epoch == (block.x_stop - 1) // line.rows_per_epoch
            unit, row = line.locate(np.arange(block.x_start, block.x_stop))
            rows = [(piece.unit, row) for piece in block.pieces for row in range(piece.row_start, piece.row_stop)]
            assert rows == list(zip(unit.tolist(), row.tolist(), strict=True))
            starts = np.cumsum([0] + [piece.row_stop - piece.row_start for piece in block.pieces]).tolist()
            assert [piece.block_row for piece in block.pieces] == starts[:-1]
            x = block.x_stop
        assert x == stop


@pytest.mark.parametrize(("unit_rows", "block_rows", "lanes", "shuffled"), CASES)
def test_blocks_do_not_depend_on_where_one_starts(unit_rows, block_rows, lanes, shuffled):
    """Whatever row one starts at, the blocks from the one that holds it on are those of the whole line."""
    for lane in range(lanes):
        line = line_of(unit_rows, lanes, lane, shuffled)
        stop = 2 * line.rows_per_epoch
        whole = blocks_between(line, unit_rows, block_rows, 0, stop)
        for x_start in range(0, stop, 1 if stop < 200 else 7):
            expected = [block for block in whole if block.x_stop > x_start]
            assert blocks_between(line, unit_rows, block_rows, x_start, x_start + 1)[:1] == expected[:1]
        for x_start in (stop // 3, stop - 1):
            expected = [block for block in whole if block.x_stop > x_start]
            assert blocks_between(line, unit_rows, block_rows, x_start, stop) == expected


@pytest.mark.parametrize(("unit_rows", "block_rows", "lanes", "shuffled"), CASES)
def test_large_units_come_in_aligned_slices(unit_rows, block_rows, lanes, shuffled):
    """A piece of a unit larger than a block lies within one slice, and is all of it but at a lane's edges."""
    rows_of = np.array(unit_rows)
    slices = slice_rows_of(rows_of, block_rows)
    cut_short = 0
    for lane in range(lanes):
        line = line_of(unit_rows, lanes, lane, shuffled)
        for block in blocks_between(line, unit_rows, block_rows, 0, line.rows_per_epoch):
            for piece in block.pieces:
                size = int(slices[piece.unit])
                first = piece.row_start // size
                assert (piece.row_stop - 1) // size == first
                whole = (first * size, min((first + 1) * size, unit_rows[piece.unit]))
                cut_short += (piece.row_start, piece.row_stop) != whole
    assert cut_short <= 2 * lanes


@pytest.mark.parametrize(("unit_rows", "block_rows", "lanes", "shuffled"), CASES)
def test_two_neighbours_hold_more_than_one_block(unit_rows, block_rows, lanes, shuffled):
    """Neighbours of one group together exceed `block_rows`: what sizing counts on."""
    line = line_of(unit_rows, lanes, 0, shuffled)
    blocks = blocks_between(line, unit_rows, block_rows, 0, line.rows_per_epoch)
    for before, after in pairwise(blocks):
        groups = {block.x_start // (GROUP_BLOCKS * block_rows) for block in (before, after)}
        assert len(groups) == 2 or before.num_rows + after.num_rows > block_rows


def test_packing_of_a_listed_line():
    """Units of 2, 3, 9, 1 rows in blocks of 4: [2], [3], then thirds of the 9, the last with the 1."""
    line = line_of([2, 3, 9, 1])
    assert blocks_between(line, [2, 3, 9, 1], 4, 0, 15) == [
        PlannedBlock(0, 2, (BlockPiece(0, 0, 2, 0),)),
        PlannedBlock(2, 5, (BlockPiece(1, 0, 3, 0),)),
        PlannedBlock(5, 8, (BlockPiece(2, 0, 3, 0),)),
        PlannedBlock(8, 11, (BlockPiece(2, 3, 6, 0),)),
        PlannedBlock(11, 15, (BlockPiece(2, 6, 9, 0), BlockPiece(3, 0, 1, 3))),
    ]


def test_slices_are_the_fewest_equal_ones():
    """10 rows in blocks of 4 are slices of 4 (three of them); 9 are thirds; 8 are halves; 4 and less stay whole."""
    assert slice_rows_of(np.array([10, 9, 8, 5, 4, 1, 0]), 4).tolist() == [4, 3, 4, 3, 4, 1, 0]


def test_a_far_position_costs_one_group():
    """In a lane of 10^12 rows the block at any row is found at once."""
    units = np.full(100_000, 10_000_000, np.int64)
    line = line_of(units, shuffled=True)
    blocks = LaneBlocks(line, units, block_rows=1024, x_start=777_777_777_777)
    block = blocks.next_block()
    assert block.x_start <= 777_777_777_777 < block.x_stop
    assert blocks.next_block().x_start == block.x_stop
