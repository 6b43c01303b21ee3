"""What a stream's processes take, measured: peaks of proportional set sizes beside the bound.

Use is what the host would have more without the stream: the arena, whose pages are reserved whether mapped or not, the
loader's processes without it, and what the training process has grown by since before the stream was opened.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leaks import descendants_of
from o41td.host_memory import own_bytes

ROLES = ("trainer", "coordinator", "workers")
_PAUSE_S = 0.02  # a look takes nearly as long


def loader_pids() -> dict[int, str]:
    """The roles of this process's living descendants that belong to a loader, by pid."""
    found: dict[int, str] = {}
    for pid in descendants_of(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            role = next((word.removeprefix("o41td.") for word in words if word.startswith("o41td.")), "")
            if role in ROLES:
                found[pid] = role
    return found


def _given_back_bytes(pid: int) -> int:
    """By how much a process has been larger than it is now, as the system knows without having to look often."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.split()[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmHWM:", "VmRSS:"))}
    return max(0, sizes.get("VmHWM:", 0) - sizes.get("VmRSS:", 0))


@dataclass
class MemoryUse:
    """Peaks in bytes: of all together but the arena, of each role by itself (of the workers, their sum), by process."""

    beside_arena: int = 0
    by_process: dict[int, int] = field(default_factory=dict)
    by_role: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))


class MemoryWatch:
    """Samples this process and its loader in a thread of its own, from entering to leaving the context."""

    def __init__(self) -> None:
        self.use = MemoryUse()
        self._before = own_bytes(os.getpid()) or 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def total_bytes(self, stats: dict[str, Any]) -> int:
        """The peak, with the arena of the stream whose figures these are."""
        return self.use.beside_arena + int(stats["arena"]["bytes"])

    def bytes_at_worst(self, stats: dict[str, Any]) -> int:
        """The peaks of all processes, which come together when chance will have it, with that stream's arena."""
        return sum(self.use.by_process.values()) + int(stats["arena"]["bytes"])

    def _watch(self) -> None:
        peaks = self.use.by_process
        while not self._ended.wait(_PAUSE_S):
            now = dict.fromkeys(ROLES, 0)
            for pid, role in {os.getpid(): "trainer", **loader_pids()}.items():
                taken = own_bytes(pid) or 0
                if role == "trainer":
                    taken = max(0, taken - self._before)
                now[role] += taken
                given_back = 0 if role == "trainer" else _given_back_bytes(pid)
                peaks[pid] = max(peaks.get(pid, 0), taken + given_back)
            self.use.beside_arena = max(self.use.beside_arena, sum(now.values()))
            self.use.by_role = {role: max(peak, now[role]) for role, peak in self.use.by_role.items()}
