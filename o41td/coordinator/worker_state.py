"""What the state machine knows of one worker process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["WorkerState"]


@dataclass(slots=True)
class WorkerState:
    """A worker: the handles it was given and has not finished, oldest first, and when its oldest became current.

    `vouched_s` is when it last said that it waits for a store, and so is not stuck. `last_unit` is the unit, as (stage,
    source, unit), of which it was given rows last. A `stalled` one is to be killed.
    """

    worker: int
    ready: bool = False
    queue: deque[int] = field(default_factory=deque)
    since_s: float = 0.0
    vouched_s: float = 0.0
    restarts: int = 0
    last_unit: tuple[int, int, int] | None = None
    stalled: bool = False

    def is_at(self, handle: int) -> bool:
        """Whether it is decoding this block: a worker takes its blocks in the order in which it was given them."""
        return bool(self.queue) and self.queue[0] == handle
