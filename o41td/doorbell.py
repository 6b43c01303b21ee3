"""A doorbell: one thread sleeps at it, others ring. Nothing is locked, so an interrupt can leave nothing locked."""

from __future__ import annotations

import contextlib
import os
import select

__all__ = ["Doorbell"]


class Doorbell:
    """An eventfd. A ring before the sleep is not lost: the next `wait` returns at once."""

    def __init__(self) -> None:
        """Opens it."""
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._also: int | None = None  # what else the poll object looks at

    def ring(self) -> None:
        """Wakes the sleeper. Called by: any thread."""
        if self._descriptor >= 0:
            os.eventfd_write(self._descriptor, 1)  # 2^64 rings without a listener would fail, and take 10 000 years

    def wait(self, timeout_s: float | None, also: int | None = None) -> bool:
        """Sleeps until it rings, or the descriptor `also` can be read; returns whether `also` can.

        Blocks: as said, at most `timeout_s`. Called by: the one sleeper.
        """
        if also != self._also:
            self._look_also_at(also)
        can_read_also = False
        for descriptor, _event in self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            if descriptor == also:
                can_read_also = True
            else:
                with contextlib.suppress(BlockingIOError):  # a second sleeper has heard it first
                    os.eventfd_read(descriptor)
        return can_read_also

    def _look_also_at(self, descriptor: int | None) -> None:
        if self._also is not None:
            self._poll.unregister(self._also)
        self._also = descriptor
        if descriptor is not None:
            self._poll.register(descriptor, select.POLLIN)

    def close(self) -> None:
        """Closes it; the sleeper must be gone, and later rings are of no effect. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
