"""Files of other formats as rows; each is written here by another tool than the one that reads it, or byte by byte."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import struct
import tarfile
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from o41td.errors import ConfigError, CorruptDataError, MissingShardError, SchemaError
from o41td.writing.inputs import list_inputs, read_inputs
from record_writer import write_frames

ROWS = [{"id": i, "tokens": list(range(i % 4)), "name": f"row {i}"} for i in range(2500)]


def read(*entries, input_format=None):
    """All rows that some inputs hold, with the inputs' places and row numbers checked to run on."""
    rows = []
    counts = {}
    for part in read_inputs(list_inputs([str(entry) for entry in entries], input_format)):
        assert part.first_row == counts.get(part.file, 0)
        counts[part.file] = part.first_row + part.batch.num_rows
        rows += part.batch.to_pylist()
    return rows


def test_columnar_files(tmp_path):
    """Parquet, an Arrow file and an Arrow stream give the rows that pyarrow put there."""
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(str(tmp_path / "c.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=900)
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        assert read(tmp_path / name) == ROWS


def test_lines_of_json(tmp_path):
    """Plain, gzip and Zstandard text is told by its bytes; empty lines and a missing last newline are of no account."""
    text = b"\n".join(json.dumps(row).encode() for row in ROWS[:5]) + b"\n\n" + json.dumps(ROWS[5]).encode()
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(text[:99]) + zstandard.compress(text[99:]))
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        assert read(tmp_path / name) == ROWS[:6]
        renamed = (tmp_path / name).rename(tmp_path / name.replace("jsonl", "ndjson"))
        assert read(renamed) == ROWS[:6]


def test_keys_that_nobody_wants_may_hold_anything(tmp_path):
    """A key of two types is refused by file, row and key; where other keys are wanted, it is passed over."""
    rows = [{"id": i, "meta": {"a": 1} if i < 37 else "x"} for i in range(50)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_frames(tmp_path / "b.msgpack.zstf", rows)
    for name in ("a.jsonl", "b.msgpack.zstf"):
        files = list_inputs([str(tmp_path / name)])
        with pytest.raises(SchemaError, match=f"{name}, row 37, column 'meta'.*--column"):
            list(read_inputs(files))
        (part,) = read_inputs(files, ["id"])
        assert part.batch.to_pylist() == [{"id": i} for i in range(50)]


def test_a_glob_of_folders_alone(tmp_path):
    """It names no file, and the folder that it does name is told."""
    (tmp_path / "a" / "train").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"matches only folders, such as .*/a/train. Name the folder"):
        list_inputs([str(tmp_path / "*" / "train")])


def test_a_key_that_comes_late(tmp_path):
    """A wanted key that the first thousands of records lack is null there; one that no record has is refused."""
    rows = [{"id": i, "late": i} if i >= 2100 else {"id": i} for i in range(2200)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = list_inputs([str(tmp_path / "a.jsonl")])
    found = [row for part in read_inputs(files, ["late"]) for row in part.batch.to_pylist()]
    assert found == [{"late": i if i >= 2100 else None} for i in range(2200)]
    with pytest.raises(ConfigError, match=r"there is no column 'lat'; there are id, late .*a\.jsonl.*--column"):
        list(read_inputs(files, ["late", "lat"]))


def test_frames_of_messages(tmp_path):
    """Frames give the maps that they pack."""
    assert read(write_frames(tmp_path / "a.msgpack.zstf", ROWS)) == ROWS


def test_csv(tmp_path):
    """A CSV file gives integers, floats and text; a value that does not fit its column is refused, not made text."""
    (tmp_path / "a.csv").write_text("id,score,name\n1,0.5,one\n2,,two\n")
    assert read(tmp_path / "a.csv") == [
        {"id": 1, "score": 0.5, "name": "one"},
        {"id": 2, "score": None, "name": "two"},
    ]
    lines = "id\n" + "1\n" * 600_000 + "x\n"
    (tmp_path / "b.csv").write_text(lines)
    with pytest.raises(SchemaError, match=r"b\.csv"):
        read(tmp_path / "b.csv")


COMPRESS = {
    "br": lambda data: pa.compress(data, "brotli", asbytes=True),
    "bz2": bz2.compress,
    "gz": gzip.compress,
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True),
    "zstd": zstandard.compress,
}


def mds_folder(folder, columns=(), samples=(), *, compression=None):
    """An MDS folder, put together from the format's description: columns are (name, encoding, size or None)."""
    folder.mkdir()
    blobs = []
    for sample in samples:
        ragged = [struct.pack("<I", len(data)) for data, (_, _, size) in zip(sample, columns) if size is None]
        blobs.append(b"".join(ragged) + b"".join(sample))
    config = b'{"what": "ever"}'
    start = 4 + 4 * (len(blobs) + 1) + len(config)
    offsets = start + np.cumsum([0, *map(len, blobs)])
    data = struct.pack("<I", len(blobs)) + offsets.astype("<u4").tobytes() + config + b"".join(blobs)
    name = "shard.00000.mds" + (f".{compression}" if compression else "")
    (folder / name).write_bytes(COMPRESS[compression](data) if compression else data)
    shard = {
        "format": "mds",
        "samples": len(blobs),
        "column_names": [name for name, _, _ in columns],
        "column_encodings": [encoding for _, encoding, _ in columns],
        "column_sizes": [size for _, _, size in columns],
        "compression": f"{compression}:3" if compression else None,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        "zip_data": {"basename": name, "bytes": 1, "hashes": {}} if compression else None,
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return folder


@pytest.mark.parametrize("compression", [None, "br", "bz2", "gz", "snappy", "zstd"])
def test_an_mds_folder(tmp_path, compression):
    """Scalars, text and arrays of fixed and of stated dtype and shape come out of an MDS folder."""
    columns = [
        ("id", "int", 8),
        ("text", "str", None),
        ("tokens", "ndarray:int32", None),
        ("pair", "ndarray:uint16:2", 4),
        ("grid", "ndarray", None),
        ("score", "float32", 4),
        ("extra", "json", None),
        ("price", "str_decimal", None),
        ("pictures", "list[png]", None),
        ("frames", "jpeg_array", None),
    ]

    def sample(i):
        tokens = np.arange(i + 1, dtype="<i4")
        grid = np.array([[i, 1, 2], [3, 4, 5]], "<f8")
        return [
            struct.pack("<q", -i),
            f"é{i}".encode(),
            bytes([1 << 2 | 0, i + 1]) + tokens.tobytes(),  # one axis, told in one byte
            np.array([i, 65535], "<u2").tobytes(),
            bytes([66, 2 << 2 | 1]) + np.array([2, 3], "<u2").tobytes() + grid.tobytes(),  # float64, axes in two bytes
            struct.pack("<f", i / 4),
            json.dumps({"k": [i]}).encode(),
            f"{i}.25".encode(),
            struct.pack("<4I", 0, 2, 1, 3) + b"abbb",  # nothing, two of them, their sizes
            struct.pack("<2I", 1, 2) + b"cc",
        ]

    folder = mds_folder(tmp_path / "mds", columns, [sample(i) for i in range(3)], compression=compression)
    assert read(folder)[2] == {
        "id": -2,
        "text": "é2",
        "tokens": [0, 1, 2],
        "pair": [2, 65535],
        "grid": [[2.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "score": 0.5,
        "extra": {"k": [2]},
        "price": Decimal("2.25"),
        "pictures": [b"a", b"bbb"],
        "frames": [b"cc"],
    }
    (part,) = read_inputs(list_inputs([str(folder)]))
    types = {name: str(part.batch.schema.field(name).type) for name in ("score", "tokens", "pair")}
    assert types == {"score": "float", "tokens": "list<item: int32>", "pair": "list<item: uint16>"}


def test_real_folders_of_mds(tmp_path):
    """What mosaicml-streaming's own writer has written, several shards of it, is read as what was given to it."""
    streaming = pytest.importorskip("streaming")
    columns = {"id": "int", "text": "str", "tokens": "ndarray:uint16", "grid": "ndarray", "score": "float32"}
    grid = np.arange(6, dtype=np.float64).reshape(2, 3)
    rows = [{"id": i, "text": f"é{i}", "tokens": np.arange(i + 1, dtype=np.uint16), "score": i / 4} for i in range(99)]
    with streaming.MDSWriter(out=str(tmp_path / "set"), columns=columns, compression="zstd", size_limit=4000) as writer:
        for row in rows:
            writer.write({**row, "grid": grid})
    expected = [{**row, "tokens": row["tokens"].tolist(), "grid": grid.tolist()} for row in rows]
    assert read(tmp_path / "set") == expected


def test_pickles_are_not_read(tmp_path):
    """An MDS column of pickles, and a NumPy file that needs one, are refused by name."""
    folder = mds_folder(tmp_path / "mds", [("x", "pkl", None)], [[pickle.dumps(1)]])
    with pytest.raises(ConfigError, match="pickles are not read"):
        read(folder)
    data = io.BytesIO()
    np.save(data, np.array([{}], object))
    path = tar_of(tmp_path / "a.tar", [("s.npy", data.getvalue())])
    with pytest.raises(CorruptDataError, match=r"cannot be read as \.npy.*s\.npy"):
        read(path)


def test_an_mds_shard_cut_short(tmp_path):
    """A shard that is shorter than its offsets say is refused by name."""
    folder = mds_folder(tmp_path / "mds", [("id", "int", 8)], [[struct.pack("<q", 1)]] * 3)
    shard = folder / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match=r"shard\.00000\.mds"):
        read(folder)


def tar_of(path, members):
    """A tar of some files."""
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_a_webdataset_tar(tmp_path):
    """Files of one stem are a sample, in the tar's order; each suffix is a column, decoded as the suffix says."""
    tokens = io.BytesIO()
    np.save(tokens, np.array([5, 6], np.uint16))
    path = tar_of(
        tmp_path / "a.tar",
        [
            ("d/0001.npy", tokens.getvalue()),
            ("d/0001.cls", b"3"),
            ("d/0001.meta.json", b'{"a": 1}'),
            ("d/0001.JPG", b"\xff\xd8"),
            ("__meta__/0001.cls", b"of nobody"),
            ("d/0002.cls", b"4"),
        ],
    )
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert (
        read(path)
        == read(tmp_path / "b.tar.gz")
        == [
            {"__key__": "d/0001", "npy": [5, 6], "cls": 3, "meta.json": {"a": 1}, "jpg": b"\xff\xd8"},
            {"__key__": "d/0002", "npy": None, "cls": 4, "meta.json": None, "jpg": None},
        ]
    )


def test_real_tars_of_webdataset(tmp_path):
    """What webdataset's own writer has written is read as its own reader does."""
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar.gz")) as writer:
        for i in range(3):
            values = np.full((2, i), i, np.float32)
            writer.write({"__key__": f"k{i}", "cls": i, "txt": f"é{i}", "json": {"i": i}, "npy": values})
    rows = [
        {"__key__": f"k{i}", "cls": i, "txt": f"é{i}", "json": {"i": i}, "npy": [[float(i)] * i] * 2} for i in range(3)
    ]
    assert read(tmp_path / "a.tar.gz") == rows


def test_what_a_folder_names(tmp_path):
    """A folder is its files in sorted order, hidden and underscored names left out; of two formats one must be told."""
    folder = tmp_path / "data"
    (folder / "_o41td").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", ".c.jsonl", "_o41td/d.jsonl", "readme.txt"):
        (folder / name).write_text(json.dumps({"from": name}))
    assert read(folder) == [{"from": "a.jsonl"}, {"from": "b.jsonl"}]
    (folder / "z.csv").write_text("from\nz\n")
    with pytest.raises(ConfigError, match="csv and jsonl"):
        read(folder)
    assert read(folder, input_format="csv") == [{"from": "z"}]
    (tmp_path / "many").mkdir()
    mds_folder(tmp_path / "many" / "train")
    with pytest.raises(ConfigError, match="holds the MDS folders train"):
        read(tmp_path / "many")


def test_what_cannot_be_read(tmp_path):
    """Missing, doubled, unknown and damaged inputs are refused by name."""
    with pytest.raises(MissingShardError, match=r"no\.jsonl"):
        read(tmp_path / "no.jsonl")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n[1]\n')
    with pytest.raises(ConfigError, match="named twice"):
        read(tmp_path / "a.jsonl", tmp_path / "a.*")
    with pytest.raises(CorruptDataError, match="line 3 is no object"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "a.xyz").write_text("")
    with pytest.raises(ConfigError, match="tells no format; say with --format"):
        read(tmp_path / "a.xyz")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(CorruptDataError, match=r"b\.parquet"):
        read(tmp_path / "b.parquet")
