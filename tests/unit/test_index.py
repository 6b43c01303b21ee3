"""The index of a source, and its cache."""

import os
from pathlib import Path

import numpy as np

from o41td.coordinator.opening import IndexReading
from o41td.index import ShardEntry, ShardUnits, SourceIndex, index_source
from o41td.index_cache import IndexCache, file_identity
from o41td.job import job_of
from stream_reference import stage_of, stream_config

FIELDS = [{"name": "x", "source": "x", "dtype": "i32"}]


def shard(uri: str, rows: list[int]) -> ShardUnits:
    """What a footer says of a shard with these row groups."""
    counts = np.array(rows, np.int64)
    entry = ShardEntry(uri=uri, rows=sum(rows), size_bytes=9, mtime_ns=7, version="v-" + uri)
    return ShardUnits(
        entry=entry,
        rows=counts,
        decoded_bytes=counts * 4,
        decoding_bytes=counts * 6,
        compressed_bytes=counts,
        footer_bytes=7,
    )


def test_units_lie_end_to_end() -> None:
    """Units are numbered through all shards; a shard without row groups adds none, one without rows keeps its place."""
    index = index_source(
        stage=1, source=2, name="s", shards=[shard("a", [5, 3]), shard("b", []), shard("c", [0, 7, 1])]
    )
    assert index.unit_shard.tolist() == [0, 0, 2, 2, 2]
    assert index.unit_row_group.tolist() == [0, 1, 0, 1, 2]
    assert index.unit_rows.tolist() == [5, 3, 0, 7, 1]
    assert index.unit_first_row.tolist() == [0, 5, 0, 0, 7]
    assert index.unit_decoded_bytes.tolist() == [20, 12, 0, 28, 4]
    assert index.unit_decoding_bytes.tolist() == [30, 18, 0, 42, 6]
    assert (index.footers_bytes, index.largest_footer_bytes) == (7 * len(index.shards), 7)
    assert index.shard_first_unit.tolist() == [0, 2, 2, 5]
    assert index.num_rows == 16


def test_a_record_is_the_index() -> None:
    """What crosses a socket comes out equal."""
    index = index_source(stage=0, source=0, name="s", shards=[shard("a", [5, 3]), shard("b", [2])])
    again = SourceIndex.from_record(index.to_record())
    assert again.shards == index.shards
    assert again.name == "s"
    for name in ("unit_shard", "unit_row_group", "unit_rows", "unit_first_row", "unit_compressed_bytes"):
        assert getattr(again, name).tolist() == getattr(index, name).tolist()
        assert getattr(again, name).dtype == getattr(index, name).dtype


def test_the_cache_forgets_a_file_that_changed(tmp_path: Path) -> None:
    """An entry is good for the same size, time and inode, and for the same fields, only."""
    path = tmp_path / "a.parquet"
    path.write_bytes(b"12345")
    identity = file_identity(str(path))
    cache = IndexCache(tmp_path / "cache", FIELDS)
    cache.put(str(path), identity, [b"rows", 5])
    cache.save()
    assert IndexCache(tmp_path / "cache", FIELDS).get(str(path), identity) == [b"rows", 5]
    os.utime(path, ns=(1, 1))
    assert IndexCache(tmp_path / "cache", FIELDS).get(str(path), file_identity(str(path))) is None
    assert IndexCache(tmp_path / "cache", [{"name": "y"}]).get(str(path), identity) is None


def test_writers_of_one_folder_add_to_each_other(tmp_path: Path) -> None:
    """A second loader over other shards of the folder keeps what the first had found."""
    first, second = IndexCache(tmp_path / "cache", FIELDS), IndexCache(tmp_path / "cache", FIELDS)
    first.put("/data/a", (1, 1, 1), ["a"])
    second.put("/data/b", (2, 2, 2), ["b"])
    first.save()
    second.save()
    cache = IndexCache(tmp_path / "cache", FIELDS)
    assert cache.get("/data/a", (1, 1, 1)) == ["a"]
    assert cache.get("/data/b", (2, 2, 2)) == ["b"]


def test_a_damaged_cache_is_no_cache(tmp_path: Path) -> None:
    """Cut at any byte, or with any byte changed, the file says nothing rather than something wrong."""
    cache = IndexCache(tmp_path / "cache", FIELDS)
    cache.put("/data/a", (1, 1, 1), ["a"])
    cache.save()
    (path,) = (tmp_path / "cache").glob("*.msgpack")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert IndexCache(tmp_path / "cache", FIELDS).get("/data/a", (1, 1, 1)) is None
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert IndexCache(tmp_path / "cache", FIELDS).get("/data/a", (1, 1, 1)) is None
    cache.put("/data/b", (2, 2, 2), ["b"])
    cache.save()
    assert IndexCache(tmp_path / "cache", FIELDS).get("/data/b", (2, 2, 2)) == ["b"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """The cache only ever saves time."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache = IndexCache(blocked / "cache", FIELDS)
    cache.put("/data/a", (1, 1, 1), ["a"])
    cache.save()
    assert IndexCache(blocked / "cache", FIELDS).get("/data/a", (1, 1, 1)) is None


def test_names_that_are_not_utf8_are_cached(tmp_path: Path) -> None:
    """File names are bytes; those that are no text must not break the cache."""
    name = os.fsdecode(b"/data\xff/a\xfe.parquet")
    cache = IndexCache(tmp_path / "cache", FIELDS)
    cache.put(name, (1, 1, 1), ["a"])
    cache.save()
    assert IndexCache(tmp_path / "cache", FIELDS).get(name, (1, 1, 1)) == ["a"]


def test_a_flipped_byte_anywhere_is_no_cache(tmp_path: Path) -> None:
    """Whichever byte of a cache file is another one, nothing of the file is believed."""
    cache = IndexCache(tmp_path / "cache", FIELDS)
    cache.put("/data/a", (1, 1, 1), [b"rows", 5])
    cache.save()
    (path,) = (tmp_path / "cache").glob("*.msgpack")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        assert IndexCache(tmp_path / "cache", FIELDS).get("/data/a", (1, 1, 1)) is None


def test_looking_many_shards_up_is_heard_of(tmp_path: Path) -> None:
    """Of 2 500 shards, how many are known is told twice on the way, so that who waits knows that somebody works."""
    (tmp_path / "0.parquet").write_bytes(b"never read")
    for number in range(1, 2500):
        os.link(tmp_path / "0.parquet", tmp_path / f"{number}.parquet")
    config = stream_config(stage_of([tmp_path / "*.parquet"]))
    told: list[tuple[int, int]] = []
    reading = IndexReading(
        job_of(config, lanes=1), storage=None, expected=None, on_look_up=lambda *numbers: told.append(numbers)
    )
    assert told == [(1024, 2500), (2048, 2500)]
    assert (reading.num_done, reading.num_shards) == (0, 2500)
