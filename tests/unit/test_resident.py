"""Resident sources: all of a source in blocks, and the way to each of its rows from any lane and epoch."""

from __future__ import annotations

import numpy as np
import pytest

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.blocks import BlockPiece, PlannedBlock
from o41td.coordinator.resident import ResidentBlocks, num_resident_blocks, resident_blocks_of
from o41td.order import StageOrder
from source_cases import make_source, records_of_slot, word_of_row


def test_blocks_hold_the_units_in_the_listed_order():
    """Units of 2, 0, 7, 1 rows in blocks of 4: the 2 alone, the 7 as 4 and 3, and the 1 with the 3."""
    blocks = resident_blocks_of(np.array([2, 0, 7, 1]), 4)
    assert blocks == [
        PlannedBlock(0, 2, (BlockPiece(0, 0, 2, 0),)),
        PlannedBlock(2, 6, (BlockPiece(2, 0, 4, 0),)),
        PlannedBlock(6, 10, (BlockPiece(2, 4, 7, 0), BlockPiece(3, 0, 1, 3))),
    ]


@pytest.mark.parametrize("units", [[1], [3, 3, 3], [0, 5, 0], [17, 1, 1, 1, 30], [4, 4]])
def test_count_is_that_of_the_blocks(units):
    """The number of blocks is known without making them."""
    for block_rows in (1, 3, 4, 100):
        rows = np.array(units)
        assert num_resident_blocks(rows, block_rows) == len(resident_blocks_of(rows, block_rows))


@pytest.mark.parametrize("block_rows", [1, 2, 5, 64])
@pytest.mark.parametrize("lanes", [1, 3])
def test_each_row_of_any_epoch_is_found(block_rows, lanes):
    """Two epochs of every lane lead to the records of the order; each block is claimed once and stays claimed."""
    index = make_source([[2, 7], [0, 11], [1]])
    order = StageOrder(
        seed=5,
        stage_index=0,
        unit_rows=[index.unit_rows],
        weights=[1.0],
        batch_size=1,
        buffer_rows=4,
        infinite=True,
        lanes=lanes,
    )
    table = BlockTable(block_rows)
    resident = ResidentBlocks(order, index, block_rows=block_rows, table=table)
    contents = [records_of_slot(table, [index], handle) for handle in resident.handles]
    assert sum(map(len, contents)) == 21
    for lane in range(lanes):
        x = order.open_walk(0, lane).take(2 * order.lane_line(0, lane).rows_per_epoch)
        word, block, slot_row = resident.find(lane, x)
        block, row = block.tolist(), slot_row.tolist()
        unit, unit_row = order.locate(0, lane, x)
        expected = list(
            zip(index.unit_shard[unit].tolist(), (index.unit_first_row[unit] + unit_row).tolist(), strict=True)
        )
        assert [contents[b][r][1:] for b, r in zip(block, row, strict=True)] == expected
        assert word.tolist() == [word_of_row(index.source, shard, row) for shard, row in expected]
    assert all(block.claims == 1 for block in table)
