"""Batches own their memory: writable, contiguous, never changed under the user, used again when dropped."""

from __future__ import annotations

import gc
import resource
import threading

import numpy as np
import psutil
import pytest

from loader_processes import processes_of_loaders, wait_until
from o41td import StreamClosedError, open_batch_stream
from stream_reference import Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def _address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_kept_batches_never_change_and_dropped_ones_are_used_again(write_shards, open_stream):
    """K5: 300 kept batches, scribbled on every second: each is as it was left; a dropped one's memory comes again."""
    config = stream_config(stage_of(write_shards([60]), batch_size=4, buffer_rows=16, infinite=True))
    reference = Reference(config)
    stream = open_stream(config)
    kept = []
    for number in range(300):
        batch = reference.check(stream.next(), number=number)
        for array in batch.arrays().values():
            assert array.flags.writeable
            assert array.flags.c_contiguous
            assert array.flags.aligned
        if number % 2:
            for array in batch.arrays().values():
                array[...] = 1
        kept.append(batch)
    for number, batch in enumerate(kept):
        if number % 2:
            assert all((array == 1).all() for array in batch.arrays().values())
        else:
            reference.check(batch, number=number)
    addresses = {_address_of(batch["tokens"]) for batch in kept}
    assert len(addresses) == 300
    view = kept[0]["tokens"][1:]  # holds batch 0's memory though the batch itself goes
    expected = view.copy()
    kept.clear()
    del batch, array
    gc.collect()
    seen = set()
    for number in range(300, 360):
        batch = reference.check(stream.next(), number=number)
        seen.add(_address_of(batch["tokens"]))
        batch["tokens"][...] = -5
    assert len(seen) < 20
    np.testing.assert_array_equal(view, expected)


def test_batches_outlive_the_stream(write_shards):
    """What was handed out before close() stays good behind it, and can be written to."""
    config = stream_config(stage_of(write_shards([64])))
    reference = Reference(config)
    with open_batch_stream(config) as stream:
        batches = list(stream)
    del stream
    gc.collect()
    for number, batch in enumerate(batches):
        reference.check(batch, number=number)
        batch["id"][...] += 1


def test_2000_kept_batches_need_no_descriptors(write_shards, open_stream):
    """K5: 2 000 batches in a list under a limit of 256 open files; not one descriptor is taken for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stream = open_stream(stream_config(stage_of(write_shards([50]), batch_size=2, infinite=True)))
    stream.next()
    before = psutil.Process().num_fds()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        kept = [stream.next() for _ in range(2000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert psutil.Process().num_fds() == before
    assert ids_of(kept[:24]) == [*range(2, 50)]
    assert ids_of(kept[-3:]) == [(2 * (1998 + k) + j) % 50 for k in range(3) for j in range(2)]


def test_memory_stays_flat_over_many_passes(write_shards, open_stream):
    """H9: forty passes of an endless stage: no process grows by more than 5 % and 2 MiB behind the fifth."""
    paths = write_shards([400], row_group_rows=50, longest=8)
    stream = open_stream(stream_config(stage_of(paths, batch_size=40, buffer_rows=128, infinite=True), block_rows=50))
    processes = [psutil.Process(), *processes_of_loaders()]
    assert len(processes) == 3
    for _ in range(50):
        stream.next()
    before = [process.memory_info().rss for process in processes]
    for _ in range(350):
        stream.next()
    after = [process.memory_info().rss for process in processes]
    for process, was, now in zip(processes, before, after, strict=True):
        assert now < was * 1.05 + (2 << 20), process


def test_a_stream_that_is_dropped_ends_its_loader(write_shards):
    """Without close(), the last reference to a stream going ends its processes, though a batch of it is kept."""
    stream = open_batch_stream(stream_config(stage_of(write_shards([64]))))
    batch = stream.next()
    loader = processes_of_loaders()
    assert len(loader) == 2
    del stream
    gc.collect()
    _, alive = psutil.wait_procs(loader, timeout=5)
    assert not alive
    assert batch["id"].tolist() == list(range(8))
    assert batch.coordinates()["row"].tolist() == list(range(8))


def test_a_closed_stream_says_so(write_shards):
    """close() twice is fine; next, moves and figures are refused behind it; where it was is still known."""
    stream = open_batch_stream(stream_config(stage_of(write_shards([64]))))
    batch = stream.next()
    stream.close()
    stream.close()
    for use in (stream.next, stream.stats, lambda: stream.seek(0), lambda: next(iter(stream))):
        with pytest.raises(StreamClosedError, match="closed"):
            use()
    assert stream.checkpoint().batches_yielded == 1
    assert batch.coordinates()["row"].tolist() == list(range(8))


def test_close_ends_a_next_that_waits_in_another_thread(write_shards, faulty_host, open_stream):
    """A thread inside next(), whose batch does not come, is told that the stream is closed; it does not hang."""
    stream = open_stream(stream_config(stage_of(write_shards([8, 8]), batch_size=8)))
    assert len(list(stream)) == 2
    faulty_host.order("part-00000.parquet", "SIGSTOP")
    stream.seek(0)
    caught = []

    def use() -> None:
        with pytest.raises(StreamClosedError) as told:
            stream.next()
        caught.append(told.value)

    thread = threading.Thread(target=use)
    thread.start()
    wait_until(lambda: faulty_host.times_done("part-00000.parquet"), "the worker has not stopped")
    stream.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_two_threads_in_next_are_refused_not_mixed(write_shards, faulty_host, open_stream):
    """I6: the second thread inside next() is refused; the first gets its batch; afterwards either may go on."""
    config = stream_config(stage_of(write_shards([8, 8]), batch_size=8))
    stream = open_stream(config)
    assert len(list(stream)) == 2
    faulty_host.order("part-00000.parquet", "sleep:1", times=1)
    stream.seek(0)
    got = []
    thread = threading.Thread(target=lambda: got.append(stream.next()))
    thread.start()
    wait_until(lambda: faulty_host.times_done("part-00000.parquet"), "the worker has not begun")
    with pytest.raises(StreamClosedError, match="another thread"):
        stream.next()
    thread.join(10)
    reference = Reference(config)
    reference.check(got[0], number=0)
    reference.check(stream.next(), number=1)


def test_rates_are_those_of_the_last_seconds(write_shards, open_stream):
    """Rates cover no more time than the stream has run, and all that came in it: here everything so far."""
    stream = open_stream(stream_config(stage_of(write_shards([400]), batch_size=8, infinite=True)))
    for _ in range(100):
        stream.next()
    wait_until(lambda: stream.stats()["recent"]["window_s"] > 0, "a look at the counters")
    figures = stream.stats()
    assert 0 < figures["recent"]["window_s"] <= figures["uptime_s"] + 0.5
    (rank,) = figures["ranks"]
    most = figures["rows"] / figures["recent"]["window_s"]
    assert 0 <= rank["rows_per_s"] <= 1.5 * most
