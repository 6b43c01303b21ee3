"""Ctrl-C: one KeyboardInterrupt, in the training process only, after which nothing is lost, doubled or stuck."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
from types import FrameType

import pytest

from loader_processes import DEADLINE_S
from stream_reference import ids_of, stage_of, stream_config

_READS_ON = """
import os, sys
from o41td import BatchStreamConfig, open_batch_stream

with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    expected = 0
    for _ in range(10):
        try:
            print("ready", flush=True)
            while True:
                batch = stream.next()
                expected += 4  # before anything else: no interrupt can come between
                assert batch["id"].tolist() == [(expected - 4 + k) % 400 for k in range(4)], (expected, batch["id"])
        except KeyboardInterrupt:
            assert stream.checkpoint().batches_yielded == expected // 4
            assert stream.stats()["coordinator_restarts"] == 0
    batch = stream.next()
    assert batch["id"].tolist() == [(expected + k) % 400 for k in range(4)]
    print("done", flush=True)
"""

_IS_ENDED = """
import sys
from o41td import BatchStreamConfig, open_batch_stream

with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    print("ready", flush=True)
    for batch in stream:
        pass
"""

_OPENS = """
import signal, sys, time
import psutil
from o41td import BatchStreamConfig, open_batch_stream

config = BatchStreamConfig.load(sys.argv[1])
caught = 0
for delay in (0.001, 0.02, 0.2, 0.5):
    signal.setitimer(signal.ITIMER_REAL, delay)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with open_batch_stream(config) as stream:
            for batch in stream:
                pass
    except KeyboardInterrupt:
        caught += 1
with open_batch_stream(config) as stream:
    assert stream.next()["id"].tolist() == [0, 1, 2, 3]
assert not psutil.Process().children(recursive=True), psutil.Process().children(recursive=True)
print(caught, flush=True)
"""


_STARTS_A_CHILD = """
import os, signal, sys
import psutil
from o41td.workers.supervisor import ChildLog, start_child

def interrupt(event, args):
    if event == "subprocess.Popen":
        signal.raise_signal(signal.SIGINT)

log = ChildLog()
before = os.listdir("/proc/self/fd")
sys.addaudithook(interrupt)
try:
    start_child("o41td.workers", ["--worker", "0"], log=log)
except KeyboardInterrupt:
    print(psutil.Process().children(), os.listdir("/proc/self/fd") == before)
"""


@pytest.fixture
def config_file(write_shards, tmp_path):
    """An endless listed stream of 400 rows in batches of 4."""
    config = stream_config(stage_of(write_shards([400], row_group_rows=40), batch_size=4, infinite=True))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    return path


def _started(script: str, config_file) -> subprocess.Popen[str]:
    """The script in a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(config_file)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd="/",
    )  # fmt: skip


def test_ten_ctrl_c_to_the_whole_group_are_one_interrupt_each(config_file):
    """M8: each is one KeyboardInterrupt in the trainer; checkpoint and the next batch are right; stderr stays empty."""
    with _started(_READS_ON, config_file) as process:
        for _ in range(10):
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=DEADLINE_S)
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (err, process.returncode, out) == ("", 0, "done\n")


def test_an_uncaught_ctrl_c_is_one_short_traceback_and_the_end(config_file):
    """M8: the script ends as by SIGINT, its own traceback on stderr, and none of any other process."""
    with _started(_IS_ENDED, config_file) as process:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=DEADLINE_S)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1


def test_ctrl_c_while_opening_leaves_nothing_behind(config_file):
    """Interrupts 1 ms to half a second after the call: each ends it, no process stays, and the next open works."""
    with _started(_OPENS, config_file) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (0, "4\n", "")


def test_ctrl_c_while_a_child_is_made_leaves_no_child():
    """It is held back until the child is there, and then that is ended and reaped: neither zombie nor descriptor."""
    done = subprocess.run([sys.executable, "-c", _STARTS_A_CHILD], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("[] True\n", "", 0)


def test_the_signals_of_a_scheduler_reach_the_trainer_alone(config_file):
    """SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 to the group, handled by the script: the loader reads on."""
    script = (
        "import signal, sys\nfrom o41td import BatchStreamConfig, open_batch_stream\ngot = []\n"
        "for name in ('SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2'):\n"
        "    signal.signal(getattr(signal, name), lambda number, frame: got.append(number))\n"
        "with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:\n"
        "    print('ready', flush=True)\n"
        "    while len(set(got)) < 4: stream.next()\n"
        "    for _ in range(200): stream.next()\n"
        "    assert stream.stats()['coordinator_restarts'] == 0\n"
        "    assert [worker['restarts'] for worker in stream.stats()['workers']] == [0]\n"
        "print('done', flush=True)\n"
    )
    with _started(script, config_file) as process:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=DEADLINE_S)
        for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
            os.killpg(process.pid, getattr(signal, name))
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (err, process.returncode, out) == ("", 0, "done\n")


def test_an_interrupt_at_any_moment_of_next_loses_no_batch(write_shards, open_stream):
    """Some 400 interrupts inside next() at random microseconds: what is then taken joins without a seam."""
    paths = write_shards([4000], row_group_rows=500)
    stream = open_stream(stream_config(stage_of(paths, batch_size=2, infinite=True), prefetch_batches=64))
    moments = random.Random(11)
    interrupts = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        while frame is not None:
            if frame.f_code is type(stream).next.__code__:
                interrupts += 1
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # what a callback of others raises, Python only prints
    taken = []
    try:
        for _ in range(100_000):
            if interrupts >= 400:
                break
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 3e-4))
            try:
                batch = stream.next()
            except KeyboardInterrupt:
                continue
            taken.append(batch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks
    assert interrupts >= 50, "too few interrupts hit next() to mean anything"
    taken += [stream.next() for _ in range(5)]
    assert [batch.batch_index for batch in taken] == list(range(len(taken)))
    assert ids_of(taken) == [row % 4000 for row in range(2 * len(taken))]
    assert stream.checkpoint().batches_yielded == len(taken)
