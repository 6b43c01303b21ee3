"""The last events of a loader, in a few words each, told where something turns out to be impossible."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from o41td.coordinator.events import (
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    Event,
    PieceWasBegun,
    RankAttached,
    RankLeft,
    SlotsWereHeld,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
    WorkerWaited,
)

__all__ = ["EventStory"]

_LENGTH = 30
_HEAVY = (RankAttached, BlockWasDecoded, BlockWasRefused)


class EventStory:
    """What happened lately: of events that hold plans or error records only the words, so that it keeps none alive."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._events: deque[Event | str] = deque(maxlen=_LENGTH)

    def note(self, event: Event) -> None:
        """Takes an event in."""
        self._events.append(_brief(event) if isinstance(event, _HEAVY) else event)

    def __str__(self) -> str:
        told = [event if isinstance(event, str) else _brief(event) for event in self._events]
        return f"the last events: {'; '.join(told)}"

    def tell_in(self, error: AssertionError) -> None:
        """Adds the story to an error's notes."""
        error.add_note(str(self))


def _brief(event: Event) -> str:
    match event:
        case RankAttached():
            about = f"rank {event.rank}, generation {event.generation}"
        case BatchesWereGathered():
            about = f"rank {event.rank}, generation {event.generation}: {event.gathered}"
        case RankLeft():
            about = f"rank {event.rank}"
        case SlotsWereHeld():
            about = f"{sorted(event.slots)}"
        case BlockWasDecoded() | BlockWasRefused() | PieceWasBegun():
            about = f"worker {event.worker}, block {event.handle}"
        case WorkerBecameReady() | WorkerExited() | WorkerWaited():
            about = f"worker {event.worker}"
        case TimePassed():
            about = f"{event.now_s:.1f} s"
        case _:
            assert_never(event)
    return f"{type(event).__name__} ({about})"
