"""The processes behind a stream: finding them, killing them, and waiting for what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from leaks import descendants_of

T = TypeVar("T")
DEADLINE_S = 60.0


def wait_until(look: Callable[[], T], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """Return the first true answer of `look`.

    Blocks: until then, or fails the test at the deadline.
    """
    deadline = time.monotonic() + deadline_s
    pause_s = 0.002
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {deadline_s:g} s in vain: {what}"
        time.sleep(pause_s)  # between two looks, ever longer: a look at all processes takes its time
        pause_s = min(0.05, 1.5 * pause_s)


def children_running(*modules: str, of: int | None = None) -> list[psutil.Process]:
    """Living descendants of a process (this one by default) that run `python -m` with one of the modules."""
    found = []
    for pid in descendants_of(of or os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if set(modules) & set(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def processes_of_loaders() -> list[psutil.Process]:
    """The living processes of this process's loaders."""
    return children_running("o41td.coordinator", "o41td.workers")


def coordinator_pid(stream: Any) -> int:
    """The pid of a stream's coordinator."""
    return int(stream.stats()["coordinator"]["pid"])


def worker_pids(stream: Any) -> list[int]:
    """The pids of a stream's workers, by their number."""
    return [worker["pid"] for worker in stream.stats()["workers"]]


def is_gone(pid: int) -> bool:
    """Whether a process is dead and reaped, or dead and left to the system's init, which takes its time."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == 1
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: Iterable[psutil.Process], *, deadline_s: float = 10.0) -> None:
    """Wait for the end of processes whose parent is dead: a private loader has 2 s (here: 10, on a busy host)."""
    wait_until(lambda: all(is_gone(process.pid) for process in processes), "a loader lives on", deadline_s=deadline_s)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal and wait until the process is gone, if the signal ends it."""
    os.kill(pid, number)
    if number not in (signal.SIGSTOP, signal.SIGCONT):
        wait_until(lambda: is_gone(pid), f"{pid} survives {number.name}")


def kill_coordinator(stream: Any) -> None:
    """SIGKILL a stream's coordinator and wait until it has another.

    A dead one's announced batches can still be taken until then: whoever kills twice so might kill the second before it
    has served a batch, which is an error and right so.
    """
    before = coordinator_pid(stream)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: coordinator_pid(stream) != before, "a killed coordinator is not replaced")


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    code: int
    out: str
    err: str


def run_python(*arguments: str, text: str | None = None, **keys: Any) -> Ended:
    """Run this interpreter with arguments, and `text` on its standard input, in a folder where no checkout is.

    Blocks: until it ends, 110 s at most.
    """
    keys.setdefault("cwd", "/")
    if text is None:
        keys["stdin"] = subprocess.DEVNULL
    done = subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=110, **keys)
    return Ended(done.returncode, done.stdout, done.stderr)
