"""Batches that lie in one piece in the arena are handed out as they lie there, and are the user's as any other."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from loader_processes import wait_until
from o41td import ProjectedField
from shard_writer import shard_table
from stream_reference import Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

BATCH = 8
UNSHUFFLED = {"batch_size": BATCH}
WITHIN_BLOCKS = {"batch_size": BATCH, "buffer_rows": 4}  # a batch that is not at a block's edge lies within it


@pytest.fixture
def shards_of_groups(tmp_path) -> Callable[[str, list[int]], Path]:
    """Writes a shard of row groups of these sizes."""

    def written(name: str, groups: list[int]) -> Path:
        path = tmp_path / f"{name}.parquet"
        table = shard_table(0, sum(groups))
        with pq.ParquetWriter(path, table.schema) as writer:
            first = 0
            for rows in groups:
                writer.write_table(table.slice(first, rows))
                first += rows
        return path

    return written


def _shared_mappings() -> list[tuple[int, int]]:
    """The address ranges of this process that a file without a name, shared with others, is mapped to."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, flags, _, _, inode, *name = line.split(maxsplit=5)
        if flags == "rw-s" and inode != "0" and name and name[0].startswith(("/dev/shm/", "/memfd:o41td")):
            start, stop = (int(end, 16) for end in place.split("-"))
            found.append((start, stop))
    return found


def _is_lent(batch) -> bool:
    address = int(batch["tokens"].__array_interface__["data"][0])
    return any(start <= address < stop for start, stop in _shared_mappings())


@pytest.mark.parametrize("how", [UNSHUFFLED, WITHIN_BLOCKS], ids=["unshuffled", "shuffled within blocks"])
def test_batches_in_one_piece_are_lent_and_may_be_written_to(how, write_shards, open_stream):
    """Most batches lie in the arena, all hold the order's rows, and what is written to them is seen nowhere else."""
    config = stream_config(stage_of(write_shards([600, 700]), **how), block_rows=256)
    reference = Reference(config)
    stream = open_stream(config)
    num_lent = 0
    for number in range(reference.num_batches()):
        batch = reference.check(stream.next(), number=number)
        num_lent += _is_lent(batch)
        for array in batch.arrays().values():
            array[...] = 1
    assert stream.next() is None
    assert num_lent > reference.num_batches() // 2


def test_all_batches_are_kept(write_shards, open_stream):
    """Who keeps every batch gets copies when no more slots can be spared: none changes, and the stream goes on."""
    config = stream_config(stage_of(write_shards([2000]), **UNSHUFFLED), block_rows=64)
    reference = Reference(config)
    stream = open_stream(config)
    kept = list(stream)
    assert len(kept) == reference.num_batches()
    lent = [_is_lent(batch) for batch in kept]
    assert lent[0]
    assert not lent[-1]
    for number, batch in enumerate(kept):
        reference.check(batch, number=number)


def test_slots_come_back_when_batches_go(write_shards, open_stream):
    """Those of all batches but the last, in whose slot more might be, are free at the end once nothing is kept."""
    config = stream_config(stage_of(write_shards([2000]), **UNSHUFFLED), block_rows=64, lookahead=4)
    stream = open_stream(config)
    kept = list(stream)
    arena = stream.stats()["arena"]
    assert arena["free"] < arena["slots"] - 1
    kept.clear()
    wait_until(
        lambda: stream.stats()["arena"]["free"] >= arena["slots"] - 1, "slots are held for batches that are gone"
    )


def test_one_batch_is_kept_for_good(write_shards, open_stream):
    """The first batch stays as it is while hundreds of others come and go, and most of those are lent too."""
    config = stream_config(stage_of(write_shards([1200, 1200]), **UNSHUFFLED), block_rows=64, threads=2)
    reference = Reference(config)
    stream = open_stream(config)
    first = reference.check(stream.next(), number=0)
    assert _is_lent(first)
    num_lent = 0
    for number in range(1, reference.num_batches()):
        batch = reference.check(stream.next(), number=number)
        num_lent += _is_lent(batch)
        batch["tokens"][...] = -9
    reference.check(first, number=0)
    assert num_lent > reference.num_batches() // 2


def test_rows_that_were_written_to_come_as_they_are_when_the_stream_goes_back(write_shards, open_stream):
    """Batches are overwritten, then the stream goes back to each of its first places: the rows are the file's again."""
    config = stream_config(stage_of(write_shards([500]), **UNSHUFFLED), block_rows=128, threads=2)
    reference = Reference(config)
    stream = open_stream(config)
    for place in (0, 3, 1, 0):
        stream.seek(place)
        for number in range(place, place + 6):
            batch = reference.check(stream.next(), number=number)
            assert _is_lent(batch)
            for array in batch.arrays().values():
                array[...] = 0


def test_sources_that_stay_decoded_are_not_lent(write_shards, open_stream):
    """A small source of an infinite stage is decoded once: what is written to its batches is not there next epoch."""
    config = stream_config(stage_of(write_shards([64]), infinite=True, **UNSHUFFLED))
    reference = Reference(config)
    stream = open_stream(config)
    for number in range(40):
        batch = reference.check(stream.next(), number=number)
        assert not _is_lent(batch)
        for array in batch.arrays().values():
            array[...] = 0
    assert stream.stats()["blocks_decoded"] == 1


def test_a_batch_outlives_its_coordinator_and_its_stream(write_shards, open_stream):
    """A lent batch stays as it is when the coordinator is killed and replaced, and when the stream is closed."""
    config = stream_config(stage_of(write_shards([800]), **UNSHUFFLED), block_rows=128)
    reference = Reference(config)
    stream = open_stream(config)
    kept = [reference.check(stream.next(), number=0)]
    assert _is_lent(kept[0])
    os.kill(stream.stats()["coordinator"]["pid"], signal.SIGKILL)
    kept += [reference.check(stream.next(), number=number) for number in range(1, 60)]
    assert stream.stats()["coordinator_restarts"] == 1
    assert len(_shared_mappings()) == 2
    stream.close()
    for number, batch in enumerate(kept):
        reference.check(batch, number=number)
    kept[0]["tokens"][...] = 3
    assert (kept[0]["tokens"] == 3).all()
    del batch
    kept.clear()
    gc.collect()
    assert not _shared_mappings()


def test_a_batch_kept_behind_the_end_keeps_no_arena(write_shards, open_stream):
    """One small batch that is kept when its stream is closed keeps some pages, and not the megabytes around them."""
    fields = (ProjectedField(name="id", dtype="i64"), ProjectedField(name="tokens", dtype="i32", length=8, pad=-1))
    config = stream_config(stage_of(write_shards([4000, 4000]), **UNSHUFFLED), fields=fields, block_rows=4000)
    stream = open_stream(config)
    kept = stream.next()
    expected = {name: array.copy() for name, array in kept.arrays().items()}
    assert _is_lent(kept)
    stream.close()
    address = int(kept["tokens"].__array_interface__["data"][0])
    resident_kib = _resident_kib(address)
    assert 0 < resident_kib <= 64
    for name, values in expected.items():
        np.testing.assert_array_equal(kept[name], values)


def test_a_stage_whose_batches_lie_in_many_blocks_goes_on_beside_one_that_lends(shards_of_groups, open_stream):
    """Where a batch of one stage takes nearly the whole arena, it is not refused for what another stage might lend."""
    many = stage_of([shards_of_groups("many", [100] * 4 + [1, 1, 1] + [100] * 4)], batch_size=8, name="many")
    one = stage_of([shards_of_groups("one", [100] * 6)], batch_size=1, name="one")
    config = stream_config(many, one, block_rows=101, lookahead=1)
    reference = Reference(config)
    stream = open_stream(config)
    stream.advance("one")
    kept = [stream.next() for _ in range(250)]
    stream.advance("many")
    for number in range(reference.num_batches()):
        reference.check(stream.next(), number=number, batch_index=250 + number)
    assert stream.next() is None
    for number, batch in enumerate(kept):
        reference.check(batch, number=number, stage=1)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_of_batches_stays_as_it_was(seed, write_shards, open_stream):
    """Arrays, views, memoryviews and Arrow batches are kept for a while; others are overwritten, or asked for anew."""
    rng = random.Random(seed)
    shards = write_shards([900], row_group_rows=100)
    config = stream_config(
        stage_of(shards, batch_size=rng.choice([3, 8]), buffer_rows=rng.choice([None, 4])),
        block_rows=rng.choice([7, 64]),
        prefetch_batches=rng.choice([1, 8]),
    )
    reference = Reference(config)
    stream = open_stream(config)
    kept: list[tuple[int, Callable[[], list[int]], list[int]]] = []
    number = 0
    for step in range(300):
        batch = reference.check(stream.next(), number=number)
        ids = batch["id"].tolist()
        kept.append((step + rng.choice([0, 1, 3, 20, 300]), _ids_behind(rng.randrange(4), batch), ids))
        if rng.random() < 0.5:
            kept.pop()
            for array in batch.arrays().values():
                array[...] = 0
        for _, ids_now, expected in kept:
            assert ids_now() == expected
        kept = [item for item in kept if item[0] > step]
        number += 1
        if rng.random() < 0.03 or number == reference.num_batches():
            number = rng.randrange(number)
            stream.seek(number)


def _ids_behind(kind: int, batch) -> Callable[[], list[int]]:
    """What tells a batch's ids, and holds no more of it than a view, a memoryview, an Arrow batch or an array."""
    if kind == 0:
        return batch["id"][:].view().tolist
    if kind == 1:
        return memoryview(batch["id"]).tolist
    if kind == 2:
        return batch.to_arrow().column("id").to_pylist
    return batch["id"].tolist


def _resident_kib(address: int) -> int:
    """What of the mapping at an address is in memory."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            start, stop = (int(end, 16) for end in head.split("-"))
            is_there = start <= address < stop
        elif is_there and head == "Rss:":
            return int(line.split()[1])
    raise AssertionError("nothing is mapped there")
