"""Workers are forks of their coordinator, with nothing of it that could do harm; or programs of their own."""

from __future__ import annotations

import json
import os

import psutil
import pytest

from loader_processes import coordinator_pid, run_python, worker_pids
from o41td import open_batch_stream
from stream_reference import Reference, stage_of, stream_config

_FORKS = """
import os, sys
from functools import partial
from o41td.workers.channel import Channel
from o41td.workers.forking import can_fork, fork_child
from o41td.workers.process_title import show_arguments
from o41td.workers.supervisor import ChildLog

log = ChildLog()
kept = open("/dev/null")

def tell(descriptor):
    show_arguments("script", ["a worker", "7"])
    socket = os.readlink(f"/proc/self/fd/{descriptor}")
    others = {os.readlink(f"/proc/self/fd/{name}") for name in map(int, os.listdir("/proc/self/fd")) if name > 2
              and os.path.exists(f"/proc/self/fd/{name}")}
    print(others == {socket}, open("/proc/self/cmdline").read().replace(chr(0), " ").split(), flush=True)
    os.write(descriptor, b"hello")
    return 9

def fail(descriptor):
    raise ValueError("a fault")

def sleep(descriptor):
    os.read(descriptor, 1)

assert can_fork()
child = fork_child(tell, log=log)
assert child.connection.recv(9) == b"hello"
assert child.wait() == child.wait() == 9
child.kill()
said = log.tail()
child = fork_child(fail, log=log)
assert child.wait() == 1
child = fork_child(sleep, log=log)
assert child.wait(0.01) is None
assert child.sentinel >= 0
child.kill()
assert child.wait() == -9
print(said)
print(log.tail().splitlines()[-1])
"""

_NO_FORK = {
    "a tracer's thread in every process": """
import sys, threading
if "o41td.coordinator" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
    "no memory for a copy": """
import errno, sys
def refuse(event, arguments):
    if event == "os.fork":
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
if "o41td.coordinator" in sys.orig_argv:
    sys.addaudithook(refuse)
""",
}
_DEAF_TO_CHILDREN = """
import os, signal, sys
from o41td import BatchStreamConfig, open_batch_stream
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    rows = next(stream).num_rows
    (worker,) = stream.stats()["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    rows += sum(batch.num_rows for batch in stream)
    while not stream.stats()["workers"][0]["restarts"]:  # all may have been decoded before the death is heard
        pass
    print(rows, stream.stats()["workers"][0]["restarts"])
"""


def test_a_forked_child(tmp_path):
    """Has no descriptor but its socket, shows its own arguments, and ends as a program would."""
    ended = run_python("-c", _FORKS, "--an-argument", "script", "--which", "is long enough")
    assert (ended.code, ended.err) == (0, "")
    said, fault = ended.out.splitlines()
    assert said.startswith("True [")
    assert said.endswith("'--an-argument', 'a', 'worker', '7']")
    assert fault == "ValueError: a fault"


def test_titles_that_do_not_fit_are_left_alone():
    """What a process list shows is never cut short, nor written where there is no room."""
    code = (
        "from o41td.workers.process_title import show_arguments\n"
        "before = open('/proc/self/cmdline').read()\n"
        "show_arguments('x', ['longer than what was there'])\n"
        "show_arguments('absent', ['y'])\n"
        "print(before == open('/proc/self/cmdline').read())"
    )
    assert run_python("-c", code, "x").out == "True\n"


def test_workers_are_forked_by_a_coordinator_of_one_thread(write_shards, monkeypatch):
    """Whatever the user's environment says of threads: the coordinator has one, and `ps` shows workers as such."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    monkeypatch.setenv("JE_ARROW_MALLOC_CONF", "background_thread:true")
    config = stream_config(stage_of(write_shards([30, 70]), buffer_rows=16), threads=2)
    with open_batch_stream(config) as stream:
        next(stream)
        coordinator = psutil.Process(coordinator_pid(stream))
        assert coordinator.num_threads() == 1
        for number, pid in enumerate(worker_pids(stream)):
            worker = psutil.Process(pid)
            assert worker.ppid() == coordinator.pid
            assert [word for word in worker.cmdline() if word][2:] == [
                "-m",
                "o41td.workers",
                "--socket",
                worker.cmdline()[5],
                "--worker",
                str(number),
            ]
            assert "--owner" not in worker.cmdline()


@pytest.mark.parametrize("code", _NO_FORK.values(), ids=_NO_FORK)
def test_where_nothing_can_be_forked_workers_are_programs_of_their_own(code, write_shards, tmp_path, monkeypatch):
    """The stream is the same."""
    config = stream_config(stage_of(write_shards([30, 70]), buffer_rows=16), threads=2)
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with open_batch_stream(config) as stream:
        first = next(stream)
        assert all("--owner" in psutil.Process(pid).cmdline() for pid in worker_pids(stream))
        reference = Reference(config)
        for number, batch in enumerate([first, *stream]):
            reference.check(batch, number=number)


def test_a_trainer_that_ignores_its_children_s_ends(write_shards, tmp_path):
    """Where SIGCHLD is ignored, as children inherit, a worker's death is heard and made good all the same."""
    config = stream_config(stage_of(write_shards([300, 700]), batch_size=2), prefetch_batches=1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    ended = run_python("-c", _DEAF_TO_CHILDREN, str(path))
    assert (ended.code, ended.out, ended.err) == (0, "1000 1\n", "")
