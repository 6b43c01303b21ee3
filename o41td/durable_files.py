"""Having a file system write down what it was given, so that a crash of the host takes nothing back."""

from __future__ import annotations

import contextlib
import os

__all__ = ["force_folder"]


def force_folder(folder: str | os.PathLike[str]) -> None:
    """Forces a rename or a link in a folder to disk, where the file system knows how.

    Blocks: on the disk.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
