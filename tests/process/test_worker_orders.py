"""A worker by itself, given its orders by a test in the coordinator's place."""

from __future__ import annotations

import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import faulty_proxy as faults
from o41td import ProjectedField
from o41td.shm.layout import plan_arena
from o41td.shm.segment import create_segment, map_arena
from o41td.workers.channel import Channel
from o41td.workers.messages import AttachArena, BlockDecoded, DecodeBlock
from o41td.workers.supervisor import ChildLog, start_child

NUM_BLOCKS, ROWS = 6, 8192


@pytest.fixture
def worker():
    """A worker's channel."""
    log = ChildLog()
    child = start_child("o41td.workers", ["--worker", "0", "--owner", str(os.getpid())], log=log)
    yield Channel(child.connection, blocking=True)
    child.kill()
    child.wait()
    child.close()
    child.connection.close()
    log.close()


def test_orders_that_come_before_the_arena_is_mapped_are_fetched_at_once(bucket, tmp_path, worker):
    """Given its arena and six orders in one go, it asks the store for all six blocks before it has any answer."""
    values = np.random.default_rng(0).integers(0, 1 << 62, (NUM_BLOCKS, ROWS))
    all_asked = threading.Barrier(NUM_BLOCKS)
    orders = []
    for number, column in enumerate(values):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"id": column}), path)
        uri, size = bucket.put(f"data/{path.name}", path.read_bytes()), path.stat().st_size
        bucket.proxy.fail(faults.behind(all_asked, timeout_s=30), path=path.name, ranged=True, least_bytes=60_000)
        piece = [0, uri, size, 0, ROWS, 0, ROWS, 8 * ROWS, 0, 0, ROWS, 0, None]
        orders.append(DecodeBlock(number, 0, number, ROWS, None, careful=False, pieces=[piece]))
    layout = plan_arena([("id", "<i8", ())], num_slots=NUM_BLOCKS, block_rows=ROWS)
    segment = create_segment(layout.total_bytes)
    attach = AttachArena(
        layout=layout.to_record(),
        sources=[[ProjectedField(name="id", dtype="i64").plan().to_record()]],
        source_names=["web"],
        encodings=["parquet"],
        chains=[None],
        columns=[None],
        max_row_group_bytes=64 << 20,
        max_held_units=4,
        cache_dir=None,
        cache_limit_bytes=None,
        storage=bucket.storage.secret_record(),
        places=[None],
        cluster=None,
    )
    worker.send(attach, *orders, descriptor=segment.fd)
    decoded = []
    while len(decoded) < NUM_BLOCKS:
        answer = worker.receive(timeout_s=60)
        decoded += [answer.block_id] if isinstance(answer, BlockDecoded) else []
    assert decoded == list(range(NUM_BLOCKS))
    assert not all_asked.broken
    arena = map_arena(segment.fd, layout, writable=False)
    assert np.array_equal(arena.region("id").reshape(NUM_BLOCKS, ROWS), values)
    arena.close()
    segment.close()
