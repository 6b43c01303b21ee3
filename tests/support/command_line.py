"""The command line as a user starts it, with what it says and how it ends: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from forked_programs import started
from o41td.cli import main

DEADLINE_S = 110.0


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path) -> list[str]:
    """The command's words."""
    return [sys.executable, "-P", "-m", "o41td", *map(str, arguments)]


def o41td(*arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Finished:
    """Run `o41td` in this process, its standard streams files, as a script's would be: all but a second's start.

    Standard error is that of the loader's processes too.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _standard_streams(out, err), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["o41td", *map(str, arguments)])
            patch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            if cwd:
                patch.chdir(cwd)
            try:
                main()
            except SystemExit as left:
                code = left.code
        assert isinstance(code, int)
        return Finished(code, _text_of(out), _text_of(err))


def o41td_in_a_process(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Finished:
    """Run `o41td` in a process of its own, with pipes for output.

    Blocks: until it ends, 110 s at most.
    """
    with started(
        command(*arguments)[1:], env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=DEADLINE_S)
    return Finished(process.returncode, out, err)


@contextlib.contextmanager
def _standard_streams(out: IO[bytes], err: IO[bytes]) -> Iterator[None]:
    """Lead descriptors 0 to 2 to /dev/null and these files, and `sys.stdout` and `sys.stderr` to the descriptors."""
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(open(os.devnull, "rb"))
        for number, file in enumerate((nothing, out, err)):
            stack.callback(_put_back, os.dup(number), number)
            os.dup2(file.fileno(), number)
        for number, redirect in ((1, contextlib.redirect_stdout), (2, contextlib.redirect_stderr)):
            text = stack.enter_context(open(number, "w", encoding="utf-8", closefd=False))
            stack.enter_context(redirect(text))
        yield


def _put_back(kept: int, number: int) -> None:
    os.dup2(kept, number)
    os.close(kept)


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def o41td_on_a_terminal(*arguments: str | Path, columns: int = 80, env: Mapping[str, str] | None = None) -> Finished:
    """Run `o41td` on a terminal of so many columns; `out` is all that it drew.

    Blocks: until it ends.
    """
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        variables |= {"TERM": "xterm-256color", **(env or {})}
        process = started(command(*arguments)[1:], stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        theirs = -1
        drawn = _all_of(ours)
        return Finished(process.wait(DEADLINE_S), drawn, "")
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def _all_of(descriptor: int) -> str:
    """Everything until the other end of a terminal closes, which Linux reports as an I/O error."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


def toml_config(
    path: Path,
    stages: Sequence[Mapping[str, object]],
    **keys: object,
) -> Path:
    """Write a config with the fields id i64, tokens i32[8], score f64, and the given stages; returns its path.

    Each stage is its keys, with `sources` as a list of (name, paths, weight).
    """
    lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
    for name, dtype, length in (("id", "i64", None), ("tokens", "i32", 8), ("score", "f64", None)):
        lines += ["[[fields]]", f'name = "{name}"', f'dtype = "{dtype}"', *([f"length = {length}"] if length else [])]
    for stage in stages:
        lines.append("[[stages]]")
        lines += [f"{key} = {_toml(value)}" for key, value in stage.items() if key not in ("sources", "shuffle")]
        if "shuffle" in stage:
            lines.append(f"shuffle = {{ buffer_rows = {stage['shuffle']} }}")
        for name, paths, weight in stage["sources"]:  # type: ignore[attr-defined]
            lines += ["[[stages.sources]]", f'name = "{name}"', f"files = {_toml([str(p) for p in paths])}"]
            lines.append(f"weight = {weight}")
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
