"""The loaders and programs that many tests fork off a process are those that users start."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import forked_loaders
import forked_programs
from o41td import open_batch_stream
from stream_reference import stage_of, stream_config


def _seen(pid: int) -> dict[str, Any]:
    """What the system tells of a process, without what differs between any two."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    words = (folder / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    targets = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
    return {
        "arguments": re.sub(r"\d+", "N", " ".join(words)),
        # Some builds of libffi keep their own file open, once ctypes has made a callback.
        "open": sorted(re.sub(r"\d+", "N", target) for target in targets if "/libffi.so" not in target),
        "folder": os.readlink(folder / "cwd"),
        **{name: status[name].strip() for name in ("Name", "Threads", "SigBlk", "SigIgn", "SigCgt")},
    }


def test_a_forked_loader_is_like_a_started_one(write_shards, nursery):
    """Parents, arguments, descriptors, folder, threads and signals are the same, and it ends with the same code."""
    config = stream_config(stage_of(write_shards([64])))
    seen = []
    for made_by in (None, nursery):
        with forked_loaders.forked_loaders(made_by), open_batch_stream(config) as stream:
            assert stream.next()["id"].tolist() == list(range(8))
            figures = stream.stats()
            (worker,) = (worker["pid"] for worker in figures["workers"])
            parents = [
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in (figures["pid"], worker)
            ]
            assert parents == [str(os.getpid()), str(figures["pid"])]
            seen.append([_seen(pid) for pid in (figures["pid"], worker)])
    started, forked = seen
    assert forked == started


def test_a_forked_program_is_like_a_started_one(nursery, tmp_path):
    """What the system tells of it, its streams, folder, variables, words and code are the same, and Ctrl-C ends it."""
    code = (
        "import os, sys\nprint(os.getcwd(), os.environ['OF_ITS_OWN'], len(os.environ), sys.argv, flush=True)\n"
        "print(sys.stdin.readline(), end='')\nsys.stderr.write('é')\nsys.exit(3)\n"
    )
    seen = []
    for made_by in (None, nursery):
        for word in ("on\n", None):
            with (
                forked_programs.forked_programs(made_by),
                forked_programs.started(
                    ["-P", "-c", code, "given"], cwd=tmp_path, env={**os.environ, "OF_ITS_OWN": "x"}, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                ) as process,
            ):  # fmt: skip
                told = [process.stdout.readline(), _seen(process.pid)]
                if word is None:
                    process.send_signal(signal.SIGINT)
                out, err = process.communicate(word)
                seen.append((*told, out, err.splitlines()[-1], process.returncode))
    started, forked = seen[:2], seen[2:]
    assert forked == started
    assert [(out, err, code) for *_, out, err, code in forked] == [
        ("on\n", "é", 3),
        ("", "KeyboardInterrupt", -signal.SIGINT),
    ]
