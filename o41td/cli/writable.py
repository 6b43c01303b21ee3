"""Whether a file that an option names can be written: asked before hours of work, not behind them."""

from __future__ import annotations

import os
from pathlib import Path

from o41td.cli.failure import UsageProblem

__all__ = ["check_writable"]


def check_writable(option: str, path: Path) -> None:
    """Refuses a file that cannot be put in place: this needs a folder in which names may be made and replaced.

    Args:
        option: the option that named it.
        path: the file, there already or not.

    Raises:
        UsageProblem: It is a folder, or lies in none, or in one that this user may not write to.
    """
    folder = path.absolute().parent
    if os.path.isdir(path) or not os.path.isdir(folder):  # pathlib's own raise where a folder may not be entered
        raise UsageProblem(f"{option} {path}: this must name a file in a folder that is there")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageProblem(f"{option} {path}: this user may not write into its folder")
