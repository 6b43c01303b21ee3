"""The order against a slow model: plain Python integers and lists, whole epochs sorted, chunks made one by one."""

import heapq
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from o41td.order import StageOrder, lanes_of_rank, rank_batches, row_digests, total_digest
from o41td.workers.slot_rows import Placement

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
UNIT_ORDER, SHUFFLE, MIX = 1, 2, 3

# ---- the model


def model_mix64(z):
    """The finaliser of splitmix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def model_key(seed, *parts):
    """The key of a stream."""
    key = model_mix64((seed + GOLDEN) & MASK)
    for part in parts:
        key = model_mix64((key * 0xD1342543DE82EF95 + model_mix64((part + GOLDEN) & MASK)) & MASK)
    return key


def model_hash(key, counter):
    """A stream's number at a counter."""
    return model_mix64((key + GOLDEN * (counter + 1)) & MASK)


def model_lane_source(spec, source, lane, epoch):
    """The (unit, row) of one lane, source and epoch in leaving order."""
    units = [unit for unit, rows in enumerate(spec["units"][source]) if rows]
    num_rows = sum(spec["units"][source])
    whole = spec["infinite"] and num_rows < spec["lanes"]
    R = spec["R"]
    if R:
        key = model_key(spec["seed"], UNIT_ORDER, spec["stage"], source, lane + 1 if whole else 0, epoch)
        bits = (len(units) - 1).bit_length()
        units = [units[i] for i in sorted(range(len(units)), key=lambda i: (model_hash(key, i) >> bits, i))]
    line = [(unit, row) for unit in units for row in range(spec["units"][source][unit])]
    if not whole:
        line = line[num_rows * lane // spec["lanes"] : num_rows * (lane + 1) // spec["lanes"]]
    if R:
        key = model_key(spec["seed"], SHUFFLE, spec["stage"], source, lane, epoch)
        key_of = [(p << 20) + (((model_hash(key, p) >> 32) * R) >> 12) for p in range(len(line))]
        line = [line[p] for p in sorted(range(len(line)), key=lambda p: (key_of[p], p))]
    return line


def model_round(value):
    """The nearest integer, halves up."""
    return math.floor(value + Fraction(1, 2))


def model_counts(shares, t):
    """Rows of each source (a dict of integer shares) in the first t rows: tiny sources together first."""
    total = sum(shares.values())
    tiny = [s for s in shares if shares[s] * 256 < total]
    items = ([tiny] if tiny else []) + [[s] for s in shares if s not in tiny]
    counts, edge, before = {}, 0, 0
    for item in items:
        edge += sum(shares[s] for s in item)
        upto = model_round(Fraction(t * edge, total))
        if item is tiny:
            heap = [(shares[s], 0, i, s) for i, s in enumerate(tiny)]
            heapq.heapify(heap)
            made = 0
            while len(heap) > 1:
                left, right = heapq.heappop(heap), heapq.heappop(heap)
                heapq.heappush(heap, (left[0] + right[0], 1, made, (left, right)))
                made += 1
            stack = [(heap[0], upto)]
            while stack:
                (weight, merged, _, what), rows = stack.pop()
                if merged:
                    left, right = what
                    rows_left = model_round(Fraction(rows * left[0], weight))
                    stack += [(left, rows_left), (right, rows - rows_left)]
                else:
                    counts[what] = rows
        else:
            counts[item[0]] = upto - before
        before = upto
    return counts


def model_mix(spec, lane, limit):
    """The sources of the lane's rows (the first ``limit`` if infinite), chunk by chunk."""
    num_rows = [sum(units) for units in spec["units"]]
    lanes = spec["lanes"]
    left = [n if spec["infinite"] and n < lanes else n * (lane + 1) // lanes - n * lane // lanes for n in num_rows]
    key = model_key(spec["seed"], MIX, spec["stage"], lane)
    rows, chunk = [], 0
    active = {s: spec["shares"][s] for s in range(len(left)) if left[s]}
    while active and not (spec["infinite"] and len(rows) >= limit):
        before, after = model_counts(active, 256 * chunk), model_counts(active, 256 * (chunk + 1))
        quota = {s: after[s] - before[s] for s in active}
        assert all(q >= 0 for q in quota.values())
        short = not spec["infinite"] and any(quota[s] > left[s] for s in active)
        give = {s: min(quota[s], left[s]) if short else quota[s] for s in active}
        slots = [s for s in sorted(active) for _ in range(give[s])]
        order = sorted(range(len(slots)), key=lambda i: (model_hash(key, len(rows) + i) >> 8, i))
        rows += [slots[i] for i in order]
        chunk += 1
        if not spec["infinite"]:
            for s, rows_given in give.items():
                left[s] -= rows_given
        if short:
            active = {s: a for s, a in active.items() if left[s]}
            chunk = 0
    return rows[:limit] if spec["infinite"] else rows


def model_lane(spec, lane, limit=700):
    """The (source, unit, row) of the lane's rows."""
    rows, taken = [], {}
    for source in model_mix(spec, lane, limit):
        queue, epoch = taken.get(source, ([], 0))
        while not queue:
            queue, epoch = model_lane_source(spec, source, lane, epoch)[::-1], epoch + 1
        unit, row = queue.pop()
        taken[source] = (queue, epoch)
        rows.append((source, unit, row))
    return rows


def model_batches(spec):
    """The stage's batches: lists of (source, unit, row), up to the first batch that a lane lacks."""
    B, lanes = spec["B"], spec["lanes"]
    of_lane = []
    for lane in range(lanes):
        rows = model_lane(spec, lane)
        parts = [rows[i : i + B] for i in range(0, len(rows), B)]
        if (spec["drop_last"] or spec["infinite"]) and parts and len(parts[-1]) < B:
            parts.pop()
        of_lane.append(parts)
    batches, n = [], 0
    while n // lanes < len(of_lane[n % lanes]):
        batches.append(of_lane[n % lanes][n // lanes])
        n += 1
    return batches


# ---- specs


@st.composite
def specs(draw, infinite=None):
    """Small stages of all kinds."""
    num_sources = draw(st.integers(1, 4))
    big = draw(st.booleans())
    units = [
        draw(st.lists(st.integers(0, 300 if big else 9), min_size=1, max_size=4 if big else 12))
        for _ in range(num_sources)
    ]
    infinite = draw(st.booleans()) if infinite is None else infinite
    if not any(map(sum, units)):
        units[0][0] = 3
    return {
        "units": units,
        "shares": [draw(st.sampled_from([1, 1, 2, 3, 7, 600, 1000])) for _ in range(num_sources)],
        "seed": draw(st.sampled_from([0, 1, 2**32 - 1, 2**63, 2**64 - 1])),
        "stage": draw(st.integers(0, 3)),
        "R": draw(st.sampled_from([0, 1, 2, 5, 16, 64, 5000, 2**22, 2**32 - 1])),
        "B": draw(st.sampled_from([1, 2, 7, 32, 300])),
        "lanes": draw(st.sampled_from([1, 2, 3, 8])),
        "infinite": infinite,
        "drop_last": draw(st.booleans()),
    }


def order_of(spec):
    """The real order of a spec."""
    return StageOrder(
        seed=spec["seed"],
        stage_index=spec["stage"],
        unit_rows=spec["units"],
        weights=spec["shares"],
        batch_size=spec["B"],
        buffer_rows=spec["R"],
        infinite=spec["infinite"],
        drop_last=spec["drop_last"],
        lanes=spec["lanes"],
    )


def rows_of_lane_rows(order, lane, rows):
    """The batches of a LaneRows as lists of (source, unit, row)."""
    found = [None] * rows.num_rows
    for source in set(rows.source.tolist()):
        places = np.flatnonzero(rows.source == source)
        unit, row = order.locate(source, lane, rows.x[places])
        for place, u, r in zip(places.tolist(), unit.tolist(), row.tolist(), strict=True):
            found[place] = (source, u, r)
    return [found[a:b] for a, b in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True)]


def rows_of_batch(order, batch):
    """A batch as a list of (source, unit, row)."""
    return list(zip(*(column.tolist() for column in order.coordinates(batch)), strict=True))


quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

# ---- properties


@quick
@given(specs())
def test_batches_equal_the_model(spec):
    """Every batch, named by number or read lane by lane, holds the model's rows in the model's order."""
    order = order_of(spec)
    expected = model_batches(spec)
    if not spec["infinite"]:
        assert order.num_batches == len(expected)
        assert order.lane_rows.tolist() == [len(model_lane(spec, lane)) for lane in range(spec["lanes"])]
    for n in {0, 1, len(expected) // 3, len(expected) // 2, len(expected) - 1} & set(range(len(expected))):
        assert rows_of_batch(order, n) == expected[n]
        assert order.batch_rows(n) == len(expected[n])
    for lane in range(spec["lanes"]):
        wanted = expected[lane :: spec["lanes"]]
        reader = order.open_lane(lane)
        got = rows_of_lane_rows(order, lane, reader.read_batches(1)) if wanted else []
        while len(got) < len(wanted):
            assert reader.next_batch == len(got)
            got += rows_of_lane_rows(order, lane, reader.read_batches(min(5, len(wanted) - len(got))))
        assert got == wanted


@quick
@given(specs(), st.data())
def test_opening_anywhere_equals_the_rest(spec, data):
    """A lane opened at any batch reads exactly what a lane read from its start reads from there on."""
    order = order_of(spec)
    lane = data.draw(st.integers(0, spec["lanes"] - 1))
    whole = order.open_lane(lane).read_batches(40)
    at = data.draw(st.integers(0, whole.num_batches))
    rest = order.open_lane(lane, at).read_batches(40 - at)
    start = int(whole.offsets[at])
    assert rest.first_batch == at
    assert rest.source.tolist() == whole.source[start:].tolist()
    assert rest.x.tolist() == whole.x[start:].tolist()
    assert (rest.offsets + start).tolist() == whole.offsets[at:].tolist()


@quick
@given(specs(infinite=False))
def test_each_row_once_and_totals_exact(spec):
    """The lanes of a finite stage hold each row once, and rows_before and source_rows_before count them."""
    order = order_of(spec | {"drop_last": False})
    seen = [row for lane in range(spec["lanes"]) for row in lane_rows(order, lane)]
    rows = [(s, u, r) for s, units in enumerate(spec["units"]) for u, n in enumerate(units) for r in range(n)]
    assert sorted(seen) == rows
    assert order.total_rows == len(rows)
    before, by_source = 0, np.zeros(len(spec["units"]), dtype=np.int64)
    for n in range(order.num_batches):
        if n < 4 or n % 17 == 0:
            assert order.rows_before(n) == before
            assert order.source_rows_before(n).tolist() == by_source.tolist()
        before += order.batch_rows(n)
        sources = order.open_lane(n % order.lanes, n // order.lanes, fill_rows=1).read_batches(1).source
        by_source += np.bincount(sources, minlength=len(by_source))
        if n > 60:
            break
    else:
        assert order.rows_before(order.num_batches) == before


def lane_rows(order, lane):
    """All rows of a lane."""
    reader = order.open_lane(lane)
    rows = reader.read_batches(10**6)
    assert reader.read_batches(1).num_batches == 0
    return [row for batch in rows_of_lane_rows(order, lane, rows) for row in batch]


@quick
@given(specs(infinite=False), st.data())
def test_dropped_rows_and_delivered_rows_add_up(spec, data):
    """Over ranks, rows before the position, delivered since and dropped are all rows; each is charged to its rank."""
    order = order_of(spec)
    M, B, L = order.num_batches, spec["B"], spec["lanes"]
    W = data.draw(st.sampled_from([1, 2, 3, 5, 64]))
    position = data.draw(st.integers(0, M))
    end = position + order.rounds(position, W) * W
    dropped = [order.dropped_rows(position, rank, W) for rank in range(W)]
    assert order.rounds(position, W) == (M - position) // W
    assert order.rows_before(end) + sum(dropped) == order.total_rows
    charged = [0] * W
    for lane in range(L):
        rows = int(order.lane_rows[lane])
        for j in range(-(-rows // B)):
            n = j * L + lane
            if n >= end:
                charged[(n - position) % W] += min(B, rows - j * B)
    assert dropped == charged


@quick
@given(specs(infinite=False), st.data())
def test_any_world_size_takes_the_same_batches(spec, data):
    """For 1, 2, 3 and 5 ranks the union of what they take is the one global order, and digests add up to its digest."""
    order = order_of(spec)
    position = data.draw(st.integers(0, order.num_batches))
    digests = {n: batch_digest(order, n) for n in range(position, min(position + 12, order.num_batches))}
    for W in (1, 2, 3, 5):
        rounds = min(order.rounds(position, W), len(digests) // W)
        taken = {}
        for rank in range(W):
            batches = rank_batches(position, rank, W, start_round=0, stop_round=rounds)
            assert len(batches) == rounds
            assert {n % order.lanes for n in batches} <= set(lanes_of_rank(position, rank, W, order.lanes))
            taken[rank] = list(batches)
        assert sorted(n for batches in taken.values() for n in batches) == list(range(position, position + rounds * W))
        total = sum(sum(digests[n] for n in batches) & MASK for batches in taken.values()) & MASK
        assert total == sum(digests[n] for n in range(position, position + rounds * W)) & MASK


def batch_digest(order, n):
    """The digest of a whole batch."""
    source, unit, row = order.coordinates(n)
    return total_digest(row_digests(np.full(len(row), n), np.arange(len(row)), source, unit, row))


@quick
@given(specs(), st.data())
def test_find_inverts_coordinates(spec, data):
    """Where find says a row comes, coordinates shows it; and it comes as often as it should."""
    order = order_of(spec)
    source = data.draw(st.sampled_from([s for s, units in enumerate(spec["units"]) if sum(units)]))
    unit = data.draw(st.sampled_from([u for u, rows in enumerate(spec["units"][source]) if rows]))
    row = data.draw(st.integers(0, spec["units"][source][unit] - 1))
    found = order.find(source, unit, row, epochs=3)
    for occurrence in found:
        assert occurrence.batch % spec["lanes"] == occurrence.lane
        assert rows_of_batch(order, occurrence.batch)[occurrence.place] == (source, unit, row)
    if spec["infinite"]:
        whole = sum(spec["units"][source]) < spec["lanes"]
        assert len({(o.batch, o.place) for o in found}) == len(found) == 3 * (spec["lanes"] if whole else 1)
        assert sorted(o.epoch for o in found) == sorted([0, 1, 2] * (spec["lanes"] if whole else 1))
    else:
        batches = [rows_of_batch(order, n) for n in range(min(order.num_batches, 400))]
        comes = [(n, i) for n, rows in enumerate(batches) for i, r in enumerate(rows) if r == (source, unit, row)]
        assert [(o.batch, o.place) for o in found if o.batch < 400] == comes


@quick
@given(specs(), st.data())
def test_line_runs_cover_a_range_of_x(spec, data):
    """line_runs lists the same rows as locate, in line order, over any range and across epochs."""
    order = order_of(spec)
    lane = data.draw(st.integers(0, spec["lanes"] - 1))
    sources = np.flatnonzero(order.source_lane_rows[:, lane]).tolist()
    if not sources:
        return
    source = data.draw(st.sampled_from(sources))
    n = int(order.source_lane_rows[source, lane])
    limit = 7 * n if spec["infinite"] else n
    start = data.draw(st.integers(0, limit))
    stop = data.draw(st.integers(start, limit))
    runs = order.line_runs(source, lane, start, stop)
    assert len(runs) == len(runs.unit)
    assert (runs.num_rows > 0).all()
    unit = np.repeat(runs.unit, runs.num_rows)
    within = np.arange(stop - start) - np.repeat(runs.x_start - start, runs.num_rows)
    got_unit, got_row = order.locate(source, lane, np.arange(start, stop))
    assert unit.tolist() == got_unit.tolist()
    assert (np.repeat(runs.row_start, runs.num_rows) + within).tolist() == got_row.tolist()


@pytest.mark.parametrize("buffer_rows", [2, 100, 4096, 9000, 3 << 20])
@pytest.mark.parametrize("num_rows", [5, 4096, 4097, 50_000])
def test_walk_equals_a_full_sort_from_any_count(buffer_rows, num_rows):
    """From any count on a walk is the full sort by (key, p); no row moves by R; entered_x bounds what was taken."""
    order = StageOrder(
        seed=9, stage_index=0, unit_rows=[[num_rows]], weights=[1], batch_size=8, buffer_rows=buffer_rows, infinite=True
    )
    expected = []
    for epoch in range(2):
        key = model_key(9, SHUFFLE, 0, 0, 0, epoch)
        keys = [(p << 20) + (((model_hash(key, p) >> 32) * buffer_rows) >> 12) for p in range(num_rows)]
        expected += [epoch * num_rows + p for p in sorted(range(num_rows), key=lambda p: (keys[p], p))]
    assert max(abs(x - place) for place, x in enumerate(expected)) < buffer_rows
    for count in sorted(
        {0, 1, num_rows // 3, num_rows // 2 + 17, num_rows - 1, num_rows, num_rows + 3} & set(range(2 * num_rows))
    ):
        walk = order.open_walk(0, 0, count)
        taken = 0
        for wanted in (1, 100, 5000, 2 * num_rows):
            step = min(wanted, 2 * num_rows - count - taken)
            x = walk.take(step).tolist()
            assert x == expected[count + taken : count + taken + step]
            assert all(value < walk.entered_x for value in x)
            taken += step


@pytest.mark.parametrize("buffer_rows", [2, 7, 4096, (1 << 32) - 1])
def test_a_stretch_leaves_in_the_order_of_its_keys(buffer_rows):
    """From any position on, a stretch's rows by themselves leave in the order in which the whole epoch lets them go."""
    order = StageOrder(
        seed=9, stage_index=0, unit_rows=[[300]], weights=[1], batch_size=8, buffer_rows=buffer_rows, infinite=True
    )
    for epoch, first, num_rows in [(0, 0, 300), (0, 17, 1), (1, 0, 5), (1, 100, 200), (2, 250, 50)]:
        key = model_key(9, SHUFFLE, 0, 0, 0, epoch)
        stretch = range(first, first + num_rows)
        expected = sorted(stretch, key=lambda p: ((p << 20) + (((model_hash(key, p) >> 32) * buffer_rows) >> 12), p))
        leaving = order.leaving_order(0, 0, epoch * 300 + first)
        assert leaving.rows(num_rows).tolist() == [p - first for p in expected]
        places = Placement(order=leaving.rows(num_rows)).places
        assert [expected[place] for place in places.tolist()] == list(stretch)


def test_without_a_shuffle_rows_keep_the_order_of_the_line():
    """No buffer, or one of a single row, means no other order."""
    for buffer_rows in (0, 1):
        order = StageOrder(seed=9, stage_index=0, unit_rows=[[30]], weights=[1], batch_size=8, buffer_rows=buffer_rows)
        assert order.leaving_order(0, 0, 4) is None
