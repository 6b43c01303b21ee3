"""Make a tree of links that shows o41td as it is installed, for tools that read files instead of importing.

`python scripts/link_tree.py build/tree` makes build/tree/o41td with a link to each of the package's files and folders,
and beside them `workers` and `shm`, which live at the repository's top.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make_link_tree(tree: Path) -> None:
    """Replace `tree` by a fresh one."""
    shutil.rmtree(tree, ignore_errors=True)
    package = tree / "o41td"
    package.mkdir(parents=True)
    for entry in (ROOT / "o41td").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name in ("workers", "shm"):
        (package / name).symlink_to(ROOT / name)


if __name__ == "__main__":
    make_link_tree(Path(sys.argv[1]))
