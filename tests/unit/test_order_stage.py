"""StageOrder: golden orders, bounds of arguments, ends, scale. Property tests compare it with a slow model."""

import numpy as np
import pytest

from o41td.order import (
    LaneLine,
    Occurrence,
    SourceLine,
    StageOrder,
    lanes_of_rank,
    rank_batches,
    row_digests,
    total_digest,
)
from o41td.order.hash import absorb, hash_range


def stage(unit_rows, weights=None, **settings):
    """A stage with defaults."""
    settings = {"seed": 1, "stage_index": 0, "batch_size": 4} | settings
    return StageOrder(unit_rows=unit_rows, weights=weights or [1] * len(unit_rows), **settings)


def rows_of(order, batch):
    """A batch as a list of (source, unit, row)."""
    return list(zip(*(column.tolist() for column in order.coordinates(batch)), strict=True))


def digest_of(order, batch):
    """The digest of a batch."""
    source, unit, row = order.coordinates(batch)
    return total_digest(row_digests(batch, np.arange(len(row)), source, unit, row))


# ---- golden orders, worked out by the model of tests/property/test_order_model.py (plain Python integers)


def test_golden_finite_stage():
    """A small shuffled finite mix over two lanes is frozen row by row."""
    order = stage([[2, 0, 3], [4]], [1, 2], seed=7, stage_index=1, buffer_rows=4, lanes=2)
    assert order.num_batches == 2
    assert rows_of(order, 0) == [(0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 0)]
    assert rows_of(order, 1) == [(1, 0, 2), (0, 2, 0), (0, 2, 1), (1, 0, 3)]
    assert (digest_of(order, 0) + digest_of(order, 1)) % 2**64 == 0xE3CC0DFC6CF7862F


def test_golden_infinite_stage():
    """A small infinite mix with fewer rows than lanes, at the largest seed, is frozen row by row."""
    order = stage([[2, 1], [3]], [1, 3], seed=2**64 - 1, batch_size=5, buffer_rows=16, lanes=4, infinite=True)
    assert order.num_batches is None
    assert [rows_of(order, n) for n in range(3)] == [
        [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (1, 0, 2)],
        [(0, 1, 0), (1, 0, 1), (1, 0, 2), (1, 0, 0), (1, 0, 0)],
        [(1, 0, 2), (0, 0, 1), (1, 0, 0), (1, 0, 1), (1, 0, 1)],
    ]
    assert (digest_of(order, 0) + digest_of(order, 1)) % 2**64 == 0xBF0C656225CCE619


# ---- small cases by hand


def test_unshuffled_single_source_is_the_listed_order():
    """Without a shuffle rows come in ascending order, full batches but for the last."""
    order = stage([[3, 0, 4, 1]], batch_size=3)
    rows = [row for n in range(order.num_batches) for row in rows_of(order, n)]
    assert rows == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 2, 0), (0, 2, 1), (0, 2, 2), (0, 2, 3), (0, 3, 0)]
    assert [order.batch_rows(n) for n in range(4)] == [3, 3, 2, 0]


def test_empty_units_do_not_change_the_order():
    """Listing units without rows, wherever, changes nothing but the unit numbers."""
    without = stage([[5, 7, 2]], buffer_rows=8, batch_size=14)
    with_empty = stage([[0, 5, 0, 0, 7, 2, 0]], buffer_rows=8, batch_size=14)
    number = {0: 1, 1: 4, 2: 5}
    assert rows_of(with_empty, 0) == [(0, number[unit], row) for _, unit, row in rows_of(without, 0)]


def test_epochs_come_in_new_orders():
    """A repeating source comes in another order in each epoch, each row once in each."""
    order = stage([[5] * 5], batch_size=25, buffer_rows=100, infinite=True)
    epochs = [rows_of(order, n) for n in range(6)]
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)


def test_seeds_stages_and_lanes_give_different_orders():
    """Another seed, another stage and another lane of a source walked whole give other orders."""
    orders = [
        tuple(rows_of(stage([[1] * 30], batch_size=30, buffer_rows=64, seed=seed, stage_index=index), 0))
        for seed in (0, 1, 2**32 - 1, 2**63, 2**64 - 1)
        for index in (0, 1)
    ]
    assert len(set(orders)) == len(orders)
    whole = stage([[1] * 30], batch_size=30, buffer_rows=64, infinite=True, lanes=31)
    assert len({tuple(rows_of(whole, lane)) for lane in range(31)}) == 31


def test_end_of_a_finite_stage_by_hand():
    """101 rows, two lanes, batches of 10: lanes of 50 and 51 rows, 10 batches, one row of lane 1 left over."""
    order = stage([[101]], batch_size=10, lanes=2)
    assert order.lane_rows.tolist() == [50, 51]
    assert order.num_batches == 10  # lane 0 has no sixth batch
    assert [order.dropped_rows(0, rank, 2) for rank in range(2)] == [0, 1]
    assert [order.dropped_rows(0, rank, 3) for rank in range(3)] == [10, 0, 1]  # batches 9 and 11 of 9 delivered
    dropping = stage([[101]], batch_size=10, lanes=2, drop_last=True)
    assert dropping.num_batches == 10
    assert [dropping.dropped_rows(0, rank, 2) for rank in range(2)] == [0, 1]


def test_batch_larger_than_the_stage_with_drop_last_gives_no_batch():
    """100 rows in batches of 101 with drop_last are no batch, and all 100 rows are dropped."""
    order = stage([[100]], batch_size=101, drop_last=True)
    assert order.num_batches == 0
    assert order.rounds(0, 1) == 0
    assert order.dropped_rows(0, 0, 1) == 100
    assert order.open_lane(0).read_batches(3).num_batches == 0


def test_more_ranks_than_batches():
    """21 rows for 64 ranks: no round, each dropped row on the rank it would have gone to."""
    order = stage([[21]], batch_size=1, lanes=64)
    assert order.num_batches == 0
    assert order.rounds(0, 64) == 0
    assert sum(order.dropped_rows(0, rank, 64) for rank in range(64)) == 21
    assert max(order.dropped_rows(0, rank, 64) for rank in range(64)) == 1


def test_empty_finite_stage():
    """A finite stage without rows has no batches; an infinite one is refused."""
    order = stage([[0, 0], []])
    assert (order.num_batches, order.rows_before(0), order.dropped_rows(0, 0, 1)) == (0, 0, 0)
    assert order.source_rows_before(0).tolist() == [0, 0]
    assert order.open_lane(0).read_batches(1).num_batches == 0
    with pytest.raises(ValueError, match="without rows"):
        stage([[0]], infinite=True)


@pytest.mark.parametrize(
    "bad",
    [
        {"seed": -1},
        {"seed": 2**64},
        {"batch_size": 0},
        {"lanes": 0},
        {"buffer_rows": 2**32},
        {"buffer_rows": -1},
        {"weights": [1, 2]},
        {"weights": [0]},
        {"unit_rows": [[3, -1]]},
        {"unit_rows": [[2**43, 1]]},
    ],
)
def test_arguments_out_of_bounds_are_refused(bad):
    """Each argument outside its bounds is refused."""
    with pytest.raises(ValueError, match=" / "):
        stage(**{"unit_rows": [[3]], "weights": [1], **bad})


def test_batches_and_rows_that_do_not_exist_are_refused():
    """Coordinates past the end and rows that no unit has are refused."""
    order = stage([[4, 0]])
    with pytest.raises(IndexError, match="1 batches"):
        order.coordinates(1)
    with pytest.raises(IndexError):
        order.rows_before(2)
    for unit, row in ((0, 4), (0, -1), (1, 0), (2, 0), (-1, 0)):
        with pytest.raises(ValueError, match=" / "):
            order.find(0, unit, row)


def test_reader_tells_what_it_entered():
    """entered_x bounds every x read, and a source not read yet shows the count at which it would open."""
    order = stage([[20_000], [20_000]], [1, 1], buffer_rows=100, batch_size=256)
    reader = order.open_lane(0, 10)
    assert reader.entered_x.tolist() == [1280, 1280]
    rows = reader.read_batches(4)
    for source in range(2):
        assert rows.x[rows.source == source].max() < reader.entered_x[source]


def test_tiny_sources_repeat_many_times_in_one_take():
    """A source of 3 rows gives each of them once per epoch beside a large one, with a buffer of 4096 rows."""
    order = stage([[1, 2], [10_000]], [1, 1], batch_size=8, buffer_rows=4096, infinite=True)
    rows = order.open_lane(0).read_batches(512)
    x = rows.x[rows.source == 0]
    assert len(x) == 2048
    epochs = x[: 3 * 682].reshape(682, 3)
    assert (np.sort(epochs, axis=1) == np.arange(3 * 682).reshape(682, 3)).all()
    unit, row = order.locate(0, 0, x)
    one_by_one = [order.locate(0, 0, x[i : i + 1]) for i in range(0, 2048, 41)]
    assert [int(u[0]) for u, _ in one_by_one] == unit[::41].tolist()
    assert [int(r[0]) for _, r in one_by_one] == row[::41].tolist()


# ---- lines and ranks


def test_runs_and_locate_of_many_short_epochs_equal_those_of_single_epochs():
    """Working out many epochs at once gives what one epoch at a time gives."""
    line = SourceLine([2, 0, 1, 4], seed=3, stage_index=0, source_index=0, shuffled=True, lanes=2, infinite=True)
    lane = LaneLine(line, 1)
    assert lane.rows_per_epoch == 4
    whole = lane.runs(2, 4 * 500 + 3)
    parts = [lane.runs(max(2, 4 * e), min(4 * e + 4, 4 * 500 + 3)) for e in range(501)]
    for name in ("x_start", "unit", "row_start", "num_rows"):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(whole, name).tolist()
    assert whole.num_rows.sum() == 4 * 500 + 1


@pytest.mark.parametrize(("world_size", "lanes"), [(1, 1), (1, 8), (2, 8), (3, 8), (8, 8), (12, 8), (64, 8)])
def test_lanes_of_rank_are_those_of_its_batches(world_size, lanes):
    """A rank serves exactly the lanes that its batches belong to."""
    for position in (0, 5, 2**33 + 1):
        for rank in range(world_size):
            batches = rank_batches(position, rank, world_size, start_round=0, stop_round=3 * lanes)
            assert lanes_of_rank(position, rank, world_size, lanes) == tuple(sorted({n % lanes for n in batches}))


# ---- scale


def test_shuffle_at_large_positions_equals_a_sort_of_the_neighbourhood():
    """Beyond 10**12 rows a walk opened anywhere equals plain integers' sort of the rows around it."""
    num_rows, buffer_rows, count = 3 * 10**12, 1000, 2 * 10**12 + 12345
    order = stage([[num_rows]], batch_size=64, buffer_rows=buffer_rows, infinite=True)
    for epoch in (0, 5):
        key = order._shuffle_key(0, 0)
        first = count - 2 * buffer_rows
        hashes = hash_range(absorb(key, epoch), first, count + 4 * buffer_rows).tolist()
        keys = [((first + i) << 20) + (((h >> 32) * buffer_rows) >> 12) for i, h in enumerate(hashes)]
        expected = [first + i for i in sorted(range(len(keys)), key=lambda i: (keys[i], i))]
        x = order.open_walk(0, 0, epoch * num_rows + count).take(2 * buffer_rows)
        assert (x - epoch * num_rows).tolist() == expected[2 * buffer_rows : 4 * buffer_rows]


def test_equal_shuffle_keys_leave_by_position():
    """Rows with the same key leave in line order, however they are sorted, and find places them so."""
    num_rows, buffer_rows = 3 << 20, 1000
    order = stage([[num_rows]], batch_size=1, buffer_rows=buffer_rows)
    hashes = hash_range(absorb(order._shuffle_key(0, 0), 0), 0, num_rows)
    keys = (np.arange(num_rows, dtype=np.uint64) << np.uint64(20)) + (
        ((hashes >> np.uint64(32)) * np.uint64(buffer_rows)) >> np.uint64(12)
    )
    expected = np.argsort(keys, kind="stable")
    ties = np.flatnonzero(np.diff(keys[expected]) == 0)
    assert len(ties) > 0  # about one row in a million
    packed, wide = order.open_walk(0, 0), order.open_walk(0, 0)
    wide._is_packed = False
    assert (packed.take(num_rows) == expected).all()
    assert (wide.take(num_rows) == expected).all()
    for place in (*ties.tolist(), *(ties + 1).tolist()):
        assert [o.batch for o in order.find(0, 0, int(expected[place]))] == [place]


def test_a_million_units_of_a_million_million_rows():
    """Opening far into a huge stage agrees with reading up to there, find inverts it, totals are exact."""
    rows = 500_000 + (hash_range(7, 0, 10**6) % np.uint64(10**6 + 1)).astype(np.int64)
    small = [1000] * 1000
    for infinite in (False, True):
        order = stage(
            [rows, small], [10**6, 1], batch_size=32, buffer_rows=4096, infinite=infinite, lanes=8, seed=2**64 - 1
        )
        assert order.lines[0].num_rows == int(rows.sum()) > 9 * 10**11
        n = 5 * 10**9 + 3 if infinite else order.num_batches // 2
        assert n > 2**32
        source, unit, row = order.coordinates(n)
        assert (row < np.where(source == 0, rows[unit], 1000)).all()
        reader = order.open_lane(n % 8, n // 8 - 3)
        reader.read_batches(3)
        again = reader.read_batches(1)
        assert again.source.tolist() == source.tolist()
        got_unit, got_row = order.locate(0, n % 8, again.x[again.source == 0])
        assert got_unit.tolist() == unit[source == 0].tolist()
        assert got_row.tolist() == row[source == 0].tolist()
        epoch = int(again.x[0]) // int(order.source_lane_rows[source[0], n % 8])
        found = order.find(int(source[0]), int(unit[0]), int(row[0]), epochs=epoch + 1)
        assert Occurrence(batch=n, place=0, lane=n % 8, epoch=epoch) in found
        assert order.rows_before(n) == 32 * n
        assert int(order.source_rows_before(n).sum()) == 32 * n
