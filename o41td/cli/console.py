"""Where commands print what people read: a terminal as wide as it is, or a pipe or file, whose lines have no width."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import TextIO, cast

from rich.console import Console

from o41td.cli.wording import printable

__all__ = ["PAPER_WIDTH", "open_console"]

PAPER_WIDTH = 1000
"""Columns where nothing limits them: nothing that a command prints is wider."""

_LEAST_WIDTH = 72
"""Columns into which the tables fit, but for wide ones of the data itself."""


def open_console() -> Console:
    """A console on standard output, which in a pipe or a file wraps and cuts nothing, unless `COLUMNS` says otherwise.

    Numbers and paths in what is printed are left uncoloured. Where there are few columns, lines are made for more: a
    terminal wraps them more readably than a table whose cells have a letter a line, or that leaves some out.
    """
    if sys.stdout.isatty():
        console = Console(highlight=False)
    else:
        width = None if "COLUMNS" in os.environ else PAPER_WIDTH
        console = Console(file=cast("TextIO", _Trimmed(sys.stdout)), width=width, highlight=False)
    if console.width < _LEAST_WIDTH:  # noqa: PLR1730 - a width that was set no longer follows the window
        console.width = _LEAST_WIDTH
    return console


class _Trimmed(io.TextIOBase):
    """A text file whose lines lose the blanks with which tables are filled up, and which has no control characters."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        self._file.write(printable(_BLANKS_AT_END.sub("", text)))
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override] # typeshed has an attribute, of which this is the reader
        return self._file.encoding


_BLANKS_AT_END = re.compile(r"[ ]+(?=\n)")
