"""C programs of the tests: built with every warning an error, run where valgrind or sanitizers watch them."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import o41td
from o41td import Batch, BatchStream
from served_loader import DEADLINE_S

SUPPORT = Path(__file__).parent
EXAMPLES = SUPPORT.parent.parent / "examples" / "c"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O0")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
VALGRIND = ("valgrind", "-q", "--leak-check=full", "--error-exitcode=99", "--track-fds=no")


def compiled(source: Path, folder: Path, *options: str) -> Path:
    """Builds a program, quickly unless `options` say otherwise, or skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = folder / source.stem
    command = [compiler, *STRICT, *options, "-I", o41td.get_include(), str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return program


def watched(source: Path, folder: Path) -> list[str]:
    """A command that runs a program under valgrind, or under sanitizers where there is none."""
    if shutil.which("valgrind"):
        return [*VALGRIND, str(compiled(source, folder))]
    return [str(compiled(source, folder, *SANITIZERS))]


class CBatch(NamedTuple):
    """What `o41td_next` gave: numbers, and each field's bytes."""

    batch_index: int
    stage: int
    number: int
    num_rows: int
    order_digest: int
    fields: tuple[bytes, ...]

    @classmethod
    def of(cls, line: str) -> CBatch:
        """Reads a line of the consumer."""
        word, index, stage, number, num_rows, digest, *fields = line.split(" ")
        assert word == "batch", line
        numbers = (int(index), int(stage), int(number), int(num_rows), int(digest, 16))
        return cls(*numbers, tuple(map(bytes.fromhex, fields)))

    def check(self, batch: Batch | None) -> None:
        """Compares it with the batch of a Python stream, to the byte."""
        assert batch is not None
        fields = tuple(np.ascontiguousarray(array).tobytes() for array in batch.arrays().values())
        assert (self.batch_index, self.stage, self.num_rows) == (batch.batch_index, batch.stage, batch.num_rows)
        assert self.fields == fields


class CConsumer:
    """A process of `c_consumer.c` that does what it is told; it must end well, with nothing on standard error."""

    def __init__(self, command: list[str], name: str, rank: int, *, wait_s: float = 20) -> None:
        """Starts it; its first line tells whether it has connected."""
        self.process = subprocess.Popen(
            [*command, name, str(rank), str(wait_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.notices: list[str] = []
        self._received = b""

    def tell(self, command: str) -> None:
        """Gives a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    def line(self) -> str:
        """The next line that is no notice."""
        while (line := self.any_line()).startswith("notice "):
            self.notices.append(line)
        return line

    def take_notice(self, expected: str) -> None:
        """Waits for a notice."""
        while expected not in self.notices:
            line = self.any_line()
            assert line.startswith("notice "), line
            self.notices.append(line)

    def any_line(self) -> str:
        """The next line.

        Blocks: until there is one; fails the test at the deadline, or when the process ends without a word.
        """
        assert self.process.stdout is not None
        while b"\n" not in self._received:
            ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
            more = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                self.process.kill()
                raise AssertionError(f"the consumer said nothing: {self._received!r} {self.process.communicate()[1]!r}")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def ask(self, command: str) -> str:
        """Gives a command; returns its answer."""
        self.tell(command)
        return self.line()

    def take(self, count: int) -> list[CBatch]:
        """Takes so many batches."""
        self.tell(f"next {count}")
        return [CBatch.of(self.line()) for _ in range(count)]

    def take_from(self, stream: BatchStream, count: int) -> None:
        """Takes so many batches, which a Python stream of the same rank has too."""
        for batch in self.take(count):
            batch.check(stream.next())

    def end(self) -> None:
        """Ends it.

        Blocks: until it has.
        """
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert (self.process.returncode, out, err) == (0, b"", b"")

    def kill(self) -> None:
        """Makes sure that it has ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
