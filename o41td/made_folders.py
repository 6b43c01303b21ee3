"""Folders that were made on the way to a file: gone again, as far as they are empty, where it came to nothing."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["MadeFolders"]


class MadeFolders:
    """Makes folders with their parents, and knows which of them were not there."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def make(self, folder: Path) -> None:
        """Makes a folder, unless it is there.

        Raises:
            OSError: It cannot be made.

        Blocks: on the file system.
        """
        for place in (folder, *folder.parents):
            if os.path.lexists(place):
                break
            self._made.append(place)
        folder.mkdir(parents=True, exist_ok=True)

    def remove_empty(self) -> None:
        """Removes those that hold nothing: what others have put there stays, and so do folders that were found.

        Blocks: on the file system.
        """
        self._made.sort(key=lambda folder: len(folder.parts))
        kept = []
        while self._made:
            folder = self._made.pop()
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                kept.append(folder)
        self._made = kept
