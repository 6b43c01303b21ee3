"""A training process that dies, however and whenever: nothing of it is left, and the next one starts as ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from leaks import shared_memory_names
from loader_processes import run_python, wait_until, wait_until_gone
from stream_reference import stage_of, stream_config

_JOB = """
import sys
from o41td import BatchStreamConfig, open_batch_stream

stream = open_batch_stream(BatchStreamConfig.load(sys.argv[1]))
batches = int(sys.argv[2])
for number, batch in enumerate(stream):
    if number == batches:
        print("there", flush=True)
print("end", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def config_file(write_shards, tmp_path):
    """An endless shuffled stream."""
    config = stream_config(stage_of(write_shards([400] * 4), buffer_rows=128, infinite=True), threads=2, block_rows=50)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    return path


def _started(config_file, batches: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _JOB, str(config_file), str(batches)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, cwd="/",
    )  # fmt: skip


def test_a_killed_group_leaves_nothing_and_the_next_start_works(config_file):
    """H3: SIGKILL of the whole group, then the same job again."""
    names = shared_memory_names()
    for _ in range(2):
        with _started(config_file) as process:
            assert process.stdout.readline() == "there\n"
            loader = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            wait_until_gone(loader)
            assert shared_memory_names() <= names


@pytest.mark.parametrize(("how", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGTERM)", -15)])
def test_a_trainer_that_leaves_without_closing_leaves_nothing(config_file, how, code):
    """No close(), no with: sys.exit and SIGTERM end the loader, and stderr stays empty."""
    names = shared_memory_names()
    script = (
        "import os, signal, sys, psutil\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "stream = open_batch_stream(BatchStreamConfig.load(sys.argv[1]))\nstream.next()\n"
        "print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)\n" + how
    )
    ended = run_python("-c", script, str(config_file))
    pids = [int(word) for word in ended.out.split()]
    assert len(pids) == 3
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the loader lives on", deadline_s=5)
    assert shared_memory_names() <= names
    assert (ended.code, ended.err) == (code, "")


def test_a_forked_child_that_outlives_the_trainer_does_not_hold_the_loader(config_file):
    """A DataLoader-like fork that sleeps on when the trainer is killed: the loader ends all the same."""
    script = (
        "import os, sys, time, psutil\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "stream = open_batch_stream(BatchStreamConfig.load(sys.argv[1]))\nstream.next()\n"
        "loader = [p.pid for p in psutil.Process().children(recursive=True)]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "print(*loader, flush=True)\nos.waitpid(child, 0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(config_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the fork keeps the loader alive", deadline_s=5)


@pytest.mark.parametrize("stopped", [["coordinator"], ["workers"], ["coordinator", "workers"]], ids="+".join)
def test_a_stopped_loader_ends_with_its_trainer(config_file, stopped):
    """SIGSTOP of the coordinator, a worker, or both, then SIGKILL of the trainer: nothing is left."""
    names = shared_memory_names()
    with _started(config_file) as process:
        assert process.stdout.readline() == "there\n"
        loader = psutil.Process(process.pid).children(recursive=True)
        for role in stopped:
            next(member for member in loader if f"o41td.{role}" in member.cmdline()).suspend()
        process.kill()
        process.wait()
        wait_until_gone(loader, deadline_s=15)
    assert shared_memory_names() <= names
