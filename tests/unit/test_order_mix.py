"""Integer shares, counts per chunk and the mix of a lane."""

import math
from fractions import Fraction

import numpy as np
import pytest

from o41td.order import CHUNK_ROWS, LaneMix, MixPlan, ShareTable, integer_shares
from o41td.order.shares import MAX_SHARE_TOTAL


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 2], [1, 2]),
        ([10, 20], [1, 2]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([0.1, 0.2], [1, 2]),
        ([0.69, 0.31], [69, 31]),
        ([5.0], [1]),
        ([1e-3, 1.0, 2.0], [1, 1000, 2000]),
        ([1e300, 1e300], [1, 1]),
        ([0.3] * 10, [1] * 10),
    ],
)
def test_equal_ratios_give_equal_shares(weights, shares):
    """Weights whose ratios are small rationals become exactly those ratios."""
    found, total = integer_shares(weights)
    assert found.tolist() == shares
    assert total == sum(shares)


@pytest.mark.parametrize(
    "weights",
    [[math.pi, math.e, 1.0], [1e-12, 1.0], [1e-300, 1e300], [2**0.5] + [1e-15] * 99, [1.1**i for i in range(100)]],
)
def test_other_weights_are_quantised(weights):
    """Irrational ratios become multiples of 2**-30, at least one each, that sum up exactly."""
    shares, total = integer_shares(weights)
    assert total == MAX_SHARE_TOTAL == int(shares.sum())
    assert (shares >= 1).all()
    whole = sum(map(Fraction, weights))
    off = [abs(Fraction(weight) / whole - Fraction(int(a), total)) for weight, a in zip(weights, shares, strict=True)]
    assert max(off) <= Fraction(len(weights), total)


@pytest.mark.parametrize("weights", [[], [0], [1, 0], [-1, 2], [math.nan], [math.inf, 1]])
def test_senseless_weights_are_refused(weights):
    """Weights that are not finite positive numbers are refused."""
    with pytest.raises(ValueError, match="weight"):
        integer_shares(weights)


SHARES = {
    "one": [1],
    "two": [1, 2],
    "large": [3, 5, 7, 11, 13],
    "one tiny": [1, 400, 500],
    "tiny among large": [300, 1, 2, 400, 3, 1],
    "all tiny": [1] * 300,
    "fibonacci": [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 150_000],
    "widest": [1, 2**29, 2**29 - 1],
    "hundred": [3**i % 1009 + 1 for i in range(100)] + [5_000_000],
}


@pytest.mark.parametrize("name", SHARES)
def test_counts_keep_to_the_shares(name):
    """At each chunk's end a large source is less than a row off, a tiny one less than 1.7; no count ever falls."""
    shares = SHARES[name]
    total = sum(shares)
    for first in (0, 10**6 + 7, 2**40 + 12345):
        chunks = np.arange(first, first + 3000, dtype=np.int64)
        counts = ShareTable(np.array(shares, dtype=np.int64)).counts(chunks)
        assert (counts.sum(axis=1) == chunks * CHUNK_ROWS).all()
        assert (np.diff(counts, axis=0) >= 0).all()
        for i in range(0, len(chunks), 7):
            rows = int(chunks[i]) * CHUNK_ROWS
            for source, share in enumerate(shares):
                # exact: |count - rows * share / total| * total in integers
                off = abs(int(counts[i, source]) * total - rows * share)
                assert 10 * off < (10 if share * CHUNK_ROWS >= total else 17) * total


def lane_mix(shares, rows, *, infinite=False):
    """A lane's mix."""
    plan = MixPlan(np.array(shares, dtype=np.int64), np.array(rows, dtype=np.int64), infinite=infinite, tables={})
    return LaneMix(plan, 12345)


def test_chunks_hold_exact_quotas():
    """With shares 1 : 3 each chunk of 256 rows holds 64 and 192, in another order each time."""
    sources = lane_mix([1, 3], [1, 1], infinite=True).rows(0, 2560).reshape(10, 256)
    assert (sources == 0).sum(axis=1).tolist() == [64] * 10
    assert len({row.tobytes() for row in sources}) == 10


def test_finite_mix_by_hand():
    """Shares 1 : 1 of 100 and 300 rows: a short chunk of 100 + 128, then the other source alone."""
    mix = lane_mix([1, 1], [100, 300])
    assert mix.counts_at(228).tolist() == [100, 128]
    assert mix.counts_at(400).tolist() == [100, 300]
    sources = mix.rows(0, 1000)
    assert len(sources) == 400
    assert sources[228:].tolist() == [1] * 172
    first, second = mix.plan.segment(0), mix.plan.segment(1)
    assert (first.num_chunks, first.short.tolist(), first.stop) == (0, [100, 128], 228)
    assert (second.num_chunks, second.short.tolist(), second.stop) == (0, [172], 400)
    assert mix.plan.segment(2) is None


@pytest.mark.parametrize(
    ("shares", "rows"),
    [
        ([1, 1], [512, 512]),
        ([1, 2, 3], [1000, 0, 70]),
        ([1, 700, 800], [3, 5000, 4000]),
        ([1] * 300, [3] * 300),
        ([600, 1, 1, 1, 1], [1, 900, 1, 800, 5]),
        ([5], [777]),
    ],
)
def test_rows_counts_and_positions_agree(shares, rows):
    """counts_at counts what rows shows, any slice of rows is that slice, and position_of finds each row."""
    mix = lane_mix(shares, rows)
    sources = mix.rows(0, sum(rows))
    assert np.bincount(sources, minlength=len(rows)).tolist() == rows
    for t in {*range(0, sum(rows) + 1, 97), sum(rows)}:
        assert mix.counts_at(t).tolist() == np.bincount(sources[:t], minlength=len(rows)).tolist()
        assert mix.rows(t, t + 300).tolist() == sources[t : t + 300].tolist()
    for source, num_rows in enumerate(rows):
        places = np.flatnonzero(sources == source).tolist()
        for count in range(0, num_rows, 1 + num_rows // 20):
            assert mix.position_of(source, count) == places[count]
        assert mix.position_of(source, num_rows) is None


def test_segments_of_a_hundred_sources_equal_a_search_chunk_by_chunk():
    """The number of full chunks of each segment is the first that some source cannot fill."""
    rng = [((i * 7919) % 997) + 1 for i in range(100)]
    shares = np.array([((i * 104729) % 211) + 1 for i in range(100)], dtype=np.int64)
    plan = MixPlan(shares, np.array(rng, dtype=np.int64) * 50, infinite=False, tables={})
    left = np.array(rng, dtype=np.int64) * 50
    index = 0
    while (segment := plan.segment(index)) is not None:
        active = segment.active
        assert active.tolist() == np.flatnonzero(left).tolist()
        table = ShareTable(shares[active])
        k = 0
        while (table.counts(np.array([k + 1]))[0] <= left[active]).all():
            k += 1
        assert segment.num_chunks == k
        left[active] -= table.counts(np.array([k]))[0] + segment.short
        assert (left >= 0).all()
        index += 1
    assert not left.any()
