"""The processes behind a stream: finding them, killing them, waiting for what they do, and faults on order.

A fault is real: `FaultyHost` puts a `sitecustomize` in front of the loader's processes, which kills, stops or delays
the process that looks at a given shard. Nothing of o41td is replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

T = TypeVar("T")
DEADLINE_S = 20.0


def wait_until(look: Callable[[], T], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """Return the first true answer of `look`.

    Blocks: until then, or fails the test at the deadline.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {deadline_s:g} s in vain: {what}"
        time.sleep(0.005)  # the pause between two looks


def children_running(module: str, *, of: int | None = None) -> list[psutil.Process]:
    """Living descendants of a process (this one by default) that run `python -m module`."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(of).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if module in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def coordinator_pid(stream: Any) -> int:
    """The pid of a stream's coordinator."""
    return int(stream.stats()["coordinator"]["pid"])


def worker_pids(stream: Any) -> list[int]:
    """The pids of a stream's workers, by their number."""
    return [worker["pid"] for worker in stream.stats()["workers"]]


def is_gone(pid: int) -> bool:
    """Whether a process is dead and reaped."""
    return not psutil.pid_exists(pid)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal and wait until the process is gone, if the signal ends it."""
    os.kill(pid, number)
    if number not in (signal.SIGSTOP, signal.SIGCONT):
        wait_until(lambda: is_gone(pid), f"{pid} survives {number.name}")


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str


def run_python(*arguments: str, text: str | None = None, **keys: Any) -> Ended:
    """Run this interpreter with arguments, and `text` on its standard input, in a folder where no checkout is.

    Blocks: until it ends, 60 s at most.
    """
    keys.setdefault("cwd", "/")
    if text is None:
        keys["stdin"] = subprocess.DEVNULL
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=60, **keys)
    return Ended(done.returncode, done.stdout, done.stderr)


_SITECUSTOMIZE = '''
import os, signal, sys, time

with open("/proc/self/cmdline", "rb") as file:
    _me = file.read().decode().split("\\0")
_folder = os.path.dirname(os.path.abspath(__file__))


def _due(name):
    """Whether a fault is ordered, and not yet done as often as it should be."""
    try:
        with open(os.path.join(_folder, name)) as file:
            module, act, times = file.read().split()
    except FileNotFoundError:
        return None
    if module not in _me:
        return None
    done = os.open(os.path.join(_folder, name + ".done"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(done, b"x")
        return act if os.lseek(done, 0, os.SEEK_END) <= int(times) else None
    finally:
        os.close(done)


def _do(act):
    if act == "raise":
        raise RuntimeError("a fault on order")
    if act == "exit":
        os._exit(0)
    if act == "fail":
        os.write(2, b"a fault on order\\n")
        os._exit(1)
    if act.startswith("sleep:"):
        time.sleep(float(act.partition(":")[2]))
        return
    os.kill(os.getpid(), getattr(signal, act))
    while act != "SIGSTOP":
        time.sleep(1)


_act = _due("start")
if _act:
    _do(_act)

_stat = os.stat


def stat(path, *arguments, **keys):
    if isinstance(path, str) and path.endswith(".parquet"):
        act = _due(os.path.basename(path))
        if act:
            _do(act)
    return _stat(path, *arguments, **keys)


os.stat = stat

_getuid = os.getuid


def getuid():
    act = _due("getuid")
    if act:
        _do(act)
    return _getuid()


os.getuid = getuid
'''


@dataclass(frozen=True)
class FaultyHost:
    """Orders faults of the loader's processes: at their start, or when they look at a shard to read it."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyHost:
        """Put the faults' code where every Python process started from now on imports it."""
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(_SITECUSTOMIZE))
        inherited = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([inherited] if inherited else [])]))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        return cls(folder)

    def order(self, shard: str, act: str, *, times: int = 1_000_000, module: str = "o41td.workers") -> None:
        """From now on, processes of `module` that look at the shard of this file name do `act`, so many times in all.

        `act` is a signal's name, "exit" (with code 0), "fail" (words and code 1), "raise" or "sleep:SECONDS". In place
        of a shard, "start" is the start of a process, and "getuid" a coordinator's step between its answer to the
        trainer and its first order.
        """
        partial = self.folder / f"{shard}.partial"
        partial.write_text(f"{module} {act} {times}")
        partial.rename(self.folder / shard)

    def times_done(self, shard: str) -> int:
        """How often a process came to the point of a fault."""
        done = self.folder / f"{shard}.done"
        return done.stat().st_size if done.exists() else 0
