"""Progress of a stream: a live bar on a terminal, a line now and then elsewhere, nothing where nobody reads it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from o41td.cli.pace import Figures, StageLeg
from o41td.cli.wording import bytes_text, count_text, counted_text, share_text

__all__ = ["LiveProgress", "PlainProgress", "Progress", "SilentProgress", "opening_shown", "progress_on"]

_REDRAW_S = 0.1
_FIRST_PLAIN_LINE_S = 1.0
_PLAIN_LINE_S = 5.0
#  Width and side of a live line's columns: indent, stage, bar, batches, rows/s, bytes/s, wait. 77 with the gaps.
_COLUMNS: tuple[tuple[int, Literal["left", "right"]], ...] = (
    (2, "left"),
    (8, "left"),
    (10, "left"),
    (19, "right"),
    (15, "right"),
    (8, "right"),
    (9, "right"),
)


class Progress(Protocol):
    """Shows one leg of a stream after the other."""

    def begin(self, leg: StageLeg, figures: Figures) -> None:
        """A leg starts; `figures` are the stream's so far."""

    def step(self, taken: int) -> None:
        """`taken` batches of the leg have come. Cheap: called for every batch."""

    def end(self) -> None:
        """The leg is over: its line stays. Harmless if there is none."""


def progress_on(console: Console) -> Progress:
    """The progress that fits where the console leads."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


@contextlib.contextmanager
def opening_shown(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many footers are read, while the block lasts; yields what `open_batch_stream` calls."""
    with console.status("Opening ...") as status:
        yield lambda done, total: status.update(f"Reading footers: {count_text(done)} of {count_text(total)} shards")


class SilentProgress:
    """Shows nothing."""

    def begin(self, leg: StageLeg, figures: Figures) -> None:
        """Nothing."""

    def step(self, taken: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class _LegMeter:
    """One leg's own share of a stream's figures."""

    def __init__(self, leg: StageLeg, figures: Figures) -> None:
        self.leg = leg
        self.taken = 0
        self._figures = figures
        self._start_s: float | None = None
        if figures.batches:
            self._start()

    def step(self, taken: int) -> None:
        """Note the count; the leg's clock starts with the stream's first batch, so opening slows no figure."""
        self.taken = taken
        if self._start_s is None:
            self._start()

    def share(self) -> float | None:
        """How far the leg is, 0 to 1; None if its length is not known."""
        expected = self.leg.expected_batches
        return None if not expected else min(1.0, self.taken / expected)

    def batches_text(self) -> str:
        """How many of how many: "412/960 batches"."""
        expected = self.leg.expected_batches
        if not expected:
            return counted_text(self.taken, "batch", "batches")
        return f"{count_text(self.taken)}/{count_text(expected)} batches"

    def speed_texts(self) -> tuple[str, str, str]:
        """Rows a second, bytes a second, share of the time spent waiting."""
        elapsed_s = 0.0 if self._start_s is None else time.monotonic() - self._start_s
        if elapsed_s <= 0:
            return "– rows/s", "– B/s", "wait –"
        rows, nbytes, wait_s = (getattr(self._figures, name) - before for name, before in self._before.items())
        if not rows:
            return "– rows/s", "– B/s", "wait –"
        wait = share_text(wait_s, elapsed_s)
        return f"{count_text(rows / elapsed_s)} rows/s", f"{bytes_text(nbytes / elapsed_s)}/s", f"wait {wait}"

    def _start(self) -> None:
        self._start_s = time.monotonic()
        self._before = {name: getattr(self._figures, name) for name in ("rows", "nbytes", "wait_s")}


class LiveProgress:
    """A line that is drawn over and over while its leg lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._meter: _LegMeter | None = None
        self._drawn_s = 0.0

    def begin(self, leg: StageLeg, figures: Figures) -> None:
        """Start a new line."""
        self.end()
        self._meter = _LegMeter(leg, figures)
        self._live = Live(self._line(), console=self._console, auto_refresh=False)
        self._live.start(refresh=True)

    def step(self, taken: int) -> None:
        """Draw the line again where it has been still for a tenth of a second."""
        assert self._meter is not None
        assert self._live is not None
        self._meter.step(taken)
        now_s = time.monotonic()
        if now_s - self._drawn_s > _REDRAW_S:
            self._drawn_s = now_s
            self._live.update(self._line(), refresh=True)

    def end(self) -> None:
        """Leave the line as it is."""
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
            self._live.stop()
            self._live = self._meter = None

    def _line(self) -> Table:
        assert self._meter is not None
        share = self._meter.share()
        bar = ProgressBar(total=1.0, completed=share or 0.0, pulse=share is None, width=10)
        name = Text(self._meter.leg.name, style="bold")
        name.truncate(8, overflow="ellipsis")
        rows, nbytes, wait = self._meter.speed_texts()
        line = Table.grid(padding=(0, 1))
        for width, justify in _COLUMNS:
            line.add_column(min_width=width, justify=justify, no_wrap=True)
        batches = self._meter.batches_text()
        line.add_row("", name, bar, batches, Text(rows, style="cyan"), nbytes, Text(wait, style="dim"))
        return line


class PlainProgress:
    """A line when a leg ends, and one every few seconds while it lasts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._meter: _LegMeter | None = None
        self._say_again_s = 0.0

    def begin(self, leg: StageLeg, figures: Figures) -> None:
        """Start counting."""
        self.end()
        self._meter = _LegMeter(leg, figures)
        self._say_again_s = time.monotonic() + _FIRST_PLAIN_LINE_S

    def step(self, taken: int) -> None:
        """Say where things stand if it was quiet for long enough."""
        assert self._meter is not None
        self._meter.step(taken)
        if time.monotonic() > self._say_again_s:
            self._say()

    def end(self) -> None:
        """Say how the leg went."""
        if self._meter is not None:
            self._say()
            self._meter = None

    def _say(self) -> None:
        assert self._meter is not None
        self._say_again_s = time.monotonic() + _PLAIN_LINE_S
        parts = [self._meter.leg.name, self._meter.batches_text(), *self._meter.speed_texts()]
        self._console.print("   " + "  ".join(parts), highlight=False, markup=False, soft_wrap=True)
