"""Blocks through the block cache: the same rows, the same refusals, whoever filled it and however blocks are cut."""

import gzip
import json
import os
import random
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cached_blocks import CachedBlocks
from o41td.fields import FieldPlan
from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_folder import CacheFolder
from o41td.workers.block_cache_rows import CachingReader
from o41td.workers.block_decoder import BlockDecoder
from o41td.workers.messages import DecodeBlock
from o41td.workers.piece import Piece, SourceFormat
from record_writer import write_records
from shard_writer import damage_row_group

ID = FieldPlan(name="id", source="id", dtype="i64")
TOKENS = FieldPlan(name="tokens", source="tokens", dtype="i32", shape=(6,), pad=-1, null=-2)
SHORT = FieldPlan(name="short", source="tokens", dtype="i64", shape=(2,), pad=7)
FIELDS = (ID, TOKENS)
ROWS = 2000


def rows_of(first, count=ROWS):
    """Row r has id r and r mod 9 tokens, r and on; every eleventh list is null."""
    return [
        {"id": row, "tokens": None if row % 11 == 0 else list(range(row, row + row % 9))}
        for row in range(first, first + count)
    ]


SCHEMA = pa.schema({"id": pa.int64(), "tokens": pa.list_(pa.int32())})


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two shards of 2000 rows in each encoding; Parquet's have one row group."""
    folder = tmp_path_factory.mktemp("shards")
    made = [write_records(folder, f"part-{number}", rows_of(ROWS * number), SCHEMA) for number in range(2)]
    return {encoding: [shard[encoding] for shard in made] for encoding in made[0]}


@pytest.fixture
def open_blocks():
    """Opens decoders, with a cache or without, that are closed behind the test."""
    with ExitStack() as stack:
        yield lambda *arguments, **keys: stack.enter_context(closing(CachedBlocks(*arguments, **keys)))


def cuts_of(draw, limit):
    """A block of some slices of the two units, a piece of a few rows or many."""
    slices = []
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(ROWS)
        slices.append((draw.randrange(2), start, draw.randint(start + 1, min(ROWS, start + limit))))
    return slices


@pytest.mark.parametrize("encoding", ["parquet", "jsonl.gz", "msgpack.zstf"])
@pytest.mark.parametrize("chunked", [False, True])
def test_any_blocks_are_the_same_with_a_cold_and_a_warm_cache(open_blocks, shards, tmp_path, encoding, chunked):
    """Slices in any order and of any size, scattered or not: as without a cache; at the end every unit was kept."""
    keys = {"encoding": encoding, "num_rows": ROWS, "max_row_group_bytes": 1 << 20 if chunked else 64 << 20}
    keys["decoding_bytes"] = 40 << 20 if chunked else 1 << 19  # chunks of 200 rows, or the unit whole
    plain = open_blocks(shards[encoding], FIELDS, **keys)
    caches = [open_blocks(shards[encoding], FIELDS, tmp_path, **keys) for _ in range(2)]
    draw = random.Random(f"{encoding} {chunked}")
    misses = 0
    for number in range(24):
        slices = cuts_of(draw, 1500)
        leaving = [draw.getrandbits(60), draw.randrange(100), draw.randint(2, 900)] if number % 2 else None
        rows, bad = plain.decode(*slices, leaving=leaving)
        cached = caches[number % 2]
        assert cached.decode(*slices, leaving=leaving) == (rows, bad)
        assert bad == []
        misses += cached.counts["misses"]
    is_whole = encoding == "parquet" and not chunked
    assert misses == (2 if is_whole else 20 if chunked else 2)
    warm = open_blocks(shards[encoding], FIELDS, tmp_path, **keys)
    assert warm.decode((0, 0, ROWS), (1, 0, ROWS)) == plain.decode((0, 0, ROWS), (1, 0, ROWS))
    assert (warm.counts["misses"], warm._decoder._readers._readers) == (0, {}), "a warm cache opens no shard"


def test_parquet_units_are_good_for_other_lengths_and_dtypes(open_blocks, shards, tmp_path):
    """What is kept is the columns: fields that cut and convert them otherwise find them."""
    open_blocks(shards["parquet"], FIELDS, tmp_path).decode((0, 0, ROWS))
    fields = (SHORT, ID)
    told = open_blocks(shards["parquet"], fields).decode((0, 0, ROWS))
    assert told[1][0][0] == list(range(0, ROWS, 11)), "null lists, which `short` refuses"
    other = open_blocks(shards["parquet"], fields, tmp_path)
    assert other.decode((0, 0, ROWS)) == told
    assert other.counts["misses"] == 0
    narrower = open_blocks(shards["parquet"], (ID,), tmp_path)
    narrower.decode((0, 0, ROWS))
    assert narrower.counts["misses"] == 1


def test_a_changed_shard_is_never_taken_for_the_old_one(open_blocks, tmp_path):
    """A shard written anew with other values: its rows are the new ones, though the old ones are kept."""
    path = tmp_path / "a.parquet"
    for first in (0, 5000, 9000):
        pq.write_table(pa.Table.from_pylist(rows_of(first), SCHEMA), path, row_group_size=ROWS)
        blocks = open_blocks([path], (ID,), tmp_path / "cache")
        rows, _bad = blocks.decode((0, 0, ROWS))
        assert np.frombuffer(b"".join(rows["id"]), np.int64).tolist() == list(range(first, first + ROWS))
        assert blocks.counts["misses"] == 1


def test_a_shard_that_changes_under_a_warm_cache_is_refused(open_blocks, tmp_path):
    """A local shard that is not what was indexed is the same error with a warm cache as without one."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(0), SCHEMA), path, row_group_size=ROWS)
    cached, plain = open_blocks([path], (ID,), tmp_path / "cache"), open_blocks([path], (ID,))
    assert cached.decode((0, 0, ROWS)) == plain.decode((0, 0, ROWS))
    os.utime(path, ns=(1, 1))
    told = cached.decode((0, 0, ROWS))
    assert told[1][0][0] == list(range(ROWS))
    assert told[1][0][1].startswith("ChangedDataError: the shard changed after it was indexed: its modification time")
    assert plain.decode((0, 0, ROWS)) == told
    path.unlink()
    assert cached.decode((0, 0, ROWS)) == plain.decode((0, 0, ROWS))
    assert cached.decode((0, 0, ROWS))[1][0][1].startswith("MissingShardError")


@pytest.mark.parametrize("chunked", [False, True])
def test_values_that_do_not_fit_are_told_alike(open_blocks, tmp_path, chunked):
    """Rows that do not fit are the same ones, in the same words, from the file, a cold and a warm cache."""
    values = [2**40 + row if row in (5, 17, 1200, 1999) else row for row in range(ROWS)]
    pq.write_table(pa.table({"id": values}), tmp_path / "a.parquet", row_group_size=ROWS)
    fields = (FieldPlan(name="id", source="id", dtype="i32"),)
    keys = {"max_row_group_bytes": 1 << 20, "decoding_bytes": 40 << 20} if chunked else {}
    plain = open_blocks([tmp_path / "a.parquet"], fields, **keys)
    cold, warm = (open_blocks([tmp_path / "a.parquet"], fields, tmp_path / "cache", **keys) for _ in range(2))
    for slices in ([(0, 0, ROWS)], [(0, 3, 1300), (0, 1900, ROWS)], [(0, 17, 18)]):
        told = plain.decode(*slices)
        assert len(told[1]) > 0
        assert cold.decode(*slices) == told
        assert warm.decode(*slices) == told
    assert warm.counts["misses"] == 0
    assert "1099511627781" in plain.decode((0, 0, ROWS))[1][0][1]


def test_a_damaged_row_group_is_told_alike_and_not_kept(open_blocks, tmp_path):
    """The damaged unit's rows are bad each time, in the same words; its neighbour's are there."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(0), SCHEMA), path, row_group_size=1000)
    damage_row_group(path, 1)
    told = open_blocks([path], FIELDS).decode((0, 0, 1000), (1, 100, 900))
    assert told[1][0][0] == list(range(1000, 1800))
    for _ in range(2):
        blocks = open_blocks([path], FIELDS, tmp_path / "cache")
        for _ in range(2):
            assert blocks.decode((0, 0, 1000), (1, 100, 900)) == told
    assert len(list((tmp_path / "cache").rglob("*.block"))) == 1


def test_bad_records_are_told_alike(open_blocks, tmp_path):
    """Lines that are no records cost their own rows only, from a cold and a warm cache in the same words."""
    lines = [json.dumps({"id": row}) for row in range(ROWS)]
    lines[450], lines[451], lines[1300] = "{broken", "{}", '{"id": 1e99}'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    keys = {"encoding": "jsonl.gz", "num_rows": ROWS, "decoding_bytes": 40 << 20}
    plain = open_blocks([path], (ID,), **keys)
    for _ in range(2):
        cached = open_blocks([path], (ID,), tmp_path / "cache", **keys)
        for slices in ([(0, 0, 700)], [(0, 440, 455)], [(0, 700, ROWS)], [(0, 1250, 1350)]):
            assert cached.decode(*slices) == plain.decode(*slices)
    assert [rows for rows, _error in plain.decode((0, 0, ROWS))[1]] == [[450], [451], [1300]]
    assert len(list((tmp_path / "cache").rglob("*.block"))) == 8  # of ten chunks of 200


@pytest.mark.parametrize("place", [100, -100, 0.5])
def test_a_damaged_file_is_decoded_anew(open_blocks, shards, tmp_path, place):
    """A flipped byte in the rows or the index of a kept unit: right rows, the file is removed, then kept again."""
    expected = open_blocks(shards["parquet"], FIELDS).decode((0, 0, ROWS))
    open_blocks(shards["parquet"], FIELDS, tmp_path).decode((0, 0, ROWS))
    (path,) = tmp_path.rglob("*.block")
    data = bytearray(path.read_bytes())
    data[int(len(data) * place) if isinstance(place, float) else place] ^= 0x10
    path.write_bytes(data)
    blocks = open_blocks(shards["parquet"], FIELDS, tmp_path)
    assert blocks.decode((0, 0, ROWS)) == expected
    counts = blocks.counts
    assert (counts["hits"], counts["broken_files"]) == (0, 1)
    assert blocks.decode((0, 0, ROWS)) == expected
    assert open_blocks(shards["parquet"], FIELDS, tmp_path).decode((0, 0, ROWS)) == expected
    assert len(list(tmp_path.rglob("*.block"))) == 1


def test_a_careful_worker_looks_at_no_cache(open_blocks, shards, tmp_path):
    """Where a block has ended workers before, the shard itself is read, though what is kept is known."""
    blocks = open_blocks(shards["parquet"], FIELDS, tmp_path)
    assert not blocks.is_kept(0, 10, 20)
    blocks.decode((0, 0, ROWS))
    assert blocks.is_kept(0, 10, 20)
    assert not blocks.is_kept(1, 10, 20)
    assert blocks.counts["misses"] == 1
    assert blocks.decode((0, 0, ROWS), careful=True) == blocks.decode((0, 0, ROWS))
    assert blocks.counts["hits"] == 1


def test_row_groups_of_a_few_rows_are_not_kept(open_blocks, tmp_path):
    """They are decoded many at a time, which is quicker; a slice of one is not kept either."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows_of(0), SCHEMA), path, row_group_size=100)
    blocks = open_blocks([path], FIELDS, tmp_path / "cache", decoding_bytes=4000)
    slices = [(3, 20, 100), *((unit, 0, 100) for unit in range(4, 9))]
    assert blocks.decode(*slices) == open_blocks([path], FIELDS, decoding_bytes=4000).decode(*slices)
    assert not (tmp_path / "cache").exists()


def test_remote_row_groups_of_a_few_rows_that_are_kept_are_read_from_there(tmp_path):
    """Three small row groups of an object, kept one by one: a block of them is decoded though no store is reached."""
    source, cache = SourceFormat("web", (ID,), "parquet"), BlockCache(CacheFolder(str(tmp_path)))
    shard = ["s3://bucket/a.parquet", 1000, 0, None]
    pieces = [Piece(group, *shard, group, 4, 100, 4 * group, 0, 4, 4 * group, "etag") for group in range(3)]
    caching = CachingReader(cache, [source], lambda _source, _piece: None, max_row_group_bytes=1 << 20)
    for piece in pieces:
        table = pa.table({"id": np.arange(4) + 100 * piece.number})
        caching.keep(0, piece, table)
    slot = {"id": np.zeros(12, np.int64)}
    decoder = BlockDecoder(slot, 12, [source], max_row_group_bytes=1 << 20, max_held_units=2, cache=cache)
    done = decoder.decode(DecodeBlock(7, 0, 0, 12, None, False, [list(piece) for piece in pieces]), lambda _: None)
    assert (done.rows, done.bad_rows) == (12, [])
    assert slot["id"].tolist() == [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203]
    assert (cache.counts.misses, cache.counts.hits) == (3, 3)
    decoder.close()


def test_kept_columns_that_other_fields_cannot_take_are_refused_as_the_shard_is(open_blocks, tmp_path):
    """A column of times was kept for an i64 field; an f32 field is told by the file that it cannot take it."""
    pq.write_table(pa.table({"t": pa.array(range(ROWS), pa.timestamp("ms"))}), tmp_path / "a.parquet")
    for dtype in ("i64", "f32"):
        field = FieldPlan(name="t", source="t", dtype=dtype)
        told = open_blocks([tmp_path / "a.parquet"], (field,)).decode((0, 0, ROWS))
        assert open_blocks([tmp_path / "a.parquet"], (field,), tmp_path / "cache").decode((0, 0, ROWS)) == told
    assert told[1][0][1].startswith("SchemaError")
