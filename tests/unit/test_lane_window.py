"""A lane's window: each row's place, and each block closed exactly when its last row came."""

from __future__ import annotations

import pytest

from o41td.coordinator.block_table import BlockTable
from o41td.coordinator.lane_window import LaneWindow
from o41td.coordinator.piece_table import FoundRun
from o41td.order import StageOrder
from source_cases import make_source, records_of_slot, word_of_row

CASES = [
    # shards, block rows, buffer rows, lanes, rows in an epoch of lane 0
    ([[10, 3], [8]], 4, 0, 1),
    ([[10, 3], [8]], 4, 6, 1),
    ([[10, 3], [8]], 1, 6, 1),
    ([[1] * 15, [1] * 15], 2, 25, 1),
    ([[40], [7, 7, 7]], 5, 12, 2),
    ([[5, 0, 6], [0], [9, 1]], 3, 100, 1),
]


def window_and_rest(shards, block_rows, buffer_rows, lanes, count, num_rows):
    """A window opened behind `count` rows, and the x of the rows that come next."""
    index = make_source(shards)
    order = StageOrder(
        seed=1,
        stage_index=0,
        unit_rows=[index.unit_rows],
        weights=[1.0],
        batch_size=1,
        buffer_rows=buffer_rows,
        infinite=True,
        lanes=lanes,
    )
    table = BlockTable(block_rows)
    window = LaneWindow(order, index, lane=0, count=count, block_rows=block_rows, table=table)
    return order, index, table, window, order.open_walk(0, 0, count).take(num_rows)


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize(("shards", "block_rows", "buffer_rows", "lanes"), CASES)
def test_rows_are_found_and_blocks_close_with_their_last_row(shards, block_rows, buffer_rows, lanes, step):
    """From every count on, in the middle of epochs too, each row decodes to its record and blocks close in time."""
    order = window_and_rest(shards, block_rows, buffer_rows, lanes, 0, 0)[0]
    epoch_rows = order.lane_line(0, 0).rows_per_epoch
    for count in range(0, 2 * epoch_rows + 1, 1 if step == 5 else 3):
        order, index, table, window, rest = window_and_rest(
            shards, block_rows, buffer_rows, lanes, count, 2 * epoch_rows
        )
        rest = rest[: len(rest) // step * step]
        came = set(order.open_walk(0, 0, 0).take(count).tolist())
        for start in range(0, len(rest), step):
            x = rest[start : start + step]
            found = window.find(x)
            word, block, slot_row = found.spread() if isinstance(found, FoundRun) else found
            pieces = window.pieces
            assert isinstance(found, FoundRun) == (len(set(block.tolist())) == 1)
            handles = pieces.handles[block].tolist()
            records = [
                records_of_slot(table, [index], handle)[row]
                for handle, row in zip(handles, slot_row.tolist(), strict=True)
            ]
            unit, row = order.locate(0, 0, x)
            expected = list(
                zip(
                    [0] * len(x),
                    index.unit_shard[unit].tolist(),
                    (index.unit_first_row[unit] + row).tolist(),
                    strict=True,
                )
            )
            assert records == expected
            assert word.tolist() == [word_of_row(*coordinate) for coordinate in expected]
            came.update(x.tolist())
            open_before = set(window.handles.tolist())
            closed = {int(pieces.handles[place]) for place in window.close_used_up()}
            assert closed == {handle for handle in open_before if came.issuperset(rows_of(table, handle))}
            assert set(window.handles.tolist()) == open_before - closed


def rows_of(table, handle):
    """The x of all rows of a block."""
    planned = table[handle].planned
    return range(planned.x_start, planned.x_stop)


def test_a_block_whose_rows_all_came_is_not_claimed():
    """Opened where the shuffle has emptied a block that lies above ones with rows left, that block is passed over."""
    passed_over = 0
    for count in range(1, 30):
        order, _, table, window, rest = window_and_rest([[1] * 15, [1] * 15], 1, 25, 1, count, 30 - count)
        window.find(rest)
        came = set(order.open_walk(0, 0, 0).take(count).tolist())
        claimed = {table[handle].planned.x_start for handle in window.handles.tolist()}
        assert claimed == set(range(30)) - came
        assert len(table) == len(claimed)
        passed_over += any(x > min(claimed) for x in came)
    assert passed_over
