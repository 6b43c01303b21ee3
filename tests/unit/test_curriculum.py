"""A stage's mix over time, against the order walked row by row."""

from __future__ import annotations

import numpy as np
import pytest

from o41td.curriculum import epoch_batches, last_batch_of, mix_error_rows, shares_over, source_progress
from o41td.order import StageOrder


def order_of(*rows: int, weights: tuple[float, ...], batch_size: int = 8, lanes: int = 1, **keys) -> StageOrder:
    """A stage of sources with so many rows, each in units of 10."""
    units = [[10] * (count // 10) + [count % 10] for count in rows]
    return StageOrder(
        seed=5, stage_index=0, unit_rows=units, weights=weights, batch_size=batch_size, lanes=lanes, **keys
    )


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_source_ends_with_the_batch_that_has_its_last_row(lanes):
    """Walked batch by batch: the last in which the source comes."""
    order = order_of(700, 2000, 3, weights=(3.0, 1.0, 1.0), lanes=lanes, buffer_rows=20)
    last = dict.fromkeys(range(3), 0)
    for batch in range(order.num_batches):
        for source in set(order.coordinates(batch)[0].tolist()):
            last[source] = batch
    assert [last_batch_of(order, source) for source in range(2)] == [last[0], last[1]]
    assert last_batch_of(order_of(9, weights=(1.0,), infinite=True), 0) is None


def test_epochs_of_an_endless_stage_are_rows_over_share():
    """Of 8 rows a batch one source gives 6 and the other 2: 700 rows last 116.7 batches, 2000 rows 1000."""
    order = order_of(700, 2000, weights=(3.0, 1.0), infinite=True)
    assert epoch_batches(order, 0) == pytest.approx(700 / 6)
    assert epoch_batches(order, 1) == pytest.approx(1000)
    assert epoch_batches(order_of(700, weights=(1.0,)), 0) is None
    whole = order_of(2, 90, weights=(1.0, 1.0), lanes=3, infinite=True)  # each of 3 lanes walks all of the first
    assert epoch_batches(whole, 0) == pytest.approx(6 / 4)


def test_the_mix_error_is_within_a_chunk_and_nothing_for_one_source():
    """At the ends of batches of 256 rows, the mix's own unit, each source is within a row of its share."""
    assert mix_error_rows(order_of(5000, 9000, weights=(0.3, 0.7), batch_size=256, infinite=True)) <= 1
    assert 0 < mix_error_rows(order_of(5000, 9000, weights=(0.3, 0.7))) < 128
    assert mix_error_rows(order_of(500, weights=(2.0,))) == 0


def test_progress_is_what_the_batches_before_gave():
    """Epoch and part of it, by counting the sources of all rows before a position."""
    order = order_of(40, 100, weights=(1.0, 1.0), infinite=True)
    taken = np.zeros(2, np.int64)
    for batch in range(40):
        expected = [(count // rows, count % rows / rows) for count, rows in zip(taken.tolist(), (40, 100), strict=True)]
        assert source_progress(order, batch) == [(epoch, pytest.approx(part)) for epoch, part in expected]
        taken += np.bincount(order.coordinates(batch)[0], minlength=2)
    finite = order_of(40, 41, weights=(1.0, 1.0))
    assert source_progress(finite, finite.num_batches) == [(0, 1.0), (0, 1.0)]


def test_shares_over_time_follow_the_weights_until_a_source_runs_out():
    """3 : 1 while both last, then all of the one that is left; the parts of every stretch add up to 1."""
    order = order_of(768 * 4, 1024 * 4, weights=(3.0, 1.0))
    over = shares_over(order, order.num_batches)
    assert over.edges[0] == 0
    assert over.edges[-1] == order.num_batches
    assert over.shares.sum(axis=1) == pytest.approx(1)
    # 3072 rows at 3 of 4 are gone after 4096 rows, batch 512; the share changes at no other edge.
    first = over.shares[over.edges[1:] <= 512]
    assert first == pytest.approx(np.tile([0.75, 0.25], (len(first), 1)), abs=0.005)
    rest = over.shares[over.edges[:-1] >= 512]
    assert rest == pytest.approx(np.tile([0.0, 1.0], (len(rest), 1)))
