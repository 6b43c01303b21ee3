"""Signals that ask a command to end: a Ctrl-C, a scheduler's SIGTERM, a terminal that closes.

All three become a `KeyboardInterrupt` of their own kind, where Python has one for Ctrl-C alone. What is to be saved is
saved then; for that reason only the first of them counts, and those behind it are ignored until the command has ended.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["AskedToEnd", "asked_to_end"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class AskedToEnd(KeyboardInterrupt):
    """The process was sent signal `number`."""

    def __init__(self, number: int) -> None:
        """Which signal it was."""
        super().__init__(number)
        self.number = number

    @property
    def word(self) -> str:
        """What happened: "Interrupted" for a Ctrl-C, else "Terminated" or "Hung up"."""
        return {signal.SIGTERM: "Terminated", signal.SIGHUP: "Hung up"}.get(signal.Signals(self.number), "Interrupted")


@contextlib.contextmanager
def asked_to_end() -> Iterator[None]:
    """Raise `AskedToEnd` in the block at the first signal that asks for its end; what the caller ignores stays ignored.

    Called by: the main thread.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def ask(number: int, _frame: FrameType | None) -> NoReturn:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise AskedToEnd(number)

    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, ask)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
