"""How much memory this process may use, and how much a process does use.

The limit is the smaller of physical memory and every cgroup limit from the process's own group up to the root, in both
cgroup versions (the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). Whatever is missing or
cannot be read sets no limit. The parsers are pure; the readers take the root folder as an argument for tests.
"""

from pathlib import Path, PurePosixPath

__all__ = [
    "cgroup_paths_of",
    "default_memory_limit_bytes",
    "limit_of",
    "meminfo_total_bytes",
    "own_bytes",
    "pss_bytes",
    "smaps_pss_bytes",
    "usable_memory_bytes",
]

_FALLBACK_BYTES = 4 * 2**30


def usable_memory_bytes(root: str = "/") -> int:
    """The most that this process may use: min(physical memory, its cgroups' limits).

    Args:
        root: The folder that holds `proc` and `sys`.

    Returns:
        Bytes; 4 GiB where nothing at all could be read.
    """
    base = Path(root)
    limits = [meminfo_total_bytes(_read(base / "proc/meminfo"))]
    version_1, version_2 = cgroup_paths_of(_read(base / "proc/self/cgroup"))
    mount = base / "sys/fs/cgroup"
    if version_2 is not None:
        limits.extend(limit_of(_read(folder / "memory.max")) for folder in _upwards(mount, version_2))
    if version_1 is not None:
        folders = _upwards(mount / "memory", version_1)
        limits.extend(limit_of(_read(folder / "memory.limit_in_bytes")) for folder in folders)
    known = [limit for limit in limits if limit]
    return min(known, default=_FALLBACK_BYTES)


def default_memory_limit_bytes(root: str = "/") -> int:
    """What a stream may use unless told otherwise: half of `usable_memory_bytes`."""
    return usable_memory_bytes(root) // 2


def pss_bytes(pid: int, root: str = "/") -> int | None:
    """The proportional set size of a process: each shared page counted by its share.

    Args:
        pid: The process.
        root: The folder that holds `proc`.

    Returns:
        Bytes, or None if the process is gone, is another user's, or the kernel does not tell.
    """
    return smaps_pss_bytes(_read(Path(root) / f"proc/{pid}/smaps_rollup"))


def own_bytes(pid: int, root: str = "/") -> int | None:
    """A process's proportional set size without shared memory (tmpfs, memfd): what it uses beside the arena.

    Args:
        pid: The process.
        root: The folder that holds `proc`.

    Returns:
        Bytes, or None as for `pss_bytes`.
    """
    text = _read(Path(root) / f"proc/{pid}/smaps_rollup")
    whole = smaps_pss_bytes(text)
    return None if whole is None else whole - (_kilobytes_of(text, "Pss_Shmem:") or 0)


def meminfo_total_bytes(text: str) -> int | None:
    """Physical memory out of `/proc/meminfo`."""
    return _kilobytes_of(text, "MemTotal:")


def smaps_pss_bytes(text: str) -> int | None:
    """The sum of the `Pss:` lines of a `smaps` or `smaps_rollup` text; None if there is none."""
    return _kilobytes_of(text, "Pss:")


def cgroup_paths_of(text: str) -> tuple[str | None, str | None]:
    """The process's memory cgroups out of `/proc/self/cgroup`.

    Args:
        text: Lines `hierarchy:controllers:path`; version 2 is the line `0::path`. Both may be there (hybrid mode).

    Returns:
        The paths in (version 1, version 2), None where there is none.
    """
    version_1 = version_2 = None
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if hierarchy == "0" and not controllers:
            version_2 = path
        elif "memory" in controllers.split(","):
            version_1 = path
    return version_1, version_2


def limit_of(text: str) -> int | None:
    """The limit in a `memory.max` or `memory.limit_in_bytes` file; None for "max", nonsense, and "no limit".

    Version 1 writes "no limit" as the largest whole number of pages below 2^63.
    """
    word = text.strip()
    if not (word.isascii() and word.isdigit()):
        return None
    value = int(word)
    return value if 0 < value < 2**62 else None


def _upwards(mount: Path, path: str) -> list[Path]:
    """A cgroup's folder and all above it down to the mount.

    In a container the path may name a place outside of what is mounted; the mount itself then is its group.
    """
    inner = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    return [mount.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]


def _read(path: Path) -> str:
    """A file's text, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _kilobytes_of(text: str, label: str) -> int | None:
    """The sum of the lines `label <n> kB`, in bytes."""
    total = None
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == label and words[1].isdigit():
            total = (total or 0) + int(words[1]) * 1024
    return total
