"""Python programs that run as forks of one process which has imported what they need.

Importing PyTorch takes 2.5 s of CPU, and what its first optimizer imports as much again: a dozen processes that train
would spend their time on that alone. What a fork runs, and how it ends, is as `python PROGRAM` does; its loaders are
forks too, where it has one thread when it opens a stream.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from forked_loaders import become_subreaper, fork_loaders_here
from o41td.workers.forking import stay_single_threaded

__all__ = ["Program", "forked_runs"]


class Program(NamedTuple):
    """Arguments that `python` would get, a file or `-m` and a module first, and what to add to the environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = {}


def forked_runs(
    imports: Sequence[str], programs: Sequence[Program], folder: Path, timeout_s: float = 300
) -> list[subprocess.CompletedProcess[str]]:
    """Runs programs one after the other; returns how each ended, and what it and its children wrote.

    Fails where one leaves a process behind that does not end by itself in ten seconds.

    Args:
        imports: The modules to import first.
        programs: What to run.
        folder: Where they run.
        timeout_s: How long all of them may take together.
    """
    request = json.dumps([imports, programs])
    done = subprocess.run(
        [sys.executable, __file__, request], cwd=folder, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    ended = zip(programs, json.loads(done.stdout))
    return [subprocess.CompletedProcess(program.arguments, *how) for program, how in ended]


def _serve(imports: list[str], programs: list[tuple[list[str], dict[str, str]]]) -> None:
    become_subreaper()
    stay_single_threaded()
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun sets it
    for module in imports:
        importlib.import_module(module)
    fork_loaders_here(after=__file__)
    gc.freeze()
    runs = []
    for arguments, environment in programs:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            pid = os.fork()
            if not pid:
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.environ.update(environment)
                return _run(*arguments)
            exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _wait_for_orphans(arguments)
            runs.append((exit_code, *(file.seek(0) or file.read() for file in (output, errors))))
    print(json.dumps(runs))
    return None


def _wait_for_orphans(arguments: list[str]) -> None:
    """Waits until a program's children have ended too.

    Blocks: until then; raises an error when they live longer than their trainer by ten seconds.
    """

    def complain(_number: int, _frame: object) -> NoReturn:
        raise AssertionError(f"{arguments} left a process behind")

    signal.signal(signal.SIGALRM, complain)
    signal.alarm(10)
    with contextlib.suppress(ChildProcessError):  # there is none any more
        while True:
            os.waitpid(-1, 0)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _run(program: str, *arguments: str) -> None:
    if program == "-m":
        program, *arguments = arguments
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
