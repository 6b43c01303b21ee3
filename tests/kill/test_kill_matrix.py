"""The kill matrix on real processes (see `kill_matrix`): each test is one role in one phase, ended in every way.

Between two ways of ending nothing may have changed: as many processes, threads and descriptors as before, nothing in
/dev/shm, nothing on standard error. Afterwards everything is gone (the fixture `no_leaks`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import kill_matrix
import leaks
from kill_matrix import ACTS, PHASES
from leaks import descriptors, shared_memory_names
from loader_processes import (
    children_running,
    coordinator_pid,
    kill,
    processes_of_loaders,
    wait_until,
    wait_until_gone,
    worker_pids,
)
from o41td import CoordinatorError, open_batch_stream
from o41td.order import add_digests
from stream_reference import Reference, stage_of, stream_config

#  Five seconds, so that a stopped process is found soon and a busy host's is not taken for one.
STALL_TIMEOUT_S = 5
NUM_BATCHES = 12
WORKER_POINTS = {
    "fetching": "call.ShardReader.read_rows",
    "slot begun": "return.ColumnWriter.write",
    "slot committed": "return.Channel.send.BlockDecoded",
}
COORDINATOR_POINTS = {
    "starting": "start",
    "fetching": "return.TaskDesk.next_for",
    "slot begun": "return.WorkerCrew.give",
    "slot committed": "call.ServingPhase._send_batches",
    "stopping": "call.WorkerPool.end_all",
}
TRAINER_POINTS = {
    "starting": "return.start_child",
    "fetching": "return.Channel.send.OpenLoader",
    "slot begun": "call.Assembler._assemble_next",
    "slot committed": "return.BatchStream.next",
    "stopping": "call.BatchFeed.close",
}
HOW = {"SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV", "exit 0": "code 0"}  # else "code 1"


@pytest.fixture
def config(write_shards):
    """Twelve shuffled batches of 8 rows out of six slots of 16; one worker."""
    return stream_config(
        stage_of(write_shards([48, 48]), buffer_rows=32), block_rows=16, stall_timeout_s=STALL_TIMEOUT_S
    )


@pytest.fixture
def host(faulty_host):
    """A host on which calls are looked at."""
    faulty_host.watch_calls()
    return faulty_host


class _Whole:
    """A stream that must give the whole sequence again, whatever ends; and what this process had before."""

    def __init__(self, stream, config) -> None:
        self.stream = stream
        self._reference = Reference(config)
        self._digest = add_digests(*[self._reference.digest(number, number) for number in range(NUM_BATCHES)])
        self._here = self._look()

    def check(self) -> None:
        """Take everything from the beginning, and see that all is as it was."""
        before = self.stream.order_digest
        self.stream.seek(0)
        self._reference.check_rest(self.stream, position=0)
        assert add_digests(self.stream.order_digest, -before) == self._digest
        wait_until(lambda: self._look() == self._here, f"other than before, {self._here}")
        wait_until(self._is_manned, "a process is missing, or one too many")

    def _is_manned(self) -> bool:
        return len(children_running("o41td.coordinator")) == len(children_running("o41td.workers")) == 1

    def wait_until_idle(self) -> None:
        """Wait until no worker has work."""
        wait_until(
            lambda: {worker["state"] for worker in self.stream.stats()["workers"]} == {"idle"}, "no worker rests"
        )

    @staticmethod
    def _look() -> tuple[int, int, set[str]]:
        lasting = [thread for thread in threading.enumerate() if thread.name != "o41td-populate"]  # which soon ends
        return len(descriptors()), len(lasting), shared_memory_names()


def _signalled(host, pid: int, act: str, module: str) -> None:
    """Have an idle process do `act`."""
    host.order("signal", ACTS[act], times=1, module=module)
    os.kill(pid, signal.SIGRTMIN)


@pytest.mark.parametrize("phase", PHASES[:-1])
@pytest.mark.usefixtures("forked_faulty_loaders")
def test_worker(config, host, open_stream, capfd, phase):
    """A worker that ends in any way, at anything: the same bytes, and one more start (two where it died starting)."""
    whole = _Whole(open_stream(config), config)
    whole.check()
    for act, _outcome in kill_matrix.cells("worker", phase):
        print(f"worker, {phase}, {act}")
        restarts = whole.stream.stats()["workers"][0]["restarts"]
        if phase == "idle":
            whole.wait_until_idle()
            _signalled(host, worker_pids(whole.stream)[0], act, "o41td.workers")
            point = "signal"
        elif phase == "starting":
            point = "start"
            host.order(point, ACTS[act], times=1)
            kill(worker_pids(whole.stream)[0])
        else:
            point = WORKER_POINTS[phase]
            host.order(point, ACTS[act], times=1)
        whole.check()
        assert host.times_done(point) >= 1
        host.cancel(point)
        stats = whole.stream.stats()
        assert stats["workers"][0]["restarts"] - restarts == (2 if phase == "starting" else 1)
        assert stats["coordinator_restarts"] == 0
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_worker_while_stopping(config, host, capfd):
    """A worker that ends in any way while the stream is closed: everything goes."""
    for act, _outcome in kill_matrix.cells("worker", "stopping"):
        print(f"worker, stopping, {act}")
        stream = open_batch_stream(config)
        stream.next()
        loader = processes_of_loaders()
        _signalled(host, worker_pids(stream)[0], act, "o41td.workers")
        stream.close()
        wait_until_gone(loader)
        host.cancel("signal")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("phase", PHASES[:2])
def test_coordinator_while_opening(config, host, capfd, phase):
    """A coordinator that ends before the stream is open: an error that says how it ended, at once."""
    point = COORDINATOR_POINTS[phase]
    for act, _outcome in kill_matrix.cells("coordinator", phase):
        print(f"coordinator, {phase}, {act}")
        host.order(point, ACTS[act], times=1, module="o41td.coordinator")
        with pytest.raises(CoordinatorError, match=HOW.get(act, "code 1")):
            open_batch_stream(config)
        assert host.times_done(point) >= 1
        host.cancel(point)
        wait_until(lambda: not children_running("o41td.workers"), "a worker is left")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("phase", PHASES[2:-1])
@pytest.mark.usefixtures("forked_faulty_loaders")
def test_coordinator(config, host, open_stream, capfd, phase):
    """A coordinator that ends in any way while it serves or rests: the same bytes from another."""
    whole = _Whole(open_stream(config), config)
    whole.check()
    for act, _outcome in kill_matrix.cells("coordinator", phase):
        print(f"coordinator, {phase}, {act}")
        restarts = whole.stream.stats()["coordinator_restarts"]
        if phase == "idle":
            whole.wait_until_idle()
            point = "signal"
            _signalled(host, coordinator_pid(whole.stream), act, "o41td.coordinator")
        else:
            point = COORDINATOR_POINTS[phase]
            host.order(point, ACTS[act], times=1, module="o41td.coordinator")
        whole.check()
        assert host.times_done(point) >= 1
        host.cancel(point)
        assert whole.stream.stats()["coordinator_restarts"] - restarts == 1
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_coordinator_while_stopping(config, host, capfd):
    """A coordinator that ends or stops in any way instead of ending its workers: they go all the same."""
    point = COORDINATOR_POINTS["stopping"]
    for act, _outcome in kill_matrix.cells("coordinator", "stopping"):
        print(f"coordinator, stopping, {act}")
        stream = open_batch_stream(config)
        stream.next()
        loader = processes_of_loaders()
        host.order(point, ACTS[act], times=1, module="o41td.coordinator")
        stream.close()
        wait_until_gone(loader)
        assert host.times_done(point) == 1
        host.cancel(point)
    assert capfd.readouterr().err == ""


_TRAINERS = """
import os, sys, sitecustomize
sys.path.append({support!r})
from forked_loaders import fork_loaders_here
from o41td import BatchStreamConfig, open_batch_stream
role, path, phase, out, err = sys.argv[1:]
config = BatchStreamConfig.load(path)
if phase != "starting":
    fork_loaders_here(after="-c")

def train():
    if phase != "idle":
        sitecustomize.watch()
    with open_batch_stream(config) as stream:
        taken = [stream.next() for _ in range(6)]
        if phase == "idle":
            sitecustomize._come_to("signal")
        taken += stream
    print(stream.order_digest, flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        for number, name in ((1, out), (2, err)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        train()
        sys.exit()
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
""".replace("{support!r}", repr(os.path.dirname(leaks.__file__)))


@pytest.mark.parametrize("phase", PHASES)
def test_trainer(config, host, tmp_path, phase):
    """A training process that ends in any way: its exit code and words are its own, and its loader goes by itself.

    Each is forked off one process that has imported everything and opened nothing, and but for those that die while
    the loader starts, so is its loader, which is quicker.
    """
    point = TRAINER_POINTS.get(phase, "signal")
    path, out, err = (tmp_path / name for name in ("config.json", "out", "err"))
    path.write_text(json.dumps({**config.to_document(), "stall_timeout_s": 120}))
    reference = Reference(config)
    digest = add_digests(*[reference.digest(number, number) for number in range(NUM_BATCHES)])
    names, known = shared_memory_names(), frozenset(leaks.all_pids())
    codes = {"SIGKILL": -signal.SIGKILL, "SIGSEGV": -signal.SIGSEGV, "exit 0": 0, "SIGSTOP": 0}  # else 1
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINERS, "trainer", str(path), phase, str(out), str(err)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
    ) as trainers:  # fmt: skip
        for act, _outcome in kill_matrix.cells("trainer", phase):
            print(f"trainer, {phase}, {act}")
            host.order(point, ACTS[act], times=1, module="trainer")
            trainers.stdin.write(f"{act}\n")
            trainers.stdin.flush()
            pid = int(trainers.stdout.readline())
            if act == "SIGSTOP":  # of the others, who knows whether they still live
                trainer = psutil.Process(pid)
                _until_stopped(trainer)
                trainer.resume()
            assert int(trainers.stdout.readline()) == codes.get(act, 1), err.read_text()
            assert host.times_done(point) >= 1
            assert out.read_text() == (f"{digest}\n" if act == "SIGSTOP" else "")
            words = err.read_text()
            assert words.count("Traceback") == (act in ("raise", "out of memory")), words
            assert "Traceback" in words or words == ("a fault on order\n" if act == "exit 1" else "")
            host.cancel(point)
            wait_until(lambda: not _marked("o41td.coordinator", "o41td.workers", known=known), "a loader lives on")
            assert shared_memory_names() <= names
        trainers.stdin.close()


def _until_stopped(process: psutil.Process) -> None:
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"{process.pid} runs on")


def _marked(*modules: str, known: frozenset[int]) -> list[psutil.Process]:
    """This test's processes that run one of the modules, whoever their parent is by now."""
    found = []
    for process in leaks.processes_of(os.environ[leaks.MARK], known=known):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and set(modules) & set(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_the_matrix_in_the_documents_is_the_one_that_is_run():
    """docs/reliability.md holds the tables of this test, word for word."""
    document = Path(__file__).parents[2] / "docs" / "reliability.md"
    assert kill_matrix.tables() in document.read_text()
