"""What a comparison found, as JSON and as the tables of docs/comparison.md."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.field import PEERS
from peers.workloads import WORKLOADS

__all__ = ["Results", "document_of", "written_into"]

BEGIN, END = "<!-- begin: scripts/peers/run -->", "<!-- end: scripts/peers/run -->"
_Key = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class Results:
    """All figures of a run; keys are a peer and a workload.

    Attributes:
        limit_s: Seconds that a pass was given.
        rounds: How often each was timed.
        floors: What bare pyarrow took, by workload.
        times: What each pass took.
        checks: Which rows a whole pass gave, and which there are.
        resumes: What a stop and going on gave, by peer.
        failures: What a library said where it did not do what was asked.
        versions: Of distributions.
    """

    limit_s: float
    rounds: int
    floors: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    times: dict[_Key, list[dict[str, Any]]] = field(default_factory=dict)
    checks: dict[_Key, dict[str, Any]] = field(default_factory=dict)
    resumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[_Key, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes all of it."""
        keyed = {name: getattr(self, name) for name in ("times", "checks", "failures")}
        document = {name: {"/".join(key): value for key, value in values.items()} for name, values in keyed.items()}
        document |= {name: getattr(self, name) for name in ("limit_s", "rounds", "floors", "resumes", "versions")}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1))

    def take_checks(self, path: Path) -> None:
        """Takes over which rows each gave in an earlier run, and how it went on."""
        document = json.loads(path.read_text())
        self.checks = {tuple(key.split("/")): check for key, check in document["checks"].items()}
        self.resumes = document["resumes"]
        failed = {tuple(key.split("/")): said for key, said in document["failures"].items()}
        self.failures = {key: said for key, said in failed.items() if said.startswith("check")}


def row_faults(check: dict[str, Any]) -> str:
    """What is wrong with the rows of a pass; "" where nothing is."""
    seen, expected = check["seen"], check["expected"]
    faults = []
    if lost := expected["distinct"] - seen["distinct"]:
        faults.append(f"{lost:,} of {expected['rows']:,} rows lost")
    if repeated := seen["rows"] - seen["distinct"]:
        faults.append(f"{repeated:,} repeated")
    if not faults and seen["digest"] != expected["digest"]:
        faults.append("values differ")
    return ", ".join(faults)


def of_peer(results: Results, name: str, workloads: list[str]) -> list[str]:
    """A peer's cells: rates, first batch, rows."""
    cells = []
    for workload in workloads:
        passes = results.times.get((name, workload))
        if not passes:
            cells.append("refused" if (name, workload) in results.failures else "–")
            continue
        rate, of_floor = (statistics.median(each[key] for each in passes) for key in ("rows_per_s", "of_floor"))
        cpu = statistics.median(each["cpu_s"] / each["rows"] * 1e5 for each in passes)
        cut = "" if all(each["whole"] for each in passes) else "*"
        cells.append(f"{rate:,.0f}{cut} ({of_floor:.2f}) [{cpu:.3g}]")
    first = [each["first_batch_s"] for each in results.times.get((name, workloads[0]), [])]
    cells.append(f"{statistics.median(first):.1f}" if first else "–")
    checks = {workload: results.checks[name, workload] for workload in workloads if (name, workload) in results.checks}
    faults = [f"{workload}: {fault}" for workload, check in checks.items() if (fault := row_faults(check))]
    same = "yes" if len(checks) == len(workloads) else f"on {', '.join(checks)}"
    cells.append("; ".join(faults) or (same if checks else "not compared"))
    return cells


def document_of(results: Results, peers: list[str]) -> str:
    """The tables, those that are fastest on the first workload first."""
    workloads = [name for name in WORKLOADS if name in results.floors]
    floors = {name: statistics.median(each["rows_per_s"] for each in results.floors[name]) for name in workloads}
    floor_cpu = {
        name: statistics.median(each["cpu_s"] / each["rows"] * 1e5 for each in results.floors[name])
        for name in workloads
    }
    cores = os.cpu_count()
    lines = [
        f"{cores} cores, page cache warm, medians of {results.rounds} interleaved rounds; {versions_line(results)}.",
        "Rows a second, in round brackets of the floor's in the same round, in square ones CPU seconds of all of its",
        f"processes per 100 000 rows. A star: cut after {results.limit_s:g} s, the rate is that of what was seen.",
        "",
        f"| loader | {' | '.join(workloads)} | first batch, s | same rows |",
        f"|---|{'---|' * (len(workloads) + 2)}",
        "| bare pyarrow, 2 processes: the floor | "
        + " | ".join(f"{floors[name]:,.0f} (1.00) [{floor_cpu[name]:.3g}]" for name in workloads)
        + " | – | – |",
    ]

    def rate(name: str) -> float:
        return max((each["rows_per_s"] for each in results.times.get((name, workloads[0]), [])), default=0.0)

    for name in sorted(peers, key=rate, reverse=True):
        peer = PEERS[name]
        cells = " | ".join(of_peer(results, name, workloads))
        bold = "**" if peer.module == "ours" else ""
        lines.append(f"| {bold}{peer.name}{bold}, {peer.settings} | {cells} |")
    if results.failures:
        lines += ["", "What was refused:", ""]
        lines += [
            f"- {PEERS[name].name}, {PEERS[name].settings}, {workload}: `{said.replace('`', '')[:200]}`"
            for (name, workload), said in results.failures.items()
        ]
    if results.resumes:
        lines += ["", *resume_lines(results, peers)]
    return "\n".join(lines)


def resume_lines(results: Results, peers: list[str]) -> list[str]:
    """The table of those that keep their place."""
    lines = [
        "Stopped at 95 % of a pass over tokens and gone on with in a new process; seconds from its start to a batch.",
        "",
        "| loader | from the beginning, s | at 95 %, s | state, bytes | rows |",
        "|---|---|---|---|---|",
    ]
    for name in peers:
        if (figures := results.resumes.get(name)) is None:
            continue
        wrong = [f"{figures[key]:,} {key}" for key in ("lost", "repeated") if figures[key]]
        resume = "nothing came" if figures["resume_s"] is None else f"{figures['resume_s']:.1f}"
        lines.append(
            f"| {PEERS[name].name}, {PEERS[name].settings} | {figures['begin_s']:.1f} | {resume} "
            f"| {figures['state_bytes']:,} | {', '.join(wrong) or 'each once'} |"
        )
    return lines


def versions_line(results: Results) -> str:
    """Which releases were measured."""
    return ", ".join(f"{package} {version}" for package, version in sorted(results.versions.items()))


def written_into(path: Path, document: str) -> None:
    """Puts the tables between the marks of a page."""
    head, rest = path.read_text().split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n{document}\n{END}{rest.split(END)[1]}")
