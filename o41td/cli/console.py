"""Where commands print what people read: a terminal as wide as it is, or a pipe or file, whose lines have no width."""

from __future__ import annotations

import os
import sys

from rich.console import Console

__all__ = ["PAPER_WIDTH", "open_console"]

PAPER_WIDTH = 1000
"""Columns where nothing limits them: nothing that a command prints is wider."""


def open_console() -> Console:
    """A console on standard output, which in a pipe or a file wraps and cuts nothing, unless `COLUMNS` says otherwise.

    Numbers and paths in what is printed are left uncoloured.
    """
    is_paper = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PAPER_WIDTH if is_paper else None, highlight=False)
