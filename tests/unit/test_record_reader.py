"""Records into slots: what each value becomes, what is refused, and how slices of a shard are read."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import record_writer
from o41td.errors import ChangedDataError, CorruptDataError, DataError, SchemaError, ValueRefusedError
from o41td.fields import FieldPlan
from o41td.workers import record_reader
from o41td.workers.record_count import count_records
from o41td.workers.record_feed import open_feed
from o41td.workers.record_reader import RecordReader

I64 = FieldPlan(name="x", source="x", dtype="i64")
F64 = FieldPlan(name="x", source="x", dtype="f64")
F32 = FieldPlan(name="x", source="x", dtype="f32")
BOOL = FieldPlan(name="x", source="x", dtype="bool")
ENCODINGS = ("jsonl.gz", "msgpack.zstf")


def field(dtype: str, *shape: int, **keys: Any) -> FieldPlan:
    """A field of this dtype and shape."""
    return FieldPlan(**{"name": "x", "source": "x", "dtype": dtype, "shape": shape, **keys})


def written(folder: Path, encoding: str, records: Sequence[Any]) -> str:
    """A shard of these records."""
    path = folder / f"shard.{encoding}"
    if encoding == "jsonl.gz":
        record_writer.write_lines(path, b"".join(json.dumps(record).encode() + b"\n" for record in records))
    else:
        record_writer.write_frames(path, records)
    return str(path)


def read(path: str, fields: Sequence[FieldPlan], start: int, stop: int, *, reader: RecordReader | None = None) -> Any:
    """Rows [start, stop) of a shard as arrays by field; the shard is read as its suffix says."""
    encoding = "jsonl.gz" if path.endswith(".gz") else "msgpack.zstf"
    own = reader or RecordReader(path, fields, encoding=encoding, source="s")
    out = {item.name: np.full((stop - start, *item.shape), 77).astype(item.numpy_dtype) for item in fields}
    try:
        rows = own.read_rows(0, start, stop)
        own.projector.write(rows, out, row_offset_in_shard=start, shard=path, source="s")
    finally:
        if reader is None:
            own.close()
    return out


def values_of(folder: Path, encoding: str, values: Sequence[Any], plan: FieldPlan) -> Any:
    """What a column of these values becomes."""
    path = written(folder, encoding, [{"x": value, "other": "text"} for value in values])
    return read(path, [plan], 0, len(values))["x"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("plan", "values", "expected"),
    [
        (I64, [1, -(2**63), 2**63 - 1, True, 3.0], [1, -(2**63), 2**63 - 1, 1, 3]),
        (F64, [1, 0.1, -0.0, 2**53, 2**60, 5e-324, True], [1.0, 0.1, -0.0, 2.0**53, 2.0**60, 5e-324, 1.0]),
        (F32, [0.1, 16777217.0, 1], [np.float32(0.1), 16777216.0, 1.0]),
        (F64, [2**64, 2**63], [2.0**64, 2.0**63]),
        (BOOL, [True, False, 1, 0, 1.0], [True, False, True, False, True]),
        (field("i32", null=-1), [None, 5, None], [-1, 5, -1]),
        (field("f64", exact=False), [2**53 + 1, 2**63 + 1], [2.0**53, 2.0**63]),
        (field("f32", exact=False), [16777217, 2**60 + 2**36 + 1], [16777216.0, float(2**60 + 2**37)]),
        (field("i32", 3, pad=-1), [[1, 2, 3, 4], [], [5]], [[1, 2, 3], [-1, -1, -1], [5, -1, -1]]),
        (field("i64", 2, pad=9, null=0), [None, [None, 7], [1]], [[0, 0], [0, 7], [1, 9]]),
        (field("f32", 2, 2), [[1, 2, 3, 4], [5, 6]], [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]),
        (field("i32", 2, 2), [[[1, 2], [3]], [[4, 5, 6]], []], [[[1, 2], [3, 0]], [[4, 5], [0, 0]], [[0, 0], [0, 0]]]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_become_what_they_are_in_parquet(
    tmp_path: Path, encoding: str, plan: FieldPlan, values: list[Any], expected: list[Any]
) -> None:
    """True is 1, a whole float an integer, an integer a float where it is exact, lists are cut and padded."""
    if encoding == "msgpack.zstf" and 2**64 in values:
        values, expected = values[1:], expected[1:]  # MessagePack has no such integer
    got = values_of(tmp_path, encoding, values, plan)
    wanted = np.array(expected, plan.numpy_dtype)
    np.testing.assert_array_equal(got, wanted)
    assert np.array_equal(np.signbit(got), np.signbit(wanted)) or plan.dtype == "bool"


def test_a_double_keeps_every_bit(tmp_path: Path) -> None:
    """NaN payloads apart, any double that MessagePack holds comes out as it went in, and so does each JSON text."""
    bits = np.random.default_rng(5).integers(0, 2**64, 4000, dtype=np.uint64)
    doubles = bits.view(np.float64)
    doubles = doubles[np.isfinite(doubles)]
    for encoding in ENCODINGS:
        got = values_of(tmp_path, encoding, doubles.tolist(), F64)
        assert got.tobytes() == doubles.tobytes()


def test_messagepack_keeps_nan_and_infinity(tmp_path: Path) -> None:
    """MessagePack has NaN and infinity, and they are values like any other."""
    got = values_of(tmp_path, "msgpack.zstf", [math.nan, math.inf, -math.inf], F64)
    assert math.isnan(got[0])
    assert got[1:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("plan", "bad", "why"),
    [
        (I64, "text", "a string is no number.*A node makes numbers of text"),
        (I64, {"a": 1}, "an object is no number"),
        (I64, [1], "a list is no number"),
        (I64, 1.5, "no whole number"),
        (I64, 2**63, "does not fit"),
        (field("i32"), 2**31, "does not fit"),
        (I64, None, "null"),
        (F32, 16777217, "exactly"),
        (F64, 2**53 + 1, "exactly"),
        (F32, 1e39, "too large"),
        (BOOL, 2, "neither 0 nor 1"),
        (field("i32", 2), 5, "takes a list"),
        (field("i32", 2), "text", "takes a list"),
        (field("i32", 2), [1, "2"], "a string is no number"),
        (field("i32", 2), [1, None], "null"),
        (field("i32", 2), [[1]], "a list is no number"),
        (field("i32", 2, 2), [1, 2, 3], "does not divide"),
        (field("i32", 2, source_dtype="i32"), "text", "a string"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_that_does_not_fit_is_refused_with_its_record(
    tmp_path: Path, encoding: str, plan: FieldPlan, bad: Any, why: str
) -> None:
    """The error names shard, record, key and value, wherever the record lies in what is read."""
    good: Any = [0] * 4 if plan.shape else 1
    if plan.source_dtype:
        good = None
        plan = FieldPlan(**{**{name: getattr(plan, name) for name in plan.__slots__}, "null": 0})
    path = written(tmp_path, encoding, [{"x": good}] * 700 + [{"x": bad}] + [{"x": good}] * 3)
    with pytest.raises(ValueRefusedError, match=why) as caught:
        read(path, [plan], 650, 704)
    assert (caught.value.row, caught.value.column, caught.value.shard) == (700, "x", path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_a_cut_leaves_out_is_never_judged(tmp_path: Path, encoding: str) -> None:
    """Behind the field's length a list may hold anything, as in Parquet."""
    assert values_of(
        tmp_path, encoding, [[1, 2, "three", None, 2**70 if encoding == "jsonl.gz" else 0]], field("i32", 2)
    ).tolist() == [[1, 2]]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_earliest_record_is_named_whatever_is_wrong(tmp_path: Path, encoding: str) -> None:
    """Of several bad values in several fields, the first record's is told, found while converting or while writing."""
    fields = [I64, field("i32", name="y", source="y"), field("bool", name="z", source="z")]
    records: list[dict[str, Any]] = [{"x": 1, "y": 1, "z": True} for _ in range(10)]
    records[6]["x"] = "text"
    records[4]["y"] = 2**40
    records[5]["z"] = 7
    with pytest.raises(ValueRefusedError) as caught:
        read(written(tmp_path, encoding, records), fields, 0, 10)
    assert (caught.value.row, caught.value.column) == (4, "y")
    with pytest.raises(ValueRefusedError) as caught:
        read(written(tmp_path, encoding, records), fields, 5, 10)
    assert (caught.value.row, caught.value.column) == (5, "z")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_path_leads_into_objects_unless_a_key_has_its_name(tmp_path: Path, encoding: str) -> None:
    """The exact key counts first; dots then lead down, through keys that have dots themselves; two ways are refused."""
    plan = FieldPlan(name="x", source="a.b.c", dtype="i32", null=-1)
    records: list[dict[str, Any]] = [
        {"a.b.c": 1, "a": {"b": {"c": 9}}},
        {"a": {"b": {"c": 2}}},
        {"a.b": {"c": 3}},
        {"a": {"b.c": 4}},
        {"a": {"b": None}},
        {"a": 5},
        {},
    ]
    path = written(tmp_path, encoding, records)
    assert read(path, [plan], 0, 7)["x"].tolist() == [1, 2, 3, 4, -1, -1, -1]
    both = written(tmp_path, encoding, [{"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 1}, "b.c": 2}}])
    with pytest.raises(ValueRefusedError, match="several") as caught:
        read(both, [plan], 0, 2)
    assert caught.value.row == 1


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "", "é漢", "__class__", "k0", "a b"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_key_can_be_projected(tmp_path: Path, encoding: str, name: str) -> None:
    """Keys that the decoder cannot name, and names of its own, are keys like any other."""
    path = written(tmp_path, encoding, [{name: 5, "k0 ": 6}])
    assert read(path, [FieldPlan(name="x", source=name, dtype="i32")], 0, 1)["x"].tolist() == [5]


def test_two_fields_may_take_one_key(tmp_path: Path) -> None:
    """Each field has its own length and dtype of the same list."""
    path = written(tmp_path, "jsonl.gz", [{"x": [1, 2, 3]}])
    got = read(path, [field("i32", 2), field("f64", 4, name="y", pad=-1.0)], 0, 1)
    assert got["x"].tolist() == [[1, 2]]
    assert got["y"].tolist() == [[1.0, 2.0, 3.0, -1.0]]


def test_binary_values_hold_packed_numbers(tmp_path: Path) -> None:
    """MessagePack's binary values are read as the field's source_dtype says."""
    packed = np.array([3, -1, 2**15 - 1], "<i2").tobytes()
    path = written(tmp_path, "msgpack.zstf", [{"x": packed}, {"x": b""}])
    got = read(path, [field("i32", 3, source_dtype="i16", pad=8)], 0, 2)["x"]
    assert got.tolist() == [[3, -1, 32767], [8, 8, 8]]


def test_the_last_of_equal_keys_counts(tmp_path: Path) -> None:
    """A key that stands twice in a record has its last value, in both encodings."""
    lines = record_writer.write_lines(tmp_path / "a.jsonl.gz", b'{"x":1,"x":2}\n')
    frame = b"\x82\xa1x\x01\xa1x\x02"
    frames = tmp_path / "a.msgpack.zstf"
    frames.write_bytes(record_writer.frame_of(frame))
    assert read(str(lines), [I64], 0, 1)["x"].tolist() == read(str(frames), [I64], 0, 1)["x"].tolist() == [2]


@pytest.mark.parametrize(
    "line",
    [b'{"x":NaN}', b'{"x":1', b'{"x":1}}', b"[1]", b"null", b'{"x":01}', b"garbage", b'{"x":1e999}', b'{"x":"\xff"}'],
)
def test_a_bad_line_is_refused_with_its_record(tmp_path: Path, line: bytes) -> None:
    """What is no JSON object, NaN among it, names shard and record; lines before it are read."""
    path = str(record_writer.write_lines(tmp_path / "a.jsonl.gz", b'{"x":1}\n' * 5 + line + b'\n{"x":2}\n'))
    assert read(path, [I64], 0, 5)["x"].tolist() == [1] * 5
    with pytest.raises(CorruptDataError, match="no record") as caught:
        read(path, [I64], 0, 7)
    assert (caught.value.row, caught.value.shard) == (5, path)


@pytest.mark.parametrize("payload", [msgpack.packb([1]), b"\xc1", msgpack.packb({"x": 1}) + b"\x00", b"", b"\x81\xa1x"])
def test_a_bad_frame_is_refused_with_its_record(tmp_path: Path, payload: bytes) -> None:
    """A frame of anything but one MessagePack map names shard and record."""
    good = record_writer.frame_of(msgpack.packb({"x": 1}))
    path = tmp_path / "a.msgpack.zstf"
    path.write_bytes(good * 3 + record_writer.frame_of(payload) + good)
    with pytest.raises(CorruptDataError) as caught:
        read(str(path), [I64], 1, 5)
    assert (caught.value.row, caught.value.shard) == (3, str(path))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_slices_in_any_order_give_their_rows(tmp_path: Path, encoding: str) -> None:
    """Forwards, backwards, interleaved from several places, and over again, each slice has its own records."""
    path = written(tmp_path, encoding, [{"x": i} for i in range(5000)])
    reader = RecordReader(path, [I64], encoding=encoding, source="s")
    lanes = [range(start, start + 1000, 100) for start in (0, 1000, 2000, 3000, 4000)]
    order = [start for starts in zip(*lanes, strict=True) for start in starts] + [4900, 0, 2500, 2400]
    for start in order:
        assert read(path, [I64], start, start + 100, reader=reader)["x"].tolist() == list(range(start, start + 100))
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_consecutive_slices_read_the_shard_once(tmp_path: Path, encoding: str) -> None:
    """One open feed goes through all slices of a pass, those that others read passed over, and is closed at the end."""
    path = written(tmp_path, encoding, [{"x": i} for i in range(1000)])
    reader = RecordReader(path, [I64], encoding=encoding)
    reader.read_rows(0, 0, 50, group_rows=1000)
    feed = reader._feeds[0]
    for start in (50, 100, 200, 450, 500, 900):
        reader.read_rows(0, start, start + 50, group_rows=1000)
        assert reader._feeds == [feed]
    reader.read_rows(0, 950, 1000, group_rows=1000)
    assert reader._feeds == []


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("stated", "start", "stop"), [(12, 8, 12), (9, 5, 9), (30, 25, 30)])
def test_another_number_of_records_than_stated_is_refused(
    tmp_path: Path, encoding: str, stated: int, start: int, stop: int
) -> None:
    """A shard with fewer records than the manifest says, or more, is named with both numbers."""
    path = written(tmp_path, encoding, [{"x": i} for i in range(10)])
    reader = RecordReader(path, [I64], encoding=encoding, source="s")
    with pytest.raises(ChangedDataError, match=f"10 records.*{stated}") as caught:
        reader.read_rows(0, start, stop, group_rows=stated)
    reader.close()
    assert caught.value.shard == path


def test_a_shard_that_changes_is_refused(tmp_path: Path) -> None:
    """A file that was replaced since it was indexed, or under an open reader, is an error and never other rows."""
    path = written(tmp_path, "jsonl.gz", [{"x": i} for i in range(10)])
    with pytest.raises(ChangedDataError, match="size"):
        RecordReader(path, [I64], encoding="jsonl.gz", size_bytes=1, mtime_ns=0)
    reader = RecordReader(path, [I64], encoding="jsonl.gz")
    reader.read_rows(0, 0, 5, group_rows=10)
    written(tmp_path, "jsonl.gz", [{"x": i} for i in range(900)])
    with pytest.raises(ChangedDataError, match="size"):
        reader.read_rows(0, 5, 10, group_rows=10)
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_records_are_counted(tmp_path: Path, encoding: str) -> None:
    """The count is the shard's, with its bytes decompressed; an empty shard counts none; a known count is believed."""
    path = written(tmp_path, encoding, [{"x": i} for i in range(9000)])
    told: list[None] = []
    count = count_records(path, encoding, [I64], on_progress=lambda: told.append(None))
    assert (count.num_rows, count.size_bytes) == (9000, Path(path).stat().st_size)
    assert len(told) >= 2
    assert count_records(path, encoding, [I64], known_rows=5).num_rows == 5
    empty = written(tmp_path, encoding, [])
    assert count_records(empty, encoding, [I64]).num_rows == 0


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("record", "error", "why"),
    [
        ({"inputs": [1], "label": 2}, SchemaError, "no key 'input'.*did you mean 'inputs'"),
        ({"zzz": 1}, SchemaError, "it has 'zzz'"),
        ({"input": "text"}, ValueRefusedError, "takes a list"),
        ([1, 2], CorruptDataError, "no record"),
    ],
    ids=["close name", "no name", "string", "no map"],
)
def test_a_first_record_that_gives_no_field_is_refused_when_counted(
    tmp_path: Path, encoding: str, record: Any, error: type[DataError], why: str
) -> None:
    """A mistyped source or a column of strings is told before anything streams, with what keys there are."""
    path = written(tmp_path, encoding, [record])
    with pytest.raises(error, match=why) as caught:
        count_records(path, encoding, [field("i32", 4, source="input")], source="s")
    assert (caught.value.row, caught.value.shard, caught.value.source) == (0, path, "s")


def test_a_damaged_shard_is_refused_when_counted(tmp_path: Path) -> None:
    """A truncated shard names the record at which it ends."""
    path = Path(written(tmp_path, "msgpack.zstf", [{"x": i} for i in range(10)]))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match="ends early") as caught:
        count_records(str(path), "msgpack.zstf", [I64])
    assert caught.value.row == 9


def test_a_larger_record_is_allowed_by_the_setting(tmp_path: Path) -> None:
    """What a record may have follows max_row_group_bytes, counted and read alike."""
    path = written(tmp_path, "jsonl.gz", [{"x": 1, "text": "y" * 2000}])
    with pytest.raises(CorruptDataError, match="max_row_group_bytes"):
        count_records(path, "jsonl.gz", [I64], max_row_group_bytes=8 * 1000)
    assert count_records(path, "jsonl.gz", [I64], max_row_group_bytes=8 * 3000).num_rows == 1
    small, large = (RecordReader(path, [I64], encoding="jsonl.gz", max_row_group_bytes=8 * n) for n in (1000, 3000))
    assert small.read_rows(0, 0, 1).error is not None
    assert large.read_rows(0, 0, 1).error is None
    small.close()
    large.close()


def test_reading_goes_on_behind_each_damaged_frame(tmp_path: Path) -> None:
    """Every second of 40 frames is two bytes short: each is told by its own row, and those between are had."""
    frames = [record_writer.frame_of(msgpack.packb({"x": row}))[8:] for row in range(40)]
    frames[1::2] = [frame[:-2] for frame in frames[1::2]]
    path = tmp_path / "shard.msgpack.zstf"
    path.write_bytes(b"".join(len(frame).to_bytes(8, "big") + frame for frame in frames))
    reader = RecordReader(str(path), [I64], encoding="msgpack.zstf")
    records = reader.read_rows(0, 0, 40, group_rows=40)
    out = np.full(40, -1)
    assert reader.projector.write_fitting(records, {"x": out}) is None
    assert out[0::2].tolist() == list(range(0, 40, 2))
    assert [(places.tolist(), error.row) for places, error in records.refused] == [
        ([row], row) for row in range(1, 40, 2)
    ]
    reader.close()


def refusals_of(reader: RecordReader, spans: Sequence[tuple[int, int]], group_rows: int) -> tuple[Any, dict[int, str]]:
    """What spans give a field x of i64, -1 where nothing, and by record why it is not there."""
    out, why, first = np.full(sum(stop - start for start, stop in spans), -1), {}, 0
    for records in reader.slices(spans, group_rows=group_rows):
        slot = {"x": out[first : first + records.num_rows]}
        unfit = reader.projector.write_fitting(records, slot)
        for places, error in [*records.refused, *([(unfit.rows, unfit.error)] if unfit else [])]:
            why |= {int(records.rows[place]): str(error) for place in places}
            slot["x"][places] = -1
        first += records.num_rows
    return out, why


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_one_pass_tells_all_records_that_cannot_be_had(tmp_path: Path, encoding: str) -> None:
    """Values of another kind, too large ones, missing keys and no maps: each is told, and no other record is lost."""
    bad = {7: {"x": "text"}, 8: {"x": 2**63}, 9: {}, 100: [1], 101: {"x": None}, 299: {"x": 0.5}}
    path = written(tmp_path, encoding, [bad.get(row, {"x": row}) for row in range(300)])
    reader = RecordReader(path, [I64], encoding=encoding)
    out, why = refusals_of(reader, [(0, 300)], 300)
    assert sorted(why) == sorted(bad)
    assert all(f"row {row}" in why[row] for row in (7, 8, 9, 100, 299)), why
    assert [row for row in range(300) if out[row] != row] == sorted(bad)
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_spans_are_read_in_two_passes_however_they_alternate(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single records far ahead between long spans, as stand-ins are, open a second feed and no third."""
    path = written(tmp_path, encoding, [{"x": row} for row in range(20_000)])
    spans = [span for row in range(0, 9_000, 300) for span in ((row, row + 299), (row + 10_299, row + 10_300))]
    reader = RecordReader(path, [I64], encoding=encoding)
    opened: list[int] = []
    monkeypatch.setattr(
        record_reader, "open_feed", lambda *args, **keys: (opened.append(1), open_feed(*args, **keys))[1]
    )
    for part in (spans[:30], spans[30:]):
        out, why = refusals_of(reader, part, 20_000)
        assert out.tolist() == [row for start, stop in part for row in range(start, stop)]
        assert why == {}
    assert len(opened) == 2
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("first", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_flat_and_nested_lists_may_stand_side_by_side(tmp_path: Path, encoding: str, first: Any) -> None:
    """Each record is judged by itself, whatever the first of its neighbours is."""
    values = [first, [[1, 2], [3, 4]], [1, 2, 3, 4], None, "no list", [[1, 2], 5]]
    path = written(tmp_path, encoding, [{"x": value} for value in values])
    reader = RecordReader(path, [field("i64", 2, 2, null=9)], encoding=encoding)
    records = reader.read_rows(0, 0, 6, group_rows=6)
    out = np.zeros((6, 2, 2), np.int64)
    assert reader.projector.write_fitting(records, {"x": out}) is None
    assert out[:4].tolist() == [[[1, 2], [3, 4]]] * 3 + [[[9, 9], [9, 9]]]
    assert [error.row for _places, error in records.refused] == [4, 5]
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_behind_what_breaks_a_shard_nothing_is_had_and_before_it_all(tmp_path: Path, encoding: str) -> None:
    """Of a shard that is cut short, the records before the cut come in whatever order they are asked for."""
    path = Path(written(tmp_path, encoding, [{"x": row, "y": "z" * (row * 37 % 500)} for row in range(2000)]))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reader = RecordReader(str(path), [I64], encoding=encoding)
    out, why = refusals_of(reader, [(0, 10), (1990, 2000), (10, 20)], 2000)
    assert out.tolist() == [*range(10), *[-1] * 10, *range(10, 20)]
    assert sorted(why) == list(range(1990, 2000))
    assert "ends early" in why[1990]
    reader.close()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bad_first_record_is_no_bad_shard(tmp_path: Path, encoding: str) -> None:
    """What the first records lack or have too much of is theirs alone, as long as one gives the fields."""
    records = [[1], {"y": 1}, {"x": "text"}, {"x": 1, "y": "z" * 20_000}, {"x": 5}, {"x": 6}]
    path = written(tmp_path, encoding, records)
    assert count_records(path, encoding, [I64], max_row_group_bytes=8 * 10_000).num_rows == 6
    reader = RecordReader(path, [I64], encoding=encoding, max_row_group_bytes=8 * 10_000)
    out, why = refusals_of(reader, [(0, 6)], 6)
    assert out.tolist() == [-1] * 4 + [5, 6]
    assert sorted(why) == [0, 1, 2, 3]
    reader.close()
