"""Lists decoded without their levels: what Arrow's reader gives of the same row group, or Arrow's own failure."""

from __future__ import annotations

import io
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from o41td.workers import flat_chunk, flat_lists
from o41td.workers.flat_chunk import FLAT_TYPES
from o41td.workers.flat_lists import FlatLists
from o41td.workers.list_levels import are_all, list_starts

VALUE_TYPES = sorted(FLAT_TYPES, key=str)
NOTHING = st.just("none")
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch):
    monkeypatch.setattr(flat_lists, "_FEWEST_VALUES", 1)
    monkeypatch.setattr(flat_lists, "_SHORTEST", 1)
    monkeypatch.setattr(flat_chunk, "_FEWEST_PAGE_VALUES", 0)


def values_of(rng, kind, count):
    """So many values: some few again and again, or any."""
    if pa.types.is_boolean(kind):
        return pa.array(rng.random(count) < 0.7)
    dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind == "f":
        return pa.array(rng.standard_normal(count).astype(dtype))
    limits = np.iinfo(dtype)
    if rng.random() < 0.5:
        return pa.array(rng.integers(0, 50, count).astype(dtype))
    return pa.array(rng.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True))


@st.composite
def list_arrays(draw, num_rows, *, holes=NOTHING):
    """A column of lists of one level, of any kind, and whether all of it is there."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    kind, hole = draw(st.sampled_from(VALUE_TYPES)), draw(holes)
    form = draw(st.sampled_from(["list", "large_list", "fixed_size_list"]))
    longest = draw(st.sampled_from([1, 2, 8, 9, 100, 600]))
    if form == "fixed_size_list":
        values = values_of(rng, kind, num_rows * longest)
        return pa.FixedSizeListArray.from_arrays(values, longest), hole
    lengths = rng.integers(1, longest, num_rows, endpoint=True)
    if hole == "empty":
        lengths[rng.integers(0, num_rows)] = 0
    values = values_of(rng, kind, int(lengths.sum()))
    if hole == "null value" and len(values):
        values = pa.array(values.to_numpy(zero_copy_only=False), kind, mask=np.arange(len(values)) == 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if form == "large_list":
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values), hole
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values), hole


@st.composite
def files(draw, holes=NOTHING):
    """A file of one to three columns of lists among others, written in some way; and which lack nothing."""
    num_rows = draw(st.integers(1, 300))
    columns, whole = {}, {}
    others = {
        "id": pa.array(np.arange(num_rows)),
        "text": pa.array([None if row % 7 == 0 else f"row {row}" for row in range(num_rows)]),
        "of": pa.array([{"a": row, "b": [row] * (row % 3)} for row in range(num_rows)]),
        "deep": pa.array([[[row], [row, row]] for row in range(num_rows)]),
    }
    for place in range(draw(st.integers(1, 3))):
        before = draw(st.sampled_from([None, *others]))
        if before is not None and before not in columns:
            columns[before] = others[before]
        array, hole = draw(list_arrays(num_rows, holes=holes))
        columns[f"x{place}"], whole[f"x{place}"] = array, hole == "none"
    codec, version = draw(st.sampled_from(CODECS)), draw(st.sampled_from(["1.0", "2.0"]))
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        sink,
        compression=codec,
        data_page_version=version,
        use_dictionary=draw(st.booleans()),
        data_page_size=draw(st.sampled_from([100, 5000, 1 << 20])),
        write_page_checksum=draw(st.booleans()),
        store_schema=draw(st.booleans()),
        row_group_size=draw(st.sampled_from([1000, 100])),
    )
    return sink.getvalue(), whole if codec != "lz4" else dict.fromkeys(whole, False)


def read_both(data, row_group):
    """The row group as Arrow reads it, without levels, and which columns that was."""
    file = pa.BufferReader(data)
    parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    leaves = range(parquet.metadata.num_columns)
    reading = FlatLists(parquet.metadata, parquet.schema_arrow, leaves)
    plainly = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    expected = plainly.reader.read_row_groups([row_group], column_indices=list(leaves), use_threads=False)
    found = reading.read(file, row_group, parquet)
    return expected, found, {field.name for field in reading._fields.values()}


@given(files())
@settings(max_examples=150, deadline=None)
def test_the_table_is_arrow_s(file):
    """Every kind of list, value, codec, page and encoding, whole row groups and cut ones: the same table and schema."""
    data, whole = file
    for row_group in range(pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups):
        expected, found, flat = read_both(data, row_group)
        found.validate(full=True)
        assert found.schema.equals(expected.schema)
        assert found.equals(expected)
        assert flat >= {name for name, is_whole in whole.items() if is_whole}


@given(files(holes=st.sampled_from(["none", "empty", "null value"])))
@settings(max_examples=80, deadline=None)
def test_columns_that_lack_something_are_read_with_their_levels(file):
    """Empty lists and nulls of some columns are there, and the others are read without levels all the same."""
    data, whole = file
    row_groups = pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups
    for row_group in range(row_groups):
        expected, found, flat = read_both(data, row_group)
        assert found.equals(expected)
        assert flat >= {name for name, is_whole in whole.items() if is_whole}
        if row_groups == 1:
            assert not flat & {
                name
                for name in whole
                if any(row is None or not row or None in row for row in expected[name].to_pylist())
            }


@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT", "PLAIN"])
def test_any_encoding_of_values_is_arrow_s_to_decode(encoding):
    """Values in encodings that are chosen by hand come as they are."""
    values = pa.array(np.random.default_rng(0).integers(0, 1000, 40_000, dtype=np.int32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 400)})
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, column_encoding={"x.list.element": encoding})
    expected, found, flat = read_both(sink.getvalue(), 0)
    assert flat == {"x"}
    assert found.equals(expected)
    assert found["x"].combine_chunks().flatten().equals(values)


@given(files(), st.data())
@settings(max_examples=200, deadline=None)
def test_damage_is_no_other_value(file, data):
    """Of pages with some bytes changed, what is read is what Arrow reads where it reads them."""
    content, whole = file
    metadata = pq.ParquetFile(pa.BufferReader(content)).metadata
    chunks = [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]
    end = max(
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        + chunk.total_compressed_size
        for chunk in chunks
    )
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(4, end - 1))] = data.draw(st.integers(0, 255))
    parquet, plainly = (
        pq.ParquetFile(pa.BufferReader(damaged), metadata=metadata, page_checksum_verification=True) for _ in range(2)
    )
    leaves = list(range(metadata.num_columns))
    try:
        expected = plainly.reader.read_row_groups([0], column_indices=leaves, use_threads=False)
    except (OSError, pa.ArrowException):
        return
    found = FlatLists(metadata, parquet.schema_arrow, leaves).read(pa.BufferReader(damaged), 0, parquet)
    for name in whole:
        assert repr(found[name].to_pylist()) == repr(expected[name].to_pylist())  # in which NaN is NaN


def varint(value):
    """An integer as the runs' headers have it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@st.composite
def levels(draw):
    """Levels of one bit and one way to write them as runs."""
    bits, out = [], b""
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):
            count, bit = draw(st.sampled_from([1, 7, 8, 63, 64, 8191, 8192, 20_000])), draw(st.integers(0, 1))
            bits += [bit] * count
            out += varint(count << 1) + bytes([bit])
        else:
            groups = draw(st.lists(st.integers(0, 255), min_size=1, max_size=70))
            bits += [group >> place & 1 for group in groups for place in range(8)]
            out += varint(len(groups) << 1 | 1) + bytes(groups)
    return bits[: len(bits) - draw(st.integers(0, 7))] or bits, out


@given(levels())
def test_lists_begin_where_levels_are_0(case):
    """Runs and groups of any length, with a last group that is filled up."""
    bits, written = case
    assert list_starts(memoryview(written), len(bits)).tolist() == [place for place, bit in enumerate(bits) if not bit]


def test_lists_of_one_length_and_those_behind():
    """Lists alike are told at once; a list cut by the page's end and others behind them are found all the same."""
    alike = b"\x03\xfe" + varint(16 << 1) + b"\x01"
    other = b"\x03\xfe" + varint(8 << 1) + b"\x01"
    for written, lengths in (
        (alike * 5, [24] * 5),
        (alike * 5, [24] * 4 + [10]),
        (alike * 3 + other + alike, [24, 24, 24, 16, 24]),
        (other + alike * 3, [16, 24, 24, 24]),
        (alike + b"\x00\x00", [24]),
    ):
        found = list_starts(memoryview(written), sum(lengths))
        assert found.tolist() == [sum(lengths[:place]) for place in range(len(lengths))]
    with pytest.raises(ValueError):
        list_starts(memoryview(alike * 2 + b"\x03\xfe\x00\x01"), 72)


@pytest.mark.parametrize("few", [b"\x03\xfe\x10\x01", b"\xfe\xff\xff\xff\x0f\x00"])
def test_a_few_bytes_ask_for_no_memory(few):
    """Levels that claim two thousand million lists are refused for the price of a look."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            list_starts(memoryview(few), (1 << 31) - 1)
        _now, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@given(levels(), st.data())
def test_levels_that_end_early_are_refused(case, data):
    """Cut anywhere, they are not those of so many values."""
    bits, written = case
    written = written[: data.draw(st.integers(0, len(written) - 1))]
    try:
        starts = list_starts(memoryview(written), len(bits))
    except ValueError:
        return
    assert starts.tolist() == [place for place, bit in enumerate(bits) if not bit]  # what was cut told of nothing more


def test_definition_levels_are_all_there_or_not():
    """Runs of the one level are, another level, packed groups and runs of nothing are not."""
    assert are_all(memoryview(varint(500 << 1) + b"\x03" + varint(4 << 1) + b"\x03"), 504, 3)
    assert not are_all(memoryview(varint(500 << 1) + b"\x03" + varint(4 << 1) + b"\x02"), 504, 3)
    assert not are_all(memoryview(b"\x03\xff\xff"), 8, 3)
    for short in (b"", varint(500 << 1) + b"\x03", b"\x00\x03", b"\xff\xff\xff\xff\xff\xff\x03"):
        with pytest.raises(ValueError):
            are_all(memoryview(short), 504, 3)


def test_a_footer_that_promises_too_much_is_arrow_s_to_refuse():
    """A chunk that the footer lets end behind the file, or begin before it, is read as ever, and told as ever."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([[1, 2, 3]] * 100)}), sink, compression="none", use_dictionary=False)
    content = bytearray(sink.getvalue())
    (size,) = struct.unpack("<I", content[-8:-4])
    body = len(content) - 8 - size
    cut = bytes(content[: body // 2]) + bytes(content[body:])
    with pytest.raises((OSError, pa.ArrowException)):
        read_both(cut, 0)


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_damaged_footer_is_no_other_value(at):
    """With a byte of the footer changed, what Arrow reads is read, and what it refuses is refused by it."""
    sink = io.BytesIO()
    values = pa.array(np.arange(2000, dtype=np.int32))
    pq.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 20)}), sink, store_schema=False)
    content = bytearray(sink.getvalue())
    (size,) = struct.unpack("<I", content[-8:-4])
    content[len(content) - 8 - size + at % size] ^= 0x55
    try:
        plainly, parquet = (pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) for _ in range(2))
        expected = plainly.reader.read_row_groups([0], column_indices=[0], use_threads=False)
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return
    found = FlatLists(parquet.metadata, parquet.schema_arrow, [0]).read(pa.BufferReader(content), 0, parquet)
    assert found.equals(expected)
