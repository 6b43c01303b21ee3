"""What lies below a folder: all of it, or an error. Rows that nobody missed would be missing from every epoch.

Links to folders are followed, and each folder is gone through once, by its own path before any link to it: a link
called `latest` beside what it points to names no row twice, and one that leads back up ends no walk.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator

from o41td.errors import StorageError

__all__ = ["check_globbed_folders", "is_data_name", "paths_below"]

_NO_DATA = ("lost+found",)
"""Folders that file systems make, and their users may not read."""


def is_data_name(parts: Iterable[str]) -> bool:
    """Whether none of the names on the way to a file is hidden, or begins with `_`."""
    return not any(part.startswith((".", "_")) or part in _NO_DATA for part in parts)


def paths_below(folder: str) -> Iterator[str]:
    """Yields the path of everything below a folder, folders too, in no order that means anything.

    Args:
        folder: The folder.

    Raises:
        StorageError: A folder that may hold data cannot be listed.
    """
    seen = {_identity(folder)}
    waiting, links = [folder], list[str]()
    while waiting or links:
        if not waiting:
            link = links.pop(0)
            if (identity := _identity(link)) not in seen:
                seen.add(identity)
                waiting.append(link)
            continue
        for entry in _entries_of(waiting.pop(), below=folder):
            yield entry.path
            if entry.is_symlink():
                if os.path.isdir(entry.path):
                    links.append(entry.path)
            elif entry.is_dir() and (identity := _identity(entry.path)) not in seen:
                seen.add(identity)
                waiting.append(entry.path)
        links.sort()


def check_globbed_folders(pattern: str) -> None:
    """Makes sure that a glob can look into every folder that it goes through; `glob` passes over the others.

    Args:
        pattern: An absolute path with wildcards.

    Raises:
        StorageError: It cannot be looked into.
    """
    parts = pattern.split("/")
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    root = "/".join(parts[:first]) + "/"
    for number in range(first, len(parts)):
        for folder in glob.iglob("/".join(parts[:number]) + "/", recursive=True):
            may_be_listed = os.access(folder, os.R_OK | os.X_OK)
            if not may_be_listed and is_data_name(folder[len(root) :].split("/")):
                raise _unlisted(folder.rstrip("/") or "/", os.strerror(errno.EACCES))


def _entries_of(folder: str, *, below: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if is_data_name(folder[len(below) :].strip("/").split("/")):
            raise _unlisted(folder, error.strerror or str(error)) from error
        return []


def _unlisted(folder: str, reason: str) -> StorageError:
    return StorageError(
        f"the folder cannot be listed: {reason}",
        uri=folder,
        advice="Check its permissions: what lies in it would be left out without a word",
    )


def _identity(folder: str) -> tuple[int, int]:
    facts = os.stat(folder)
    return facts.st_dev, facts.st_ino
