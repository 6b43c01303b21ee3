"""One pass of one peer, in this process: timed, checked row by row, stopped, or gone on with.

A clock and CPU times run from the first batch to the last. CPU is that of this process and of all that come of it,
those that have ended included: as their subreaper it stays the ancestor of them all.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import itertools
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from peers.digest import SeenRows
from peers.field import PEERS
from peers.peer import Job
from peers.workloads import WORKLOADS, Batch

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def started_s_ago() -> float:
    """How long ago this process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat_of(os.getpid())[19]) * _TICK_S


def tree_cpu_s() -> float:
    """CPU that this process and its descendants have used, and those of them that have ended."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += sum(int(ticks) for ticks in stat_of(process.pid)[11:15])
    return total * _TICK_S


def end_descendants() -> None:
    """Ends what a library has left running."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def timed(batches: Iterator[Batch], limit_s: float) -> dict[str, Any]:
    """Takes batches until there are no more, or for `limit_s` seconds; behind the first, which is told apart."""
    next(batches)
    figures: dict[str, Any] = {"first_batch_s": started_s_ago()}
    rows, whole = 0, True
    cpu_s, begin = tree_cpu_s(), time.perf_counter()
    for batch in batches:
        rows += len(batch["doc_id"])
        if time.perf_counter() - begin > limit_s:
            whole = False
            break
    wall_s = time.perf_counter() - begin
    cpu_s = tree_cpu_s() - cpu_s
    return {**figures, "rows": rows, "wall_s": wall_s, "cpu_s": cpu_s, "rows_per_s": rows / wall_s, "whole": whole}


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Does what the command line asks for."""
    peer, workload = PEERS[arguments.peer], WORKLOADS[arguments.workload]
    files = sorted(str(path) for path in (arguments.data / workload.name).glob("*.parquet"))
    if peer.converts == "part" or (arguments.does != "time" and peer.converts != "all"):
        files = files[: workload.part]
    folder = arguments.data / "peers" / peer.module / workload.name
    state = arguments.state.read_bytes() if arguments.does == "resume" else None
    job = Job(workload=workload, files=files, folder=folder, state=state)
    version = importlib.metadata.version(peer.package)
    if arguments.does == "convert":
        peer.convert(job)
        return {}
    loader = peer.open(job)
    batches = iter(loader)
    if arguments.does == "time":
        return {"version": version, **timed(batches, arguments.limit)}
    seen = SeenRows(workload)
    figures: dict[str, Any] = {"version": version}
    if arguments.does == "stop":
        batches = itertools.islice(batches, arguments.batches)
    for batch in batches:
        figures.setdefault("first_batch_s", started_s_ago())
        seen.add(batch)
    if arguments.does == "stop":
        arguments.state.write_bytes(state := loader.state())  # type: ignore[attr-defined]
        figures["state_bytes"] = len(state)
    figures["ids"] = [] if arguments.does == "check" else [number for ids in seen.ids for number in ids.tolist()]
    return {**figures, **seen.to_record()}


def main() -> None:
    """Writes a JSON document to `--out`; the process ends with all that it started."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("does", choices=["convert", "time", "check", "stop", "resume"])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds behind the first batch")
    parser.add_argument("--state", type=Path, help="file for the place to go on from")
    parser.add_argument("--batches", type=int, help="after how many to stop")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        result = measured(arguments)
    except BaseException as error:  # noqa: BLE001 (whatever a library raises is what the table tells)
        traceback.print_exc()
        result = {
            "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        }
    arguments.out.write_text(json.dumps(result))
    end_descendants()
    os._exit(0)  # threads of a library that do not end would keep the process


if __name__ == "__main__":
    main()
