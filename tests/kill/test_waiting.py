"""What hangs is named, what is late is replaced, and time that nobody had counts against nobody."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from loader_processes import DEADLINE_S, children_running, kill, wait_until, worker_pids
from o41td import CoordinatorError, StorageError, WorkerCrashError, open_batch_stream
from stream_reference import ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_read_that_hangs_is_named_while_it_hangs_and_in_the_error(write_shards, faulty_host, open_stream, caplog):
    """C5: the watchdog says which worker reads which shard; the third time it is an error; all before it arrives."""
    paths = write_shards([16] * 2)
    stream = open_stream(stream_config(stage_of(paths), block_rows=16, stall_timeout_s=3))
    first, _second = worker_pids(stream)[0], list(stream)
    faulty_host.order("part-00001.parquet", "sleep:1000")
    caplog.clear()
    stream.seek(0)
    ids = []
    with pytest.raises(WorkerCrashError) as caught:
        ids.extend(batch["id"].tolist() for batch in stream)
    assert [row for batch in ids for row in batch] == list(range(16))
    assert (caught.value.shard, caught.value.row_group, caught.value.attempts) == (str(paths[1]), 0, 3)
    assert "made no progress for 3 s (stall_timeout_s)" in str(caught.value)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    named = f"worker 0 (pid {first}) has been reading row group 0 of {paths[1]} for "
    assert any("the stream has waited" in text and "for its batch 2" in text and named in text for text in warnings)


def test_a_coordinator_that_stops_is_named_while_it_is_waited_for(write_shards, open_stream, caplog):
    """The watchdog says that it does not answer; it is replaced after stall_timeout_s; the same rows come."""
    stream = open_stream(stream_config(stage_of(write_shards([16] * 2)), block_rows=16, stall_timeout_s=6))
    pid = stream.stats()["coordinator"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    stream.seek(0)
    assert ids_of(list(stream)) == list(range(32))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"its coordinator (pid {pid}) does not answer" in text for text in warnings)
    assert stream.stats()["coordinator_restarts"] == 1


def test_a_stream_that_flows_or_that_nobody_reads_says_nothing(write_shards, open_stream, caplog):
    """No warning in ordinary use, nor while nobody asks for a batch for longer than the watchdog waits."""
    stream = open_stream(stream_config(stage_of(write_shards([16] * 4), infinite=True), stall_timeout_s=20))
    for _ in range(8):
        stream.next()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_footer_that_hangs_is_named_while_it_hangs_and_in_the_error(write_shards, faulty_host, caplog):
    """At open: a warning with the shard, then an error that says it hangs, and not that it is damaged."""
    paths = write_shards([16] * 2)
    faulty_host.order("part-00001.parquet", "sleep:1000")
    with pytest.raises(StorageError, match="reading the footer hangs: it made no progress for 3 s") as caught:
        open_batch_stream(stream_config(stage_of(paths), stall_timeout_s=3))
    assert str(paths[1]) in str(caught.value)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("opening waits: worker 0 has been reading the footer of" in text for text in warnings)
    assert all(str(paths[1]) in text for text in warnings)


_JOB = """
import sys, sitecustomize
from o41td import BatchStreamConfig, open_batch_stream
with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    print(stream.next()["id"].tolist(), flush=True)
    sys.stdin.readline()
    print([row for batch in stream for row in batch["id"].tolist()] == list(range(8, 128)))
    stats = stream.stats()
    print(stats["coordinator_restarts"], [worker["restarts"] for worker in stats["workers"]], stats["uptime_s"] < 600)
"""


@pytest.fixture
def job(write_shards, tmp_path):
    """Starts a script that takes a batch, waits for a line, and takes the rest; one worker, stall_timeout_s=4."""
    config = stream_config(stage_of(write_shards([32] * 4)), block_rows=16, prefetch_batches=1, stall_timeout_s=4)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    return lambda: subprocess.Popen(
        [sys.executable, "-c", _JOB, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd="/",
    )  # fmt: skip


def test_a_wall_clock_set_wrong_by_an_hour_changes_nothing(faulty_host, job):
    """M15: for all processes, in the middle, with a short stall timeout: no restart, sane figures, no word."""
    with job() as process:
        assert process.stdout.readline() == f"{list(range(8))}\n"
        faulty_host.set_clock(3600)
        out, err = process.communicate("\n", timeout=DEADLINE_S)
    assert (out, err, process.returncode) == ("True\n0 [0] True\n", "", 0)


def test_a_job_that_is_suspended_goes_on_as_if_nothing_had_been(faulty_host, job):
    """SIGSTOP to the whole group amid a read, SIGCONT later than stall_timeout_s: no process is replaced."""
    with job() as process:
        assert process.stdout.readline() == f"{list(range(8))}\n"
        faulty_host.order("part-00003.parquet", "sleep:0.4", times=1)
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: faulty_host.times_done("part-00003.parquet"), "the shard is not read")
        os.killpg(process.pid, signal.SIGSTOP)
        group = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        stopped_s = time.monotonic()
        wait_until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in group), "the group runs on")
        wait_until(lambda: time.monotonic() - stopped_s > 5, "time stands still")
        os.killpg(process.pid, signal.SIGCONT)
        out, _err = process.communicate(timeout=DEADLINE_S)
    assert (out, process.returncode) == ("True\n0 [0] True\n", 0)


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_workers_killed_again_and_again_while_they_start_are_started_until_one_lives(
    write_shards, faulty_host, open_stream
):
    """Five in a row, two more than would be given up had they left by themselves: the stream opens."""
    faulty_host.order("start", "SIGKILL", times=5)
    stream = open_stream(stream_config(stage_of(write_shards([16]))))
    assert ids_of(list(stream)) == list(range(16))
    assert stream.stats()["workers"][0]["restarts"] == 5


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_worker_that_cannot_be_started_does_not_end_a_stream_that_has_another(write_shards, faulty_host, open_stream):
    """One of two dies and none can be started in its place: the other decodes everything; both dead is an error."""
    stream = open_stream(stream_config(stage_of(write_shards([16] * 4)), threads=2, block_rows=16))
    wait_until(lambda: {w["state"] for w in stream.stats()["workers"]} == {"idle"}, "a worker is not ready")
    faulty_host.order("start", "fail")
    kill(worker_pids(stream)[0])
    wait_until(lambda: faulty_host.times_done("start") >= 7, "it is not tried again")
    stream.seek(0)
    assert ids_of(list(stream)) == list(range(64))
    kill(worker_pids(stream)[1])
    stream.seek(0)
    with pytest.raises(CoordinatorError, match="workers cannot be started: it exited with code 1"):
        list(stream)
    assert children_running("o41td.workers") == []
