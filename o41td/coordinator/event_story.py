"""The last events of a loader, in a few words each, told where something turns out to be impossible."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from o41td.coordinator.events import (
    BatchesWereGathered,
    BlockWasDecoded,
    BlockWasRefused,
    Event,
    PieceWasBegun,
    RankAttached,
    RankLeft,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
    WorkerWaited,
)

__all__ = ["EventStory"]

_LENGTH = 30


class EventStory:
    """What happened lately: words, so that it keeps neither plans nor error records alive."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._events: deque[str] = deque(maxlen=_LENGTH)

    def note(self, event: Event) -> None:
        """Takes an event in."""
        self._events.append(_brief(event))

    def __str__(self) -> str:
        return f"the last events: {'; '.join(self._events)}"

    @contextmanager
    def told_in_errors(self) -> Iterator[None]:
        """Adds the story to the notes of an AssertionError that passes through."""
        try:
            yield
        except AssertionError as error:
            error.add_note(str(self))
            raise


def _brief(event: Event) -> str:
    match event:
        case RankAttached():
            about = f"rank {event.rank}, generation {event.generation}"
        case BatchesWereGathered():
            about = f"rank {event.rank}, generation {event.generation}: {event.count}"
        case RankLeft():
            about = f"rank {event.rank}"
        case BlockWasDecoded() | BlockWasRefused() | PieceWasBegun():
            about = f"worker {event.worker}, block {event.handle}"
        case WorkerBecameReady() | WorkerExited() | WorkerWaited():
            about = f"worker {event.worker}"
        case TimePassed():
            about = f"{event.now_s:.1f} s"
        case _:
            assert_never(event)
    return f"{type(event).__name__} ({about})"
