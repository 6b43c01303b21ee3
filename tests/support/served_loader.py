"""A loader that `o41td serve` runs in a process of its own, and trainers that connect to it in others."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from command_line import command
from forked_programs import started
from o41td import BatchStreamConfig

DEADLINE_S = 60.0
_TRAINER = """
import json, sys
from o41td import connect
name, rank = sys.argv[1], int(sys.argv[2])
stop_after = int(sys.argv[3]) if len(sys.argv) > 3 else None
with connect(name, rank=rank) as stream:
    ids = []
    while (batch := stream.next()) is not None:
        ids.append(batch["id"].tolist())
        if len(ids) == stop_after:
            print(json.dumps({"ids": ids, "state": stream.state_dict()}), flush=True)
            sys.stdin.read()
    print(json.dumps({"ids": ids, "digest": stream.order_digest, "dropped_rows": stream.dropped_rows}), flush=True)
"""


class Served:
    """One `o41td serve`; `ready` is what it said when it was."""

    def __init__(self, config: BatchStreamConfig, folder: Path, *arguments: str, name: str) -> None:
        """Starts it and waits until it is ready."""
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config.to_document()))
        self.name = name
        self.process = started(
            command("serve", path, "--name", name, "--json", *arguments)[1:],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready: dict[str, Any] = json.loads(line_of(self.process))

    @property
    def coordinator_pid(self) -> int:
        """The pid of the coordinator that it started first."""
        return int(self.ready["pid"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal; returns the exit code and what was said on standard error.

        Blocks: until it has ended.
        """
        if self.process.poll() is None:
            self.process.send_signal(number)
        _out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, err


def unused_name() -> str:
    """A name that no other test serves under."""
    return f"test-{os.urandom(6).hex()}"


@contextmanager
def serving(folder: Path) -> Iterator[Callable[..., Served]]:
    """Yields what starts loaders, which are killed behind the block if they have not ended."""
    with ExitStack() as stack:

        def serve(config: BatchStreamConfig, *arguments: str, name: str | None = None) -> Served:
            served = Served(config, folder, *arguments, name=name or unused_name())
            stack.callback(served.end, signal.SIGKILL)
            return served

        yield serve


def trainer(name: str, rank: int, *, stop_after: int | None = None) -> subprocess.Popen[str]:
    """A process that connects and takes all batches; with `stop_after` it stands still behind so many."""
    more = [] if stop_after is None else [str(stop_after)]
    return started(
        ["-P", "-c", _TRAINER, name, str(rank), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints.

    Blocks: until then; fails the test at the deadline, or when the process ends without a word.
    """
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
    line = process.stdout.readline() if ready else ""
    if not line:
        process.kill()
        _out, err = process.communicate()
        raise AssertionError(f"the process said nothing: {err}")
    return line


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a trainer says at its end.

    Blocks: until then.
    """
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result
