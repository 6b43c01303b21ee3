"""What a test must not leave behind: processes, threads, descriptors, names in /dev/shm.

A process is known as the test's by its descent, or, once its parent is gone, by a mark in the environment that it
inherited. Each kind gets until a deadline to go by itself: a private loader has 2 s to end after its trainer's death.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

MARK = "O41TD_TEST_MARK"
DEADLINE_S = 10.0
#  Opened once in a process and kept for its life by libraries, not by a test.
_LASTING_TARGETS = ("/dev/urandom", "/dev/null", "/sys/", "/proc/")


def descriptors() -> dict[int, str]:
    """This process's open descriptors and what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def shared_memory_names() -> set[str]:
    """The names in /dev/shm that say they are ours; other programs' are theirs, as nothing here has Python name any."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("o41td")}


def all_pids() -> set[int]:
    """The pids of this host."""
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def descendants_of(pid: int) -> set[int]:
    """The pids of a process's living and zombie descendants; psutil would read the whole host for them."""
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        with contextlib.suppress(OSError):  # it is gone, and its children are another's
            parent = ahead.pop()
            for task in os.listdir(f"/proc/{parent}/task"):
                children = set(map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split()))
                ahead += children - found
                found |= children
    return found


def processes_of(mark: str, *, known: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Every living or zombie descendant, and every process elsewhere that carries `mark` in its environment.

    Of elsewhere, `known` pids are not looked at.
    """
    found = descendants_of(os.getpid())
    for pid in all_pids() - known - found - {os.getpid()}:
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    processes = []
    for pid in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    return processes


def describe(process: psutil.Process) -> str:
    """One line on a process for a failed test's message."""
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} (gone)"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What was there before a test; `leftovers` says what came since and did not go."""

    mark: str
    pids: frozenset[int]
    threads: frozenset[int]
    descriptors: dict[int, str]
    names: frozenset[str]

    @classmethod
    def now(cls, mark: str) -> Surroundings:
        """Note what is there."""
        return cls(
            mark=mark,
            pids=frozenset(all_pids()),
            threads=frozenset(id(thread) for thread in threading.enumerate()),
            descriptors=descriptors(),
            names=frozenset(shared_memory_names()),
        )

    def leftovers(self, deadline_s: float = DEADLINE_S) -> list[str]:
        """What is still here after at most `deadline_s`, a line each; leftover processes are killed.

        Blocks: until nothing is left or the deadline is reached.
        """
        deadline = time.monotonic() + deadline_s
        gc.collect()
        processes = _wait_until_empty(self._new_processes, deadline)
        lines = [f"process {describe(process)}" for process in processes]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        lines += [f"thread {thread.name}" for thread in _wait_until_empty(self._new_threads, deadline)]
        lines += [f"descriptor {line}" for line in _wait_until_empty(self._new_descriptors, deadline)]
        lines += [f"/dev/shm/{name}" for name in _wait_until_empty(self._new_names, deadline)]
        return lines

    def _new_processes(self) -> list[psutil.Process]:
        return [process for process in processes_of(self.mark, known=self.pids) if process.pid not in self.pids]

    def _new_threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if id(thread) not in self.threads]

    def _new_descriptors(self) -> list[str]:
        return [
            f"{number} -> {target}"
            for number, target in descriptors().items()
            if self.descriptors.get(number) != target and not target.startswith(_LASTING_TARGETS)
        ]

    def _new_names(self) -> list[str]:
        return sorted(shared_memory_names() - self.names)


def _wait_until_empty(look: Callable[[], Iterable[T]], deadline: float) -> list[T]:
    """What `look` still finds at the deadline; returns as soon as it finds nothing."""
    pause_s = 0.005
    while True:
        found = list(look())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(pause_s)  # between two looks, ever longer: a look at all processes takes its time
        pause_s = min(0.05, 1.5 * pause_s)
