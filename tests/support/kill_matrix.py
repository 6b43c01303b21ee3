"""The kill matrix: how a process ends × what it is at × which process it is, and what has to come of it.

`docs/reliability.md` holds it as tables, which a test compares with `tables()`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum

__all__ = ["ACTS", "PHASES", "ROLES", "Outcome", "cells", "outcome_of", "tables"]

_IS_WHOLE = os.environ.get("O41TD_KILL_MATRIX") == "whole"
ROLES = ("worker", "coordinator", "trainer")
PHASES = ("starting", "fetching", "slot begun", "slot committed", "idle", "stopping")
ACTS = {  # as people call them, and as `fault_code` does
    "SIGKILL": "SIGKILL",
    "SIGSEGV": "SIGSEGV",
    "exit 0": "exit",
    "exit 1": "fail",
    "raise": "raise",
    "SIGSTOP": "SIGSTOP",
    "out of memory": "memory",
}


class Outcome(Enum):
    """What has to come of it; in every case nothing is left behind, and stderr holds nothing of ours."""

    SAME_BYTES = "same bytes"
    REFUSED = "open fails, says how"
    ENDS = "loader ends"
    CLOSED = "closed"
    LATE = "(1)"
    HARMLESS = "(2)"
    OURS = "(3)"


NOTES = {
    Outcome.SAME_BYTES: "the stream goes on with the same bytes and the same order digest; the process is replaced",
    Outcome.REFUSED: "`open_batch_stream` raises `CoordinatorError` with the signal or exit code and the last words",
    Outcome.ENDS: "coordinator and workers end by themselves, and the exit code is the trainer's own",
    Outcome.CLOSED: "`close()` returns, and every process is gone",
    Outcome.LATE: "not run: a start may take 60 s, so a stopped one is killed and replaced, or refused, after 60 s",
    Outcome.HARMLESS: "continued with SIGCONT, it takes the rest of its batches: same bytes, no process replaced",
    Outcome.OURS: "not run: only our code runs where a batch is gathered, and it does not leave or raise there",
}
ALIKE_MARK = "(4)"
ALIKE_NOTE = (
    "SIGKILL but for the exit code, which is looked up by the same code whatever the moment, and is run in another "
    "column: run where `O41TD_KILL_MATRIX=whole` is set"
)

_USUAL = {
    ("worker", "stopping"): Outcome.CLOSED,
    ("coordinator", "starting"): Outcome.REFUSED,
    ("coordinator", "fetching"): Outcome.REFUSED,
    ("coordinator", "stopping"): Outcome.CLOSED,
}
_UNUSUAL = {
    ("worker", "starting", "SIGSTOP"): Outcome.LATE,
    ("coordinator", "starting", "SIGSTOP"): Outcome.LATE,
    ("coordinator", "fetching", "SIGSTOP"): Outcome.LATE,
    ("trainer", "slot begun", "raise"): Outcome.OURS,
    ("trainer", "slot begun", "out of memory"): Outcome.OURS,
}


# Ways to be gone at once that differ in the exit code alone, and the phases in which SIGKILL stands for them.
_GONE_AT_ONCE = ("SIGSEGV", "exit 0", "exit 1")
_ALIKE_IN = {
    "worker": ("slot begun", "slot committed", "idle", "stopping"),
    "coordinator": ("fetching", "slot committed", "idle", "stopping"),
    "trainer": ("starting", "slot begun", "slot committed", "idle", "stopping"),
}


def outcome_of(role: str, phase: str, act: str) -> Outcome:
    """What has to come of one cell."""
    if (role, phase, act) in _UNUSUAL:
        return _UNUSUAL[role, phase, act]
    if role == "trainer":
        return Outcome.HARMLESS if act == "SIGSTOP" else Outcome.ENDS
    return _USUAL.get((role, phase), Outcome.SAME_BYTES)


def is_alike(role: str, phase: str, act: str) -> bool:
    """Whether SIGKILL stands for this cell unless the whole matrix is wanted."""
    return act in _GONE_AT_ONCE and phase in _ALIKE_IN[role]


def cells(role: str, phase: str) -> Iterator[tuple[str, Outcome]]:
    """Yield (act, outcome) of the cells that are run."""
    for act in ACTS:
        outcome = outcome_of(role, phase, act)
        if outcome not in (Outcome.LATE, Outcome.OURS) and (_IS_WHOLE or not is_alike(role, phase, act)):
            yield act, outcome


def tables() -> str:
    """The matrix as Markdown."""
    lines = []
    for role in ROLES:
        lines += [f"| {role} | {' | '.join(PHASES)} |", "|---" * (len(PHASES) + 1) + "|"]
        lines += [f"| {act} | {' | '.join(_shown(role, phase, act) for phase in PHASES)} |" for act in ACTS]
        lines.append("")
    lines += [f"- {outcome.value}: {note}." for outcome, note in NOTES.items()]
    lines.append(f"- {ALIKE_MARK}: {ALIKE_NOTE}.")
    return "\n".join(lines)


def _shown(role: str, phase: str, act: str) -> str:
    outcome = outcome_of(role, phase, act).value
    return f"{outcome} {ALIKE_MARK}" if is_alike(role, phase, act) else outcome
