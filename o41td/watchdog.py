"""The watchdog: when a training loop has waited long for a batch, one line says who waits for whom.

It speaks only while somebody waits, first after 10 s (or half the stall timeout, if that is less) and then each time
the wait has doubled; a stream that flows, or that nobody reads, says nothing. What it says is asked of the coordinator
at that moment, so a coordinator that does not answer is named as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from o41td.gatherer import Gatherer
from o41td.stream_log import StreamLog

__all__ = ["WaitWatchdog", "who_is_waited_for"]

_FIRST_S = 10.0
_ANSWER_S = 1.0
_MAX_WORKERS_TOLD = 3


class WaitWatchdog:
    """Watches one wait of the stream's thread; `look` is called whenever that thread wakes without a batch."""

    def __init__(self, gatherer: Gatherer, log: StreamLog, *, stall_timeout_s: float) -> None:
        """The wait begins; what is to be said of it goes into `log`."""
        self._gatherer = gatherer
        self._log = log
        self._begun_s = time.monotonic()
        self._due_s = min(_FIRST_S, stall_timeout_s / 2)
        self._asked: tuple[int, float] | None = None  # (number of the request, when)

    def look(self, batch: int) -> None:
        """Asks the coordinator once it is time, and says what it answered; `batch` is what is waited for."""
        gatherer = self._gatherer
        now_s = time.monotonic()
        waited_s = now_s - self._begun_s
        if self._asked is None:
            if waited_s >= self._due_s:
                gatherer.stats_wanted += 1
                self._asked = (gatherer.stats_wanted, now_s)
                gatherer.bell.ring()
            return
        number, asked_s = self._asked
        answered, stats = gatherer.stats
        if answered >= number:
            words = who_is_waited_for(stats["workers"])
        elif gatherer.is_replacing:
            words = "its coordinator is gone, and there is no other yet"
        elif now_s - asked_s > _ANSWER_S:
            words = f"its coordinator (pid {gatherer.loader.coordinator_pid}) does not answer"
        else:
            return
        self._asked = None
        self._due_s = 2 * waited_s
        self._log.warning("the stream has waited %.1f s for its batch %d: %s", waited_s, batch, words)


def who_is_waited_for(workers: Sequence[Mapping[str, Any]]) -> str:
    """Returns what keeps a loader's workers, those first that have been at it longest.

    Args:
        workers: As `stats()["workers"]` holds them.
    """
    busy = sorted((worker for worker in workers if worker["reading"]), key=lambda w: -w["reading"]["for_s"])
    told = [
        f"worker {worker['id']} (pid {worker['pid']}) has been reading row group {worker['reading']['row_group']} of "
        f"{worker['reading']['shard']} for {worker['reading']['for_s']:.1f} s"
        for worker in busy[:_MAX_WORKERS_TOLD]
    ]
    starting = [str(worker["id"]) for worker in workers if worker["state"] == "starting"]
    if starting:
        told.append(f"worker {', '.join(starting[:_MAX_WORKERS_TOLD])} of {len(workers)} is starting")
    return "; ".join(told) or "no worker has work to do"
