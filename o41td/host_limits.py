"""What limits this process beside memory: cores, address space, the size of a file, the number of processes.

Read from the process's own limits (getrlimit) and from its cgroups' (the kernel's documents
admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst). Whatever is missing or cannot be read sets no limit. The readers
take the root folder as an argument for tests.
"""

from __future__ import annotations

import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from o41td.errors import SharedMemoryError
from o41td.sizes import human_bytes

__all__ = [
    "TASKS_A_PROCESS",
    "HostLimits",
    "core_wait_s",
    "cores_of_quota",
    "host_limits",
    "limit_that_stops",
    "refuse_small_limits",
    "usable_cores",
]

_LEAST_PROCESS_BYTES = 320 << 20
"""Address space that an interpreter with pyarrow takes at least, beside the arena."""
TASKS_A_PROCESS = 6
"""Threads that each of a loader's processes has, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Limits of this process; None where there is none. `tasks` are processes and threads that may still be begun."""

    address_bytes: int | None = None
    file_bytes: int | None = None
    tasks: int | None = None


def host_limits(root: str = "/") -> HostLimits:
    """Returns this process's limits.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    return HostLimits(
        address_bytes=_own_limit(resource.RLIMIT_AS),
        file_bytes=_own_limit(resource.RLIMIT_FSIZE),
        tasks=_tasks_left(Path(root)),
    )


def limit_that_stops(limits: HostLimits, *, arena_bytes: int) -> tuple[str, str] | None:
    """Returns the limit under which no loader with such an arena can live, and what to do; None if there is none."""
    needed = arena_bytes + _LEAST_PROCESS_BYTES
    if limits.address_bytes is not None and limits.address_bytes < needed:
        found = f"a process may map {human_bytes(limits.address_bytes)} (ulimit -v), and needs {human_bytes(needed)}"
        return found, "Raise `ulimit -v`: address space is no memory, which memory_limit_bytes bounds"
    if limits.file_bytes is not None and limits.file_bytes < arena_bytes:
        found = (
            f"a file may have {human_bytes(limits.file_bytes)} (ulimit -f), and the arena {human_bytes(arena_bytes)}"
        )
        return found, "Raise `ulimit -f`: shared memory counts as a file"
    return None


def refuse_small_limits(limits: HostLimits, *, arena_bytes: int) -> None:
    """Refuses to open a loader that could not live.

    Raises:
        SharedMemoryError: A limit forbids the arena.
    """
    stopped = limit_that_stops(limits, arena_bytes=arena_bytes)
    if stopped is not None:
        raise SharedMemoryError(f"this host's limits leave no room for the arena: {stopped[0]}", advice=stopped[1])


def usable_cores(root: str = "/") -> int:
    """Cores that this process may use: those that it may run on, or as many as its cgroups' quota is worth.

    Args:
        root: The folder that holds `proc` and `sys`.
    """
    mount = Path(root) / "sys/fs/cgroup"
    quotas = [cores_of_quota(*_words(folder / "cpu.max")) for folder in _groups(root, mount, "")]
    for folder in _groups(root, mount / "cpu", "cpu"):
        quota, period = (_words(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        quotas.append(cores_of_quota(*quota, *period))
    given = len(os.sched_getaffinity(0))
    return min([given, *(quota for quota in quotas if quota)])


def core_wait_s(pid: int, root: str = "/") -> float | None:
    """How long a process's main thread has been ready to run and waited for a core, in seconds since its start.

    Args:
        pid: The process.
        root: The folder that holds `proc`.

    Returns:
        The second number of `/proc/PID/schedstat` (the kernel's scheduler/sched-stats.rst); None where it is not told.
    """
    words = _words(Path(root) / f"proc/{pid}/schedstat")
    return int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else None


def cores_of_quota(*words: str) -> int | None:
    """Returns the cores that a CPU quota and its period are worth, rounded up; None for none: "max", or below 0."""
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words) or not int(words[1]):
        return None
    return max(1, math.ceil(int(words[0]) / int(words[1])))


def _own_limit(which: int) -> int | None:
    soft, _hard = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _tasks_left(base: Path) -> int | None:
    """What the cgroups' `pids.max` leave."""
    mount = base / "sys/fs/cgroup"
    left = []
    for folder in [*_groups(str(base), mount, ""), *_groups(str(base), mount / "pids", "pids")]:
        most, now = (_words(folder / f"pids.{name}") for name in ("max", "current"))
        if most and now and most[0].isdigit() and now[0].isdigit():
            left.append(max(0, int(most[0]) - int(now[0])))
    return min(left, default=None)


def _groups(root: str, mount: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup of a controller ("" is version 2) and of all above it, to the mount."""
    for line in _text(Path(root) / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (controller or hierarchy == "0"):
            inner = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
            return [mount.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]
    return []


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """A file's text, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
