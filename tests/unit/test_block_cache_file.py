"""A file of the block cache: what is written comes back, and what was spoilt is told."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from o41td.workers.block_cache_file import BrokenUnit, CachedUnit, cut_parts, parts_of, write_unit

KEY = bytes(range(16))


def write(path: Path, parts, key=KEY):
    """Writes a file and returns its bytes."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    try:
        assert write_unit(descriptor, key, parts) == path.stat().st_size
    finally:
        os.close(descriptor)
    return path.read_bytes()


def read(path: Path, start, stop, key=KEY):
    """Rows of a file, each part's tables as lists of rows."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [(rows, tables) for rows, tables in CachedUnit(descriptor, key).parts(start, stop)]
    finally:
        os.close(descriptor)


def table():
    """Twelve rows of every kind of column that a projection takes."""
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    floats = pa.array(np.arange(48), pa.float32())
    lists = [[row] * (row % 4) if row % 5 else None for row in range(12)]
    return pa.table(
        {
            "id": pa.array(range(12), pa.int64()),
            "null": pa.array([None if row % 3 else row for row in range(12)], pa.uint8()),
            "flag": pa.array([row % 2 == 0 for row in range(12)]),
            "half": pa.array(np.arange(12), pa.float16()),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "large": pa.array(lists, pa.large_list(pa.int32())),
            "view": pa.array(lists, pa.list_view(pa.int32())),
            "fixed": pa.array([[row, None] for row in range(12)], pa.list_(pa.int16(), 2)),
            "nested": pa.array([[[row], []] for row in range(12)], pa.list_(pa.list_(pa.int8()))),
            "packed": pa.array([bytes(row) for row in range(12)], pa.binary()),
            "struct": pa.array([{"a": row, "b": [row]} for row in range(12)]),
            "word": pa.array([3, 5, 3] * 4).dictionary_encode(),
            "when": pa.array(range(12), pa.timestamp("us", "UTC")),
            "money": pa.array(range(12), pa.decimal128(9, 2)),
            "tensor": pa.ExtensionArray.from_storage(tensor, pa.FixedSizeListArray.from_arrays(floats, 4)),
            "void": pa.nulls(12),
        }
    )


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (0, 1), (11, 12), (3, 9), (4, 8)])
def test_every_kind_of_column_comes_back(tmp_path, start, stop):
    """Rows read back are the rows written, of the same types, whichever are asked for."""
    whole = table()
    parts = [(4, [whole.slice(row, 4)]) for row in (0, 4, 8)]
    write(tmp_path / "a", parts)
    found = read(tmp_path / "a", start, stop)
    joined = pa.concat_tables([tables[0] for _rows, tables in found])
    assert sum(rows for rows, _tables in found) == stop - start
    assert joined.schema == whole.schema
    assert joined.to_pylist() == whole.slice(start, stop - start).to_pylist()


def test_parts_may_have_several_tables_of_their_own_types(tmp_path):
    """Records have a table for each layer, and types that differ from part to part."""
    parts = [(2, [pa.table({"a": [1, 2]}), pa.table({"a": [0.5, None]})]), (1, [pa.table({"a": [3.5]})] * 2)]
    write(tmp_path / "a", parts)
    found = read(tmp_path / "a", 1, 3)
    assert [(rows, [each.to_pydict()["a"] for each in tables]) for rows, tables in found] == [
        (1, [[2], [None]]),
        (1, [[3.5], [3.5]]),
    ]


def test_large_tables_are_cut_and_metadata_is_left_out(tmp_path):
    """A table of 5 MiB becomes two parts; what its schema says of pandas is not written with each."""
    whole = pa.table({"id": np.arange(655_360)}).replace_schema_metadata({"pandas": "x" * 1000})
    parts = parts_of(whole)
    assert [rows for rows, _tables in parts] == [524_288, 131_072]
    assert write(tmp_path / "a", parts).count(b"xxxx") == 0
    ids = [tables[0]["id"].to_pylist() for _rows, tables in read(tmp_path / "a", 524_284, 524_294)]
    assert ids == [[524_284, 524_285, 524_286, 524_287], [524_288, 524_289, 524_290, 524_291, 524_292, 524_293]]
    assert [rows for rows, _tables in cut_parts(parts, 524_284, 524_294)] == [4, 6]


def test_a_flipped_byte_anywhere_is_told(tmp_path):
    """Whichever byte of a file is another one, the file is broken, or its rows would be read as wrong ones."""
    good = write(tmp_path / "a", [(3, [pa.table({"a": [1, 2, 3], "b": [[4], None, []]})])])
    for place in range(len(good)):
        spoilt = bytearray(good)
        spoilt[place] ^= 1 << place % 8
        (tmp_path / "b").write_bytes(spoilt)
        with pytest.raises(BrokenUnit):
            read(tmp_path / "b", 0, 3)


def test_a_file_cut_short_or_lengthened_is_told(tmp_path):
    """Whatever of its end is missing, zero or doubled, the file is broken; an empty one too."""
    good = write(tmp_path / "a", [(3, [pa.table({"a": [1, 2, 3]})]), (1, [pa.table({"a": [4]})])])
    for length in [*range(0, len(good), 5), *range(len(good) - 70, len(good))]:
        for spoilt in (good[:length], good[:length].ljust(len(good), b"\0")):
            (tmp_path / "b").write_bytes(spoilt)
            with pytest.raises(BrokenUnit):
                read(tmp_path / "b", 0, 4)
    (tmp_path / "b").write_bytes(good + good)
    with pytest.raises(BrokenUnit):
        read(tmp_path / "b", 0, 4)


def test_a_file_cut_short_while_it_is_read_is_told(tmp_path):
    """What vanishes between the look at a file's index and the reading of a part is an error, and no signal."""
    write(tmp_path / "a", [(1, [pa.table({"a": [number]})]) for number in range(3)])
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    parts = CachedUnit(descriptor, KEY).parts(0, 3)
    assert next(parts)[1][0]["a"].to_pylist() == [0]
    os.truncate(tmp_path / "a", 300)
    with pytest.raises(BrokenUnit):
        list(parts)
    os.close(descriptor)


def test_another_units_file_is_told(tmp_path):
    """A file under a wrong name is not taken for the unit of that name."""
    write(tmp_path / "a", [(1, [pa.table({"a": [1]})])], key=bytes(16))
    with pytest.raises(BrokenUnit, match="another"):
        read(tmp_path / "a", 0, 1)
