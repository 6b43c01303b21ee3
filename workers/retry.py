"""What a store's answers mean, and how long to go on asking. Pure: clock and chance are passed in.

| kind | such as | then |
|---|---|---|
| BUSY | 429, 503 SlowDown | asked again, after a pause |
| BROKEN | 500, a reset, no answer, a body cut short | asked again, after a pause, from the last byte received |
| EXPIRED, DENIED | 401, 403, ExpiredToken | once with credentials read anew, then an error |
| WHOLE | a range was asked for, all of the object comes | twice again, then an error |
| MISSING, CHANGED, REFUSED | 404, another ETag, 400 | an error at once |

Pauses are drawn from [0, min(cap, base · 2^n)) after the n-th failure in a row ("full jitter": Brooker, "Exponential
Backoff And Jitter", 2015), so that many workers do not come back together. They are a request's own, and begin small
again once a byte has come: one throttle slows nothing for long.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

__all__ = ["FaultKind", "Patience", "StoreFault"]

_BASE_S = 0.1
_CAP_S = 20.0
_WHOLE_ATTEMPTS = 3


class FaultKind(Enum):
    """How a request can fail, as the table above says."""

    BUSY = "busy"
    BROKEN = "broken"
    EXPIRED = "expired"
    DENIED = "denied"
    WHOLE = "whole"
    MISSING = "missing"
    CHANGED = "changed"
    REFUSED = "refused"


class StoreFault(Exception):
    """A request failed; `answer` is what the store said, in one line."""

    def __init__(self, kind: FaultKind, answer: str) -> None:
        super().__init__(answer)
        self.kind = kind
        self.answer = answer


class Patience:
    """One request's patience with its store.

    Attributes:
        attempts: How often it was tried.
    """

    def __init__(self, give_up_after_s: float, *, now_s: float, draw: Callable[[], float]) -> None:
        """Gives up after so long without a byte; `draw` gives numbers in [0, 1)."""
        self._give_up_after_s = give_up_after_s
        self._draw = draw
        self._since_s = now_s
        self._failures = 0
        self._whole = 0
        self._has_renewed = False
        self.attempts = 0

    def note_progress(self, now_s: float) -> None:
        """A byte has come."""
        self._since_s = now_s
        self._failures = 0

    def waited_s(self, now_s: float) -> float:
        """How long nothing has come."""
        return now_s - self._since_s

    def may_renew(self) -> bool:
        """Whether credentials may be read anew for this request, which is so once."""
        may, self._has_renewed = not self._has_renewed, True
        return may

    def pause_s(self, kind: FaultKind, now_s: float) -> float | None:
        """Returns how long to wait before the next attempt, None to give up."""
        if kind is FaultKind.WHOLE:
            self._whole += 1
            if self._whole >= _WHOLE_ATTEMPTS:
                return None
        elif kind not in (FaultKind.BUSY, FaultKind.BROKEN):
            return None
        left_s = self._give_up_after_s - self.waited_s(now_s)
        if left_s <= 0:
            return None
        self._failures += 1
        pause_s = self._draw() * min(_CAP_S, _BASE_S * 2.0 ** min(self._failures, 30))
        return min(pause_s, left_s)
