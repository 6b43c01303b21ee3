"""Loaders that start as forks of a process which has imported what they need: in an eighth of the CPU.

For tests of what a stream gives, which open hundreds of loaders and assert nothing of how one starts. What runs is the
coordinator's own `main`, with the arguments, descriptors, environment and folder that it would have been started with.
Tests of starts, memory, secrets and signals start their loaders as users do, and so do those of faults while a
coordinator starts; with O41TD_TEST_LOADERS=started all tests do. `forked_programs` has servers, commands and trainers
forked as well.

A nursery is a child of the tests' process with one thread. It forks a child that forks the coordinator and ends, while
the tests' process is a subreaper: so the coordinator becomes its child, which it can wait for like any other.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from o41td.workers import supervisor
from o41td.workers.forking import ForkedProcess, can_fork, stay_single_threaded
from o41td.workers.process_title import show_arguments
from o41td.workers.supervisor import ChildLog, ChildProcess

_IS_WANTED = os.environ.get("O41TD_TEST_LOADERS") != "started"
_ROOM = "-" * 1024  # of the nursery's arguments, in which a coordinator's or a program's are shown
_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_COORDINATOR = "o41td.coordinator"
_IMPORTS = (
    "o41td.workers.worker",
    "o41td.coordinator.server",
    "o41td.coordinator.worker_pool",
    "o41td.workers.s3_store",  # before a worker's first look at a store
    "o41td.workers.s3_client",  # and where it lists one
    "pyarrow.compute",  # at Arrow's first cast
)
"""What a coordinator's `main` imports, and what its workers do later."""


class Nursery:
    """The process that loaders are forked from."""

    def __init__(self) -> None:
        """Starts it, not waiting for its imports."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno()), _ROOM],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._connection = ours
        self._settings = _python_settings()
        self._lock = threading.Lock()

    def stands_for_a_start(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether a process started now would be like this one: a test may have it import something else first."""
        return _python_settings(environment) == self._settings

    def fork(self, arguments: Sequence[str], theirs: socket.socket, log: ChildLog) -> ForkedProcess:
        """A coordinator with these arguments behind those of its socket; it is this process's child."""
        request = {"arguments": arguments, "environment": dict(os.environ)}
        return ForkedProcess(self.ask(request, [theirs.fileno(), log.descriptor]))

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int], *, folder: str | os.PathLike = ".") -> int:
        """A child of this process's, to which the descriptors are given: a coordinator, or a program; its pid."""
        text = json.dumps(request).encode()
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:
            with self._lock, _subreaper():
                self._connection.sendall(len(text).to_bytes(4, "big"))
                socket.send_fds(self._connection, [text[:1]], [place, *descriptors])
                self._connection.sendall(text[1:])
                answer = self._connection.recv(4)
        finally:
            os.close(place)
        assert answer, "the nursery has ended"
        return int.from_bytes(answer, "big")

    def end(self) -> None:
        """Ends it; loaders that it forked go on."""
        self._connection.close()
        self._process.wait()


@contextlib.contextmanager
def nursery() -> Iterator[Nursery | None]:
    """Yields a nursery; None where loaders are to be started."""
    made = Nursery() if _IS_WANTED else None
    yield made
    if made is not None:
        made.end()


@contextlib.contextmanager
def forked_loaders(nursery: Nursery | None) -> Iterator[None]:
    """Has this process's loaders forked off a nursery."""
    if nursery is None:
        yield
        return
    started = supervisor._started

    def forked(
        module: str, arguments: Sequence[str], ours: socket.socket, theirs: socket.socket, log: ChildLog
    ) -> ChildProcess:
        if module != _COORDINATOR or not nursery.stands_for_a_start():
            return started(module, arguments, ours, theirs, log)
        return ChildProcess(nursery.fork(arguments, theirs, log), ours)

    supervisor._started = forked
    try:
        yield
    finally:
        supervisor._started = started


def fork_loaders_here(*, after: str) -> None:
    """From now on has loaders forked off this process itself, if it has one thread when it opens a stream.

    For many forks of a process, of which each opens one stream: a nursery's loader would not be the fork's child. A
    coordinator's arguments are shown in the place of those behind this process's argument `after`.
    """
    if not _IS_WANTED:
        return
    started = supervisor._started
    stay_single_threaded()
    for module in _IMPORTS:
        importlib.import_module(module)

    def forked(
        module: str, arguments: Sequence[str], ours: socket.socket, theirs: socket.socket, log: ChildLog
    ) -> ChildProcess:
        if module != _COORDINATOR or not can_fork():
            return started(module, arguments, ours, theirs, log)
        pid = os.fork()
        if not pid:
            request = {"arguments": arguments, "environment": dict(os.environ)}
            _become_coordinator(request, [theirs.fileno(), log.descriptor], after=after)
        return ChildProcess(ForkedProcess(pid), ours)

    supervisor._started = forked


def _python_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    variables = os.environ if environment is None else environment
    return {name: value for name, value in variables.items() if name.startswith("PYTHON")}


def become_subreaper(*, is_one: bool = True) -> None:
    """Has orphaned descendants become this process's children from now on, or no longer."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0)


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    become_subreaper()
    try:
        yield
    finally:
        become_subreaper(is_one=False)


def _serve(connection: socket.socket) -> None:
    """Forks a coordinator or a program for each request, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is the tests' process that ends this one
    stay_single_threaded()
    for module in _IMPORTS:
        importlib.import_module(module)
    gc.freeze()
    while head := connection.recv(4, socket.MSG_WAITALL):
        first, descriptors, _flags, _address = socket.recv_fds(connection, 1, 4)
        rest = connection.recv(int.from_bytes(head, "big") - 1, socket.MSG_WAITALL)
        request = json.loads(first + rest)
        if "program" in request:
            _import_for_programs()
        pid_read, pid_write = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                folder, *descriptors = descriptors
                os.fchdir(folder)
                if "program" not in request:
                    _become_coordinator(request, descriptors, after=__file__)
                return _programs().run_program(request["program"], request["environment"], descriptors)
            os.write(pid_write, pid.to_bytes(4, "big"))
            os._exit(0)
        os.waitpid(between, 0)
        answer = os.read(pid_read, 4)
        for descriptor in (pid_read, pid_write, *descriptors):
            os.close(descriptor)
        connection.sendall(answer)
    return None


def _programs() -> ModuleType:
    """`forked_programs`, which lies beside this file: no folder of its own is on the path of what is forked."""
    sys.modules.setdefault("forked_loaders", sys.modules[__name__])
    sys.path.insert(0, os.path.dirname(__file__))
    try:
        return importlib.import_module("forked_programs")
    finally:
        del sys.path[0]


def _import_for_programs() -> None:
    """Once, before the first program."""
    for module in _programs().IMPORTS:
        importlib.import_module(module)
    gc.freeze()


def _become_coordinator(request: dict, descriptors: list[int], *, after: str) -> NoReturn:
    exit_code = 1
    try:
        sys.setprofile(None)  # those of a `FaultyHost`
        threading.setprofile(None)
        theirs, log = descriptors
        arguments = ["--socket", str(theirs), *request["arguments"]]
        for number in (1, 2):
            os.dup2(log, number)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, 1, 2, theirs):
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(int(name))
        os.environ.clear()
        os.environ.update(request["environment"])
        show_arguments(after, ["-m", _COORDINATOR, *arguments])
        sys.argv = [_COORDINATOR, *arguments]
        if "O41TD_FAULTS" in os.environ:  # a `FaultyHost`
            importlib.import_module("sitecustomize").start()
        from o41td.coordinator.__main__ import main

        exit_code = main()
    except BaseException:  # noqa: BLE001 - the last frame of this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
