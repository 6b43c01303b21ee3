"""Starting a worker as a fork of the coordinator: 10 ms instead of 450 ms of CPU, and most of its memory shared.

Fork is known for deadlocks: the child has only the thread that forked, so a lock that another thread held at that
moment is locked in it for ever. The coordinator is safe to fork because it has one thread. It speaks to no store, and
imports Arrow for its workers without ever using it. `can_fork` asks the kernel rather than Python, which does not know
the threads of C libraries; and where foreign code runs a thread in every Python process of a host, as tracers do,
workers are started as programs of their own (`supervisor.start_child`).

What a child inherits beside modules it must not use. The coordinator's descriptors are closed first of all: a worker
that held its socket would keep a dead coordinator's trainer waiting. Its objects stay as they are and are never freed,
so that no destructor closes a number which is the worker's own by then: they go to the collector's permanent
generation, the frames below hold the rest, and the child ends with `os._exit`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from o41td.workers.channel import channel_pair
from o41td.workers.supervisor import ChildLog, ChildProcess

__all__ = ["ForkedProcess", "can_fork", "fork_child", "stay_single_threaded"]

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def stay_single_threaded() -> None:
    """Has NumPy's and Arrow's libraries start no thread when they are imported.

    A worker is meant for one core in any case. Called by: the coordinator, before it imports either.
    """
    os.environ.update(_ONE_THREAD)


def can_fork() -> bool:
    """Whether the calling thread is the only one of this process, C libraries' included."""
    return len(os.listdir("/proc/self/task")) == 1


class ForkedProcess:
    """A forked child, with as much of `subprocess.Popen`'s interface as a `ChildProcess` uses."""

    def __init__(self, pid: int) -> None:
        """Takes over a child that nobody has waited for."""
        self.pid = pid
        self._exit_code: int | None = None

    def kill(self) -> None:
        """Sends SIGKILL; harmless if it is dead."""
        if self._exit_code is None:  # it is not reaped, so its number is nobody else's
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reaps it and returns its exit code, negative for a signal.

        Blocks: until it is dead.
        """
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code


def fork_child(body: Callable[[int], int], *, log: ChildLog) -> ChildProcess:
    """Forks a child that runs `body` on its inherited socket's descriptor and exits with what that returns.

    An exception is printed to `log`, and the exit code is 1, as in a program of its own.

    Raises:
        OSError: The system has no room for one more process or descriptor.
    """
    ours, theirs = channel_pair()
    try:
        pid = os.fork()
    except BaseException:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _live(body, theirs.fileno(), log.descriptor)
    theirs.close()
    return ChildProcess(ForkedProcess(pid), ours)


def _live(body: Callable[[int], int], connection: int, log: int) -> NoReturn:
    exit_code = 1
    try:
        gc.freeze()
        for stream in (1, 2):
            os.dup2(log, stream)
        _close_all_but({0, 1, 2, connection})
        exit_code = body(connection)
    except BaseException:  # noqa: BLE001 - the last frame of this process
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(exit_code)


def _close_all_but(kept: set[int]) -> None:
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
