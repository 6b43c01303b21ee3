"""Byte ranges: which requests bring them, and where column chunks lie."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from o41td.workers.ranges import ByteRange, column_ranges, covered, plan_requests

RANGES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 60)).map(lambda pair: ByteRange(pair[0], sum(pair))), max_size=12
)


def planned(*ranges: tuple[int, int], gap: int = 10, waste: float = 0.5, part: int = 1000) -> list[tuple[int, int]]:
    """The requests for some ranges."""
    made = plan_requests(map(ByteRange._make, ranges), max_gap_bytes=gap, max_waste=waste, part_bytes=part)
    return [tuple(each) for each in made]


def test_near_ranges_are_asked_for_together():
    """Ranges that touch or overlap are one; gaps are closed, the smallest first, as long as waste allows."""
    assert planned((0, 10), (10, 20), (15, 30)) == [(0, 30)]
    assert planned((20, 30), (0, 10)) == [(0, 30)]  # a gap of 10, of 10 that 20 bytes allow
    assert planned((0, 10), (21, 31)) == [(0, 10), (21, 31)]  # a gap of 11
    assert planned((0, 10), (18, 28), (31, 41), waste=0.2) == [(0, 10), (18, 41)]  # 6 may be wasted: 3 are, 8 are not
    assert planned() == []
    assert planned((5, 5)) == []


def test_large_ranges_are_cut_into_equal_parts():
    """No request is for more than a part, and parts differ by a byte at most."""
    assert planned((0, 10), part=4) == [(0, 3), (3, 6), (6, 10)]
    assert planned((7, 11), part=4) == [(7, 11)]


@given(RANGES, st.integers(0, 50), st.floats(0, 1), st.integers(1, 100))
def test_requests_bring_all_and_waste_little(ranges, gap, waste, part):
    """Every byte that is needed is asked for once, in order, and no more than is allowed beside them."""
    requests = plan_requests(ranges, max_gap_bytes=gap, max_waste=waste, part_bytes=part)
    needed = {byte for each in ranges for byte in range(each.start, each.stop)}
    asked = [byte for each in requests for byte in range(each.start, each.stop)]
    assert asked == sorted(set(asked))
    assert needed <= set(asked)
    assert len(asked) <= (1 + waste) * len(needed)
    assert all(0 < each.num_bytes <= part for each in requests)
    assert all(covered(each, requests) for each in ranges)


@given(st.tuples(st.integers(0, 99), st.integers(1, 50)), RANGES)
def test_covered_means_every_byte(wanted, ranges):
    """A range is covered if each of its bytes is in some other."""
    each = ByteRange(wanted[0], sum(wanted))
    bytes_of = {byte for other in ranges for byte in range(other.start, other.stop)}
    assert covered(each, ranges) == (set(range(each.start, each.stop)) <= bytes_of)


def test_column_chunks_with_and_without_dictionaries(tmp_path):
    """The ranges of all columns lie end to end between the magic and the footer, dictionary pages included."""
    table = pa.table({"a": [1, 2, 1, 2] * 50, "b": [0.5] * 200, "c": [[1], [], [2, 3], None] * 50})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=80, use_dictionary=["a"])
    metadata = pq.read_metadata(path)
    ranges = column_ranges(metadata, range(3), [0, 1, 2])
    footer_start = path.stat().st_size - metadata.serialized_size - 8
    assert [each.start for each in ranges] == [4, *(each.stop for each in ranges[:-1])]
    assert ranges[-1].stop == footer_start
    assert column_ranges(metadata, [1], [2, 0]) == [ranges[5], ranges[3]]
