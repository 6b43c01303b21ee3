"""Where running loaders are found: a 0700 folder of this user's, one socket and one small JSON file a loader.

The folder is `/run/user/<uid>/o41td`, or `/tmp/o41td-<uid>` where the system has no runtime folder: fixed, short (a
unix socket's path has 107 characters at most, so a long TMPDIR must not matter), and never taken from the environment.
The JSON file names the pid and its start time, by which a stale entry is told from a live one, and holds no secrets.
Only the same user gets through: the folder's mode keeps others out, and the coordinator checks who connects.

Files are named after the pid and the pid namespace: containers that share the folder cannot tell whether each other's
processes live, and so leave each other's entries alone unless nobody listens at them any more.

A folder that is not ours alone (another's, a link, open to others, or in a place where others could swap it) is
refused, never mended: whoever made it so may have put things there. A loader runs without an entry where no folder is
left, and where none can be made (a read-only root): only `status` misses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from o41td.plain_json import parse_plain_json

__all__ = [
    "LoaderEntry",
    "NameTaken",
    "claimed_name",
    "has_server",
    "listed_loaders",
    "process_start_time",
    "publish_loader",
    "runtime_folder",
    "withdraw_loader",
]

_BACKLOG = 16
_MAX_ENTRY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LoaderEntry:
    """A loader's public face: its name, its coordinator's pid, where to ask it, and whether ranks may join it there.

    `protocol` names the messages that it understands (`o41td.workers.messages.PROTOCOL`).
    """

    name: str
    pid: int
    start_time: int
    socket_path: str
    json_path: str
    protocol: str
    is_served: bool = False


def runtime_folder(*, create: bool) -> Path | None:
    """Returns this user's runtime folder, or None if there is none that is ours alone."""
    uid = os.getuid()
    for parent, name in ((Path(f"/run/user/{uid}"), "o41td"), (Path("/tmp"), f"o41td-{uid}")):  # noqa: S108 - see above
        folder = parent / name
        if create and parent.is_dir():
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)
        if _is_ours_alone(folder, uid):
            return folder
    return None


def _is_ours_alone(folder: Path, uid: int) -> bool:
    try:
        status, parent = folder.lstat(), folder.parent.stat()
    except OSError:
        return False
    others_could_swap_it = bool(parent.st_mode & 0o022) and not parent.st_mode & stat.S_ISVTX
    is_closed = stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o077
    return is_closed and not others_could_swap_it


def process_start_time(pid: int) -> int | None:
    """Returns when a process was started, in clock ticks since boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] == "Z" else int(after_name[19])


def publish_loader(name: str, *, protocol: str, is_served: bool = False) -> tuple[LoaderEntry, socket.socket] | None:
    """Makes this process findable; returns its entry and listening socket, None where there is no runtime folder."""
    folder = runtime_folder(create=True)
    if folder is None:
        return None
    for _stale in _entries(folder, remove_stale=True):
        pass
    pid = os.getpid()
    stem = f"{pid}-{_pid_namespace()}-{secrets.token_hex(4)}"
    entry = LoaderEntry(
        name=name,
        pid=pid,
        start_time=process_start_time(pid) or 0,
        socket_path=str(folder / f"{stem}.sock"),
        json_path=str(folder / f"{stem}.json"),
        protocol=protocol,
        is_served=is_served,
    )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(entry.socket_path)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        kept = ("name", "pid", "start_time", "protocol", "is_served")
        content = json.dumps({key: getattr(entry, key) for key in kept})
        partial = Path(entry.json_path + ".partial")
        partial.write_text(content)
        partial.replace(entry.json_path)
    except OSError:
        listener.close()
        withdraw_loader(entry)
        return None
    return entry, listener


def withdraw_loader(entry: LoaderEntry) -> None:
    """Removes a loader's entry; harmless if it is gone."""
    _remove(Path(entry.json_path), Path(entry.socket_path))


class NameTaken(Exception):
    """Another process has the name; the message is its pid."""


@contextlib.contextmanager
def claimed_name(name: str) -> Iterator[None]:
    """Has a name for this process alone inside the block; the kernel gives it back when the process dies.

    Where no runtime folder is this user's alone, nobody can be found by a name, and none is claimed.

    Raises:
        NameTaken: Another process has it.
    """
    folder = runtime_folder(create=True)
    if folder is None:
        yield
        return
    path = folder / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(open(path, "a+"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise NameTaken(file.read().strip()) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break  # else the one who had it has just removed it
        stack.callback(path.unlink, missing_ok=True)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def has_server(name: str) -> bool:
    """Whether a process that is alive has claimed a name, with or without a loader listed under it yet.

    The claim itself is not tried: for that moment a server that starts would find it taken.
    """
    folder = runtime_folder(create=False)
    if folder is None:
        return False
    try:
        pid = int((folder / f"{name}.lock").read_text())
    except (OSError, ValueError):
        return False
    return pid > 0 and os.path.exists(f"/proc/{pid}")


def listed_loaders() -> list[LoaderEntry]:
    """Returns the entries of this user's loaders that are alive, oldest first; removes those that are not."""
    folder = runtime_folder(create=False)
    if folder is None:
        return []
    return sorted(_entries(folder, remove_stale=True), key=lambda entry: (entry.start_time, entry.pid))


def _pid_namespace() -> str:
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "0"


def _entries(folder: Path, *, remove_stale: bool) -> Iterator[LoaderEntry]:
    if remove_stale:
        _remove_halves(folder)
    of_ours = f"-{_pid_namespace()}-"
    for path in list(folder.glob("*.json")):
        if of_ours in path.name:
            entry = _read_entry(path)
            if entry is not None and process_start_time(entry.pid) == entry.start_time:
                yield entry
                continue
        elif not _is_deserted(path.with_suffix(".sock")):
            continue
        if remove_stale:
            _remove(path, path.with_suffix(".sock"))


def _is_deserted(path: Path) -> bool:
    """Whether nobody listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:  # it has more callers than it takes at once
            return False
    return False


def _remove_halves(folder: Path) -> None:
    """Removes what a loader that was killed while it made its entry has left: files whose names hold its pid."""
    for path in [*folder.glob(f"*-{_pid_namespace()}-*.sock"), *folder.glob(f"*-{_pid_namespace()}-*.partial")]:
        stem = path.name.partition(".")[0]
        pid = stem.partition("-")[0]
        if not (folder / f"{stem}.json").exists() and pid.isdigit() and process_start_time(int(pid)) is None:
            _remove(path)


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _read_entry(path: Path) -> LoaderEntry | None:
    try:
        content: dict[str, Any] = parse_plain_json(path.read_text(), max_bytes=_MAX_ENTRY_BYTES)
        return LoaderEntry(
            name=str(content["name"]),
            pid=int(content["pid"]),
            start_time=int(content["start_time"]),
            socket_path=str(path.with_suffix(".sock")),
            json_path=str(path),
            protocol=str(content.get("protocol")),
            is_served=content.get("is_served") is True,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
