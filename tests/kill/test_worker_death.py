"""Workers that are killed, crash, leave or hang: the same bytes come, or an error that names the block."""

from __future__ import annotations

import os
import signal

import pytest

from loader_processes import children_running, is_gone, processes_of_loaders, wait_until, worker_pids
from o41td import CoordinatorError, CorruptDataError, WorkerCrashError, open_batch_stream
from stream_reference import Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture
def config(write_shards):
    """A shuffled set of 12 shards in small slots, read by two workers."""
    return stream_config(stage_of(write_shards([50] * 12), batch_size=10, buffer_rows=100), threads=2, block_rows=16)


def test_a_worker_killed_at_any_time_costs_no_byte(config, open_stream):
    """C1: SIGKILL and SIGSEGV of one worker and of both, before the first batch, midway and behind the last."""
    reference = Reference(config)
    stream = open_stream(config)
    for moment, number, victims in (
        (0, signal.SIGKILL, (0,)),
        (17, signal.SIGSEGV, (1,)),
        (30, signal.SIGKILL, (0, 1)),
        (60, signal.SIGKILL, (0,)),
    ):
        stream.seek(0)
        for at in range(moment):
            reference.check(stream.next(), number=at)
        pids = worker_pids(stream)
        for victim in victims:
            os.kill(pids[victim], number)
        reference.check_rest(stream, position=moment)
        wait_until(
            lambda pids=pids, victims=victims: all(is_gone(pids[v]) for v in victims), "a dead worker is not reaped"
        )
        wait_until(lambda pids=pids: len(set(worker_pids(stream)) | set(pids)) > 2, "no worker was started anew")
    assert stream.stats()["coordinator_restarts"] == 0
    assert sum(worker["restarts"] for worker in stream.stats()["workers"]) == 5
    assert len(children_running("o41td.workers")) == 2


def test_workers_killed_again_and_again_while_it_runs(config, open_stream):
    """Six kills at moments of the run's own, of whichever worker lives: the whole sequence is right."""
    reference = Reference(config)
    stream = open_stream(config)
    for at in range(60):
        if at % 10 == 3:
            living = children_running("o41td.workers")
            if living:
                living[at // 10 % len(living)].kill()
        reference.check(stream.next(), number=at)
    assert stream.next() is None
    assert stream.stats()["coordinator_restarts"] == 0


@pytest.mark.parametrize(
    ("act", "expected", "words"),
    [
        ("SIGKILL", {"signal": 9}, "out of memory is the likely cause"),
        ("exit", {"exit_code": 0}, "code 0"),
        ("raise", {"exit_code": 1}, "code 1"),
        ("memory", {"exit_code": 76}, "ran out of memory"),
    ],
)
@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_shard_that_always_kills_its_worker_is_an_error_naming_it(
    write_shards, faulty_host, open_stream, act, expected, words
):
    """C3: three deaths of a block: every batch before it arrives, then WorkerCrashError; others go on behind it."""
    paths = write_shards([16] * 4)
    stream = open_stream(stream_config(stage_of(paths), block_rows=16))
    assert len(list(stream)) == 8
    faulty_host.order("part-00001.parquet", act)
    stream.seek(0)
    ids = []
    with pytest.raises(WorkerCrashError) as caught:
        ids.extend(batch["id"].tolist() for batch in stream)
    assert ids == [list(range(8)), list(range(8, 16))]
    error = caught.value
    assert (error.source, error.shard, error.row_group) == ("stage0/source0", str(paths[1]), 0)
    assert {"signal": error.signal, "exit_code": error.exit_code} == {"signal": None, "exit_code": None} | expected
    assert error.attempts == 3
    assert words in str(error)
    assert str(paths[1]) in str(error)
    with pytest.raises(WorkerCrashError):
        stream.next()
    assert stream.checkpoint().batches_yielded == 2
    stream.seek(4)
    assert ids_of(list(stream)) == list(range(32, 64))


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_killer_among_shards_of_one_slot_is_told_apart(write_shards, faulty_host, open_stream):
    """Four small shards in one slot, the third kills: it is the one that the error names."""
    paths = write_shards([16] * 4)
    stream = open_stream(stream_config(stage_of(paths)))
    assert len(list(stream)) == 8
    faulty_host.order("part-00002.parquet", "SIGKILL")
    stream.seek(0)
    with pytest.raises(WorkerCrashError) as caught:
        list(stream)
    assert str(paths[2]) in str(caught.value)
    assert caught.value.shard == str(paths[2])


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_worker_that_starts_slowly_has_not_stalled(write_shards, faulty_host, open_stream):
    """stall_timeout_s is about work given out: a worker that needs 5 s to start is left alone."""
    faulty_host.order("start", "sleep:5", times=1)
    stream = open_stream(stream_config(stage_of(write_shards([16])), stall_timeout_s=4))
    assert ids_of(list(stream)) == list(range(16))
    assert [worker["restarts"] for worker in stream.stats()["workers"]] == [0]


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_worker_killed_while_it_reads_a_footer_is_replaced(write_shards, faulty_host, open_stream):
    """At open, one death over a footer is forgiven; a shard whose footer always kills is refused by name."""
    paths = write_shards([16] * 3)
    faulty_host.order("part-00001.parquet", "SIGKILL", times=1)
    assert ids_of(list(open_stream(stream_config(stage_of(paths))))) == list(range(48))
    other = write_shards([16] * 3, name="other")
    faulty_host.order("part-00001.parquet", "SIGSEGV")
    with pytest.raises(CorruptDataError) as caught:
        open_batch_stream(stream_config(stage_of(other)))
    assert caught.value.shard == str(other[1])


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_workers_that_cannot_start_are_an_error_with_their_last_words(write_shards, faulty_host):
    """A worker that fails at its start, every time: CoordinatorError soon, with what it said, and nothing left."""
    faulty_host.order("start", "fail")
    with pytest.raises(CoordinatorError, match=r"workers cannot be started.*code 1") as caught:
        open_batch_stream(stream_config(stage_of(write_shards([16]))))
    assert "a fault on order" in str(caught.value)


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_close_does_not_wait_for_a_worker_that_hangs(write_shards, faulty_host, open_stream):
    """SIGSTOPped worker, default stall timeout of 120 s: close() ends it at once."""
    stream = open_stream(stream_config(stage_of(write_shards([16]))))
    list(stream)
    faulty_host.order("part-00000.parquet", "SIGSTOP")
    stream.seek(0)
    wait_until(lambda: faulty_host.times_done("part-00000.parquet"), "the worker has not stopped")
    loader = processes_of_loaders()
    stream.close()
    assert not any(process.is_running() for process in loader)
