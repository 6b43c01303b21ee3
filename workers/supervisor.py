"""Starting, watching and ending the loader's child processes.

From a process of the user's, a child is started as ``python -P -m MODULE`` with one inherited socket: never by fork (it
deadlocks with threads, s3fs and Arrow) and never through multiprocessing's spawn (it runs the user's `__main__` again,
and fails in notebooks and under ``python -``). `-P` keeps the current folder off `sys.path`, so a user's own `workers/`
or `numpy.py` shadows nothing. The coordinator, a process of ours with one thread, forks its workers
(`o41td.workers.forking`).

A child's standard error goes to a `ChildLog`: an unlinked file in memory that the parent reads when the child dies, so
that nothing is printed over the user's screen and the reason is still told.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from o41td.errors import CoordinatorError
from o41td.workers.channel import Channel, channel_pair

__all__ = [
    "OUT_OF_MEMORY",
    "ChildLog",
    "ChildProcess",
    "become_worker",
    "connection_from",
    "describe_exit",
    "ignore_group_signals",
    "is_dead",
    "reap_orphans",
    "start_child",
]

_GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
OUT_OF_MEMORY = 64 + errno.ENOMEM
"""A worker's exit code where the system refused it memory."""
_LOG_TAIL_BYTES = 4000
_WORKER_NAME = "o41td-worker"
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_PR_SET_NAME = 15


def ignore_group_signals() -> None:
    """Makes this process deaf to what a terminal or scheduler sends to the whole group.

    The trainer still wants its last batches and a checkpoint; a child leaves when its socket closes.
    """
    for number in _GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _GROUP_SIGNALS)


def become_worker() -> None:
    """Gives this process a worker's name, and has the kernel kill it when the thread that started it ends.

    Even where it is stopped, and cannot hear that its socket is closed. So this is only for children of a main thread.
    """
    import ctypes  # which numpy imports anyway

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, _WORKER_NAME.encode())
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def reap_orphans(timeout_s: float = 1.0) -> None:
    """Reaps workers that have become this process's children by their coordinator's death.

    That is so where this process is a container's PID 1, or has made itself a subreaper; elsewhere there are none. No
    process starts workers and lets them outlive a coordinator, so whoever has the name is one.

    Blocks: while such workers are still ending, which takes milliseconds; at most `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    while (orphans := [pid for pid in _children() if _name_of(pid) == _WORKER_NAME]) and time.monotonic() < deadline_s:
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):  # another thread was quicker
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _children() -> list[int]:
    """This process's children, those of all threads; none where the kernel does not tell."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found += [int(word) for word in file.read().split()]
    return found


def _name_of(pid: int) -> str | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().rstrip("\n")
    return None


def is_dead(sentinel: int, *, within_s: float | None) -> bool:
    """Returns whether the process of a pidfd has ended.

    Blocks: until it has, at most so long; for ever with None.
    """
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(None if within_s is None else 1000 * within_s))


class ChildLog:
    """What children write to standard error: a file in memory, without a name."""

    def __init__(self) -> None:
        """Opens it, not inheritable but for the children started with it."""
        self.descriptor = os.memfd_create("o41td-log", os.MFD_CLOEXEC)
        os.set_blocking(self.descriptor, True)

    def tail(self) -> str:
        """Returns the last lines written, "" if nothing was."""
        size = os.fstat(self.descriptor).st_size
        data = os.pread(self.descriptor, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        return data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Closes our end; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class _Process(Protocol):
    """What of `subprocess.Popen` is used here."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class ChildProcess:
    """A child with its socket. `sentinel` becomes readable when it is dead (a pidfd)."""

    def __init__(self, process: _Process, connection: socket.socket) -> None:
        """Takes over the process and our end of its socket.

        Raises:
            OSError: There is no descriptor left for its sentinel; both are ended.
        """
        self._process = process
        self.connection = connection
        try:
            self.sentinel = os.pidfd_open(process.pid)
        except OSError:
            connection.close()
            process.kill()
            process.wait()
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def kill(self) -> None:
        """Sends SIGKILL, which nothing survives, whatever it is doing; harmless if it is dead."""
        self._process.kill()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Reaps it and returns its exit code, negative for a signal; None if it still runs.

        Blocks: until it is dead, at most `timeout_s`.
        """
        if timeout_s is not None and self.sentinel >= 0 and not is_dead(self.sentinel, within_s=timeout_s):
            return None
        return self._process.wait()

    def close(self) -> None:
        """Closes the sentinel (the channel closes the socket); the process must be reaped. Idempotent."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def start_child(module: str, arguments: Sequence[str], *, log: ChildLog) -> ChildProcess:
    """Starts ``python -P -m module --socket N …`` and returns it, not waiting for anything.

    Raises:
        OSError: The system has no room for one more process or descriptor.
        CoordinatorError: This is a subinterpreter, which cannot start processes.
    """
    ours, theirs = channel_pair()
    # The child inherits the mask, so a Ctrl-C cannot hit it before it has made itself deaf.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _GROUP_SIGNALS)
    child: ChildProcess | None = None
    try:
        child = _started(module, arguments, ours, theirs, log)
    finally:
        theirs.close()
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:  # the Ctrl-C that came meanwhile
            if child is not None:
                child.kill()
                child.wait()
                child.close()
            ours.close()
            raise
    return child


def _started(
    module: str, arguments: Sequence[str], ours: socket.socket, theirs: socket.socket, log: ChildLog
) -> ChildProcess:
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, "--socket", str(theirs.fileno()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log.descriptor,
            stderr=log.descriptor,
            pass_fds=[theirs.fileno()],
        )
    except RuntimeError as error:
        ours.close()
        if "interpreter" not in str(error):
            raise
        raise CoordinatorError(
            "a subinterpreter cannot start the loader's processes",
            advice="Open the stream in the main interpreter, or in another process",
        ) from error
    except BaseException:
        ours.close()
        raise
    return ChildProcess(process, ours)


def connection_from(descriptor: int, *, blocking: bool) -> Channel:
    """Returns the channel over the socket inherited as `descriptor`."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    return Channel(connection, blocking=blocking)


def describe_exit(exit_code: int | None) -> str:
    """Returns how a process ended, in words, with the likely cause of a SIGKILL."""
    if exit_code is None:
        return "it vanished"
    if exit_code == OUT_OF_MEMORY:
        return (
            "it ran out of memory: the system refused it more (a limit of the job or the container is the likely cause)"
        )
    if exit_code >= 0:
        return f"it exited with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if -exit_code == signal.SIGKILL:
        return f"it was killed by {name} (out of memory is the likely cause; dmesg or the container's events tell)"
    return f"it was killed by {name}"
