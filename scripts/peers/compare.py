"""Runs peers, o41td and the floor: rows checked, a stop gone on with, rounds timed; writes docs/comparison.md.

Each pass is a process of its own. Within a round each workload's floor and peers follow one another, so a slow spell of
the machine hits them all; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from peers.digest import SeenRows
from peers.field import PEERS
from peers.peer import Peer
from peers.tables import Results, document_of, written_into
from peers.workloads import WORKLOADS, Workload, read_columns

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "peers"
RESUMED, RESUMED_AT = "tokens", 0.95
#  No library asks a hub or reports its use.
QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1"}


class Run:
    """One comparison: what was asked for, where things are, what came of it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._data: Path = arguments.data
        self._bench: Path = arguments.bench
        self._limit_s: float = arguments.limit
        self._rounds: int = arguments.rounds
        self.peers: list[str] = arguments.peers
        self._workloads = [WORKLOADS[name] for name in arguments.sets]
        self._kept = BUILD / ("results-quick.json" if arguments.quick else "results.json")
        self.results = Results(limit_s=arguments.limit, rounds=arguments.rounds)
        if arguments.no_check and self._kept.exists():
            self.results.take_checks(self._kept)

    def convert(self) -> None:
        """Writes formats of their own, where they are not there yet."""
        for name in self.peers:
            peer = PEERS[name]
            for workload in self._workloads if peer.converts else ():
                folder = self._data / "peers" / peer.module / workload.name
                done = folder.parent / f"{workload.name}.done"
                if not done.exists() and not folder.exists():
                    print(f"converting  {workload.name:8} for {name}", flush=True)
                    if self._heard("convert", name, workload, timeout_s=1200) is not None:
                        done.touch()

    def check(self) -> None:
        """Takes a whole pass of each peer, and compares its rows with those of the Parquet files."""
        for workload in self._workloads:
            expected: dict[bool, Any] = {}
            for name in self.peers:
                whole = PEERS[name].converts == "all"
                if whole not in expected:
                    expected[whole] = self._expected(workload, whole=whole)
                seen = self._heard("check", name, workload, timeout_s=600)
                if seen is not None:
                    self.results.checks[name, workload.name] = {"seen": seen, "expected": expected[whole]}
                    self.save()
                    same = seen["digest"] == expected[whole]["digest"] and seen["rows"] == expected[whole]["rows"]
                    print(f"check       {workload.name:8} {name:14} {'same rows' if same else seen}", flush=True)

    def time(self) -> None:
        """The rounds."""
        for number in range(self._rounds):
            for workload in self._workloads:
                floor = self._floor(workload)
                self.results.floors.setdefault(workload.name, []).append(floor)
                print(f"round {number + 1}/{self._rounds}   {workload.name:8} floor {floor['rows_per_s']:>25,} rows/s")
                for name in self.peers:
                    if self.results.failures.get((name, workload.name), "").startswith("check"):
                        continue  # who does not give the rows gives them in no time
                    figures = self._heard("time", name, workload, timeout_s=180)
                    if figures is None:
                        continue
                    self.results.versions[PEERS[name].package] = figures["version"]
                    self.results.times.setdefault((name, workload.name), []).append(
                        figures | {"of_floor": figures["rows_per_s"] / floor["rows_per_s"]}
                    )
                    cpu_s = figures["cpu_s"] / figures["rows"] * 1e5
                    print(
                        f"round {number + 1}/{self._rounds}   {workload.name:8} {name:14} "
                        f"{figures['rows_per_s']:>16,.0f} rows/s   {cpu_s:7.2f} CPU s per 100 000 rows   "
                        f"first batch {figures['first_batch_s']:5.2f} s",
                        flush=True,
                    )

    def save(self) -> None:
        """Keeps what is known so far: a whole pass of a slow library takes minutes."""
        self.results.save(self._kept)

    def resume(self) -> None:
        """Stops each peer that keeps its place at 95 % of a pass, and goes on anew; not where the outcome is known."""
        workload = WORKLOADS[RESUMED]
        for name in self.peers:
            peer = PEERS[name]
            if not peer.resumes or workload not in self._workloads or name in self.results.resumes:
                continue
            expected = self._expected(workload, whole=peer.converts == "all")
            batches = int(expected["rows"] * RESUMED_AT) // workload.batch_size
            with tempfile.TemporaryDirectory() as folder:
                state = ["--state", f"{folder}/state"]
                head = self._heard("stop", name, workload, *state, "--batches", str(batches), timeout_s=600)
                tail = head and self._heard("resume", name, workload, *state, timeout_s=600)
            if not head or not tail:
                continue
            ids = head["ids"] + tail["ids"]
            self.results.resumes[name] = {
                "begin_s": head["first_batch_s"],
                "resume_s": tail.get("first_batch_s"),
                "state_bytes": head["state_bytes"],
                "lost": expected["rows"] - len(set(ids)),
                "repeated": len(ids) - len(set(ids)),
            }
            self.save()
            print(f"resume      {workload.name:8} {name:14} {self.results.resumes[name]}", flush=True)

    def _expected(self, workload: Workload, *, whole: bool) -> dict[str, Any]:
        """What is in the Parquet files, by pyarrow; of all of them, or of those that are checked."""
        files = sorted(str(path) for path in (self._data / workload.name).glob("*.parquet"))
        seen = SeenRows(workload)
        for columns in read_columns(files if whole else files[: workload.part], workload):
            seen.add(columns)
        return seen.to_record()

    def _floor(self, workload: Workload) -> dict[str, Any]:
        """Bare pyarrow in two processes."""
        command = [sys.executable, str(self._bench / "floor.py"), str(self._data), workload.name, "--processes", "2"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    def _heard(self, does: str, name: str, workload: Workload, *more: str, timeout_s: float) -> dict[str, Any] | None:
        """What a pass told of itself; None where it failed, which is kept for the table."""
        log = BUILD / "logs" / f"{name}-{workload.name}-{does}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder, log.open("w") as said:
            out = Path(folder) / "out.json"
            command = [python_of(PEERS[name]), "-P", "-m", "peers.measure", does, name, workload.name, *more]
            options = ["--data", str(self._data), "--out", str(out), "--limit", str(self._limit_s)]
            environment = os.environ | QUIET | {"PYTHONPATH": str(ROOT / "scripts")}
            if not Path(command[0]).exists():
                self.results.failures.setdefault((name, workload.name), "its environment could not be made")
                return None
            process = subprocess.Popen([*command, *options], env=environment, stdout=said, stderr=said, cwd=folder)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                end_tree(process)
            told: dict[str, Any] = (
                json.loads(out.read_text())
                if out.exists()
                else {"error": f"nothing came within {timeout_s:.0f} s, or it ended ({process.returncode})"}
            )
        if "error" in told:
            self.results.failures.setdefault((name, workload.name), f"{does}: {told['error']}")
            print(f"{does:11} {workload.name:8} {name:14} FAILED: {told['error']} ({log})", flush=True)
            return None
        return told


def python_of(peer: Peer) -> str:
    """The Python that has a peer."""
    return sys.executable if peer.environment == "o41td" else str(BUILD / peer.environment / "bin" / "python")


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what came of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def names_in(text: str, known: dict[str, Any], parser: argparse.ArgumentParser) -> list[str]:
    """Names between commas, each of them known."""
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="scripts/peers/run", description=__doc__.splitlines()[0])
    shared = ROOT.parent / "shared" / "bench"
    parser.add_argument("--bench", type=Path, default=shared, help="folder of make_data.py, floor.py")
    parser.add_argument("--data", type=Path, help="folder for the data (1.7 GB, formats of peers 4.4 GB), kept")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated: " + ", ".join(PEERS))
    parser.add_argument("--sets", default=",".join(WORKLOADS), help="workloads, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds of a pass, from its first batch on")
    parser.add_argument(
        "--no-check", action="store_true", help="what the run before found of rows and resumes is told again"
    )
    parser.add_argument("--quick", action="store_true", help="one round of a second each on an eighth of the data")
    arguments = parser.parse_args()
    whole = arguments.peers == ",".join(PEERS) and arguments.sets == ",".join(WORKLOADS)
    arguments.peers = names_in(arguments.peers, PEERS, parser)
    arguments.sets = names_in(arguments.sets, WORKLOADS, parser)
    maker = arguments.bench / "make_data.py"
    if not maker.is_file():
        parser.error(f"{maker} is not there; --bench names the folder that holds make_data.py and floor.py")
    if arguments.quick:
        arguments.rounds, arguments.limit = 1, 1.0
    place = "o41td-bench-quick" if arguments.quick else "o41td-bench"
    arguments.data = (arguments.data or Path(tempfile.gettempdir()) / place).absolute()
    shards = ["--shards", "4"] if arguments.quick else []
    subprocess.run(
        [sys.executable, str(maker), str(arguments.data), "--sets", ",".join(arguments.sets), *shards], check=True
    )
    began = time.perf_counter()
    run = Run(arguments)
    run.convert()
    if not arguments.no_check:
        run.check()
    run.resume()
    run.time()
    run.save()
    document = document_of(run.results, run.peers)
    print(f"\n{document}\n\n{(time.perf_counter() - began) / 60:.0f} min")
    if whole and not arguments.quick:
        written_into(ROOT / "docs" / "comparison.md", document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
