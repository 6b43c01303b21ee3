"""Programs that start as forks of the nursery of `forked_loaders`, as their loaders do; it has imported what they need.

For tests of what `o41td serve`, other commands and trainers do, which start many and assert nothing of how one starts:
what runs, with the descriptors, environment and folder that it would have been started with, and how it ends, is as
`python -P -m MODULE …` or `python -P -c CODE …` does.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import forked_loaders
from o41td.workers.process_title import show_arguments

__all__ = ["IMPORTS", "forked_programs", "run_program", "started"]

IMPORTS = (
    "numpy",
    "o41td.cli.app",
    "o41td.cli.serve",
    "o41td.connecting",
    "o41td.opening",
    "o41td.serving",
    "o41td.stream",
)
_nursery: forked_loaders.Nursery | None = None


@contextlib.contextmanager
def forked_programs(nursery: forked_loaders.Nursery | None) -> Iterator[None]:
    """Has `started` fork programs off a nursery."""
    global _nursery
    before, _nursery = _nursery, nursery
    try:
        yield
    finally:
        _nursery = before


def started(arguments: Sequence[str], **keys: Any) -> subprocess.Popen[Any]:
    """This interpreter with `-P` and other arguments, started or forked; `keys` are those of `subprocess.Popen`."""
    words = [sys.executable, *arguments]
    if _nursery is None or not _nursery.stands_for_a_start(keys.get("env")):
        return subprocess.Popen(words, **keys)
    return _Forked(words, **keys)


class _Forked(subprocess.Popen[Any]):
    """A process that the nursery forks instead of starting it."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        _executable, _preexec, _close, _pass, folder, environment, _startup, _flags, _shell, *pipes = rest[:15]
        assert _nursery is not None
        request = {"program": list(args[1:]), "environment": dict(environment or os.environ)}
        theirs = pipes[0], pipes[3], pipes[5]
        standard = [number if theirs_ < 0 else theirs_ for number, theirs_ in enumerate(theirs)]
        self.pid = _nursery.ask(request, standard, folder=folder or ".")
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run_program(arguments: Sequence[str], environment: Mapping[str, str], standard: Sequence[int]) -> None:
    """Becomes the program; returns or raises as it does.

    Called by: a fork of the nursery, in the program's folder.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 10)
    os.environ.clear()
    os.environ.update(environment)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        errors = "backslashreplace" if name == "stderr" else None
        setattr(sys, name, open(number, mode, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115
    _safe_path, how, what, *more = arguments
    show_arguments(forked_loaders.__file__, [how, what, *more])
    forked_loaders.fork_loaders_here(after=how)
    sys.argv = [how, *more]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
