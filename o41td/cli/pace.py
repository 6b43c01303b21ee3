"""A stream driven stage by stage, and what it took. Knows nothing of terminals.

Kinds of number used here: a stage is its place in the config; batches and rows are those of this rank; times are
seconds of the monotonic clock; waiting is time spent in `stream.next()`, which is when the training process has no
batch to work on.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from o41td.host_memory import pss_bytes

if TYPE_CHECKING:
    from o41td import Batch, BatchStream

__all__ = ["Figures", "MemoryWatch", "StageLeg", "legs_of", "stream_legs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLeg:
    """One stage to stream: at most `num_batches` batches of it, or all there are.

    Attributes:
        stage: its place in the config.
        name: what it is called.
        num_batches: stop after this many; None goes on to the stage's end.
        expected_batches: how many will come, where that is known.
    """

    stage: int
    name: str
    num_batches: int | None = None
    expected_batches: int | None = None


@dataclass(slots=True, kw_only=True)
class Figures:
    """What has been delivered so far, and how long it took.

    Attributes:
        batches: delivered batches.
        rows: their rows.
        nbytes: their arrays' bytes.
        dropped_rows: rows that the stages streamed to their ends left out on this rank.
        wall_s: since the stream was about to be opened.
        wait_s: of that, waiting for a batch once the first had come.
        first_batch_s: until the first batch; None before it.
        content_crc: CRC-32 of every array's bytes in the order delivered.
    """

    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    dropped_rows: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0
    first_batch_s: float | None = None
    content_crc: int = 0
    started_s: float = field(default_factory=time.monotonic)

    @property
    def flowing_s(self) -> float:
        """Time since the first batch, over which rates are taken: opening is told apart, as `first_batch_s`."""
        return self.wall_s - (self.first_batch_s or 0.0)

    def look_into(self, batch: Batch, waited_s: float, *, check_content: bool) -> None:
        """Add what else there is to tell of a batch that took `waited_s` to come."""
        now_s = time.monotonic()
        for array in batch.arrays().values():
            self.nbytes += array.nbytes
            if check_content:
                self.content_crc = zlib.crc32(array.data, self.content_crc)
        if self.first_batch_s is None:
            self.first_batch_s = now_s - self.started_s
        else:
            self.wait_s += waited_s
        self.wall_s = now_s - self.started_s


class MemoryWatch:
    """The most memory that a loader was seen to use, with what its batches add to this process.

    Proportional set sizes are summed, so the shared arena counts once however many processes map it.
    """

    def __init__(self) -> None:
        self._before_bytes = pss_bytes(os.getpid()) or 0
        self.peak_bytes = 0

    def look(self, stream: BatchStream) -> None:
        """Measure now.

        Blocks: for one question to the coordinator, and some milliseconds a process.
        """
        stats = stream.stats()
        pids = [stats["coordinator"]["pid"], *(worker["pid"] for worker in stats["workers"])]
        loader_bytes = sum(pss_bytes(pid) or 0 for pid in pids if pid)
        own_bytes = max(0, (pss_bytes(os.getpid()) or 0) - self._before_bytes)
        self.peak_bytes = max(self.peak_bytes, loader_bytes + own_bytes)


def legs_of(stream: BatchStream, stage_names: Sequence[str], *, stage_batches: int | None = None) -> list[StageLeg]:
    """What is left of each stage from the stream's own on, in order; stages with nothing left are not among it.

    Args:
        stream: says how many batches each stage still has for this rank.
        stage_names: by their place in the config.
        stage_batches: at most this many of each; None takes all there are.
    """
    legs = []
    for stage in range(stream.stage, len(stage_names)):
        there_are = stream.num_rounds(stage)
        expected = min((count for count in (there_are, stage_batches) if count is not None), default=None)
        if expected != 0:
            limit = None if expected == there_are else expected
            legs.append(StageLeg(stage=stage, name=stage_names[stage], num_batches=limit, expected_batches=expected))
    return legs


def stream_legs(
    stream: BatchStream,
    legs: Sequence[StageLeg],
    figures: Figures,
    *,
    on_leg: Callable[[StageLeg], object],
    on_batch: Callable[[StageLeg, int], object],
    num_batches: int | None = None,
    check_content: bool = False,
) -> None:
    """Stream each leg in turn; `figures` says at any moment, after an error too, what has been delivered.

    Args:
        stream: stands at the first leg's stage, or before any batch.
        legs: stages in the order to stream them.
        figures: added to.
        on_leg: called before a leg's first batch.
        on_batch: called with the leg and how many of its batches have come, after each of them.
        num_batches: stop when `figures` counts this many; None goes on through all legs.
        check_content: take the CRC of all bytes too.
    """
    for leg in legs:
        if figures.batches == num_batches:
            break
        stream.advance(leg.stage)
        on_leg(leg)
        taken = 0
        while (leg.num_batches is None or taken < leg.num_batches) and figures.batches != num_batches:
            asked_s = time.monotonic()
            batch = stream.next()
            if batch is None:
                figures.dropped_rows += stream.dropped_rows
                break
            # No call between the stream's count and these: a signal's handler may raise at calls only.
            figures.batches += 1
            figures.rows += batch.num_rows
            figures.look_into(batch, time.monotonic() - asked_s, check_content=check_content)
            taken += 1
            on_batch(leg, taken)
            del batch  # its memory is free for the next one
    figures.wall_s = time.monotonic() - figures.started_s
