"""Where the time of a stream goes: phase by phase and process by process, out of its figures.

| process | phase | wall clock | CPU |
|---|---|---|---|
| workers | fetch, decode, project | counted by each worker, block by block | of the thread at it |
| | idle | the rest of all workers' time | |
| | else | | the rest of the processes' CPU: start, footers, messages, fetching threads |
| coordinator | plan, messages | | of the process |
| loop | gather ahead | copying batches out of the arena, in a thread of the training process | |
| | gather | the same, while the loop waited for the batch | |
| | wait | the rest of the time that the loop waited | |
| | else | the training itself | of the whole process |

Counts are sums of seconds, so the difference of two of them is what lies between.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from o41td.percentages import percent_text

__all__ = ["Phase", "counts_of", "phases_of", "phases_table", "profile_is_wanted", "profile_text"]

_WORK = ("fetch", "decode", "project")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one kind of process spent on one thing, in seconds; `share` is of the time that such processes had."""

    process: str
    phase: str
    wall_s: float | None = None
    share: float | None = None
    cpu_s: float | None = None

    def to_record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def counts_of(figures: Mapping[str, Any], *, loop_cpu_s: float | None = None) -> dict[str, float]:
    """Returns the seconds in a stream's figures (`stats`); `loop_cpu_s` is the CPU of the training process."""
    waited = ("wait_s", "gather_s", "gather_in_wait_s")
    worked = [f"{work}_{kind}" for work in _WORK for kind in ("s", "cpu_s")]
    return {
        **{name: float(figures[name]) for name in (*waited, *worked)},
        "workers_cpu_s": sum(worker["cpu_s"] for worker in figures["workers"]),
        "coordinator_cpu_s": figures["coordinator"]["cpu_s"],
        **({} if loop_cpu_s is None else {"loop_cpu_s": loop_cpu_s}),
    }


def phases_of(counts: Mapping[str, float], *, elapsed_s: float, num_workers: int) -> list[Phase]:
    """Returns the phases of `elapsed_s` seconds in which `counts` grew by so much from nothing."""

    def phase(process: str, name: str, wall_s: float | None = None, cpu_s: float | None = None) -> Phase:
        whole_s = elapsed_s * (num_workers if process == "workers" else 1)
        share = None if wall_s is None or whole_s <= 0 else wall_s / whole_s
        return Phase(process=process, phase=name, wall_s=wall_s, share=share, cpu_s=cpu_s)

    worked_s, worked_cpu_s = (sum(counts[f"{work}_{kind}"] for work in _WORK) for kind in ("s", "cpu_s"))
    in_wait_s = counts["gather_in_wait_s"]
    loop_s = max(0.0, elapsed_s - counts["wait_s"])
    return [
        *(phase("workers", work, counts[f"{work}_s"], counts[f"{work}_cpu_s"]) for work in _WORK),
        phase("workers", "idle", max(0.0, elapsed_s * num_workers - worked_s)),
        phase("workers", "else", cpu_s=max(0.0, counts["workers_cpu_s"] - worked_cpu_s)),
        phase("coordinator", "plan, messages", cpu_s=counts["coordinator_cpu_s"]),
        phase("loop", "gather ahead", counts["gather_s"] - in_wait_s),
        phase("loop", "gather", in_wait_s),
        phase("loop", "wait", max(0.0, counts["wait_s"] - in_wait_s)),
        phase("loop", "else", loop_s, counts.get("loop_cpu_s")),
    ]


def phases_table(phases: Iterable[Phase]) -> str:
    """Returns the phases as lines of text, below 60 columns."""
    lines = [("process", "phase", "seconds", "share", "CPU s")]
    before = ""
    for each in phases:
        process = each.process if each.process != before else ""
        before = each.process
        share = "–" if each.share is None else percent_text(each.share)
        lines.append((process, each.phase, _seconds_text(each.wall_s), share, _seconds_text(each.cpu_s)))
    return "\n".join(_line(cells) for cells in lines)


def profile_is_wanted() -> bool:
    """Whether `O41TD_PROFILE` asks for a stream's profile at its close."""
    return os.environ.get("O41TD_PROFILE", "") not in ("", "0")


def profile_text(figures: Mapping[str, Any], whose: str, elapsed_s: float) -> str:
    """Returns what a stream says when it is closed, its `stats()` being `figures`, `elapsed_s` after it was opened."""
    phases = phases_of(counts_of(figures), elapsed_s=elapsed_s, num_workers=len(figures["workers"]))
    done = f"{figures['rows']:,} rows in {figures['batches']:,} batches, {elapsed_s:.2f} s"
    return f"o41td profile of {whose}: {done}\n{phases_table(phases)}"


def _line(cells: Sequence[str]) -> str:
    process, phase, *numbers = cells
    return f"{process:<11}  {phase:<14}" + "".join(f"  {number:>8}" for number in numbers)


def _seconds_text(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f}"
