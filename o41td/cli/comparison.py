"""Stopped and resumed against never stopped: three streams of one config, and whether they are the same.

The order digest says that the same rows came in the same order, a CRC over all arrays that the same bytes did.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from o41td.cli.failure import UsageProblem
from o41td.cli.pace import Figures, MemoryWatch, StageLeg, legs_of, stream_legs
from o41td.cli.progress import Progress
from o41td.cli.wording import bytes_text, count_text, digest_text

if TYPE_CHECKING:
    from o41td import BatchStream, BatchStreamConfig

__all__ = ["compare_with_a_stop", "halves_of"]

_MEMORY_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What one stream came to."""

    figures: Figures
    order_digest: int
    bound_bytes: int
    peak_bytes: int


def compare_with_a_stop(
    config: BatchStreamConfig,
    *,
    stage_batches: int | None,
    checkpoint_path: Path,
    progress: Progress,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """Stream to the middle and stop, go on from the checkpoint, stream without a stop; returns what `--json` prints.

    Args:
        config: what to stream.
        stage_batches: at most this many batches of each stage; None takes all, which an infinite stage must not.
        checkpoint_path: where the checkpoint goes.
        progress: shows each leg.
        say: prints a line of text.

    Raises:
        UsageProblem: There are fewer than two batches.
        O41Error: As the streams do.
    """
    from o41td import Checkpoint, open_batch_stream, resume_batch_stream

    figures, memory = Figures(), MemoryWatch()
    with open_batch_stream(config) as stream:
        legs = legs_of(stream, config.stage_names, stage_batches=stage_batches)
        first, later = halves_of(legs)
        say(f"\n1  Stream, and stop after {count_text(_batches_in(first))} of {count_text(_batches_in(legs))} batches")
        stopped = _driven(stream, first, figures, memory, progress)
        stream.checkpoint().save(checkpoint_path)
    checkpoint_bytes = checkpoint_path.stat().st_size
    say(f"   saved a checkpoint of {bytes_text(checkpoint_bytes)}, closed the stream and its loader")

    say("\n2  Go on from the checkpoint, in a new loader")
    figures, memory = Figures(content_crc=stopped.figures.content_crc), MemoryWatch()
    with resume_batch_stream(Checkpoint.load(checkpoint_path)) as stream:
        resumed = _driven(stream, later, figures, memory, progress)

    say("\n3  The same without a stop")
    figures, memory = Figures(), MemoryWatch()
    with open_batch_stream(config) as stream:
        straight = _driven(stream, legs, figures, memory, progress)
    return _record(stopped, resumed, straight, checkpoint_bytes)


def halves_of(legs: list[StageLeg]) -> tuple[list[StageLeg], list[StageLeg]]:
    """The legs up to the middle batch of all, and from there on.

    Raises:
        UsageProblem: There is no middle.
    """
    left = _batches_in(legs) // 2
    if not left:
        raise UsageProblem("this config gives fewer than two batches: there is no middle to stop in. Lower batch_size.")
    first: list[StageLeg] = []
    for place, leg in enumerate(legs):
        expected = leg.expected_batches or 0
        if left <= expected:
            first.append(dataclasses.replace(leg, num_batches=left, expected_batches=left))
            limit = None if leg.num_batches is None else leg.num_batches - left
            rest = dataclasses.replace(leg, num_batches=limit, expected_batches=expected - left)
            return first, [rest, *legs[place + 1 :]]
        first.append(leg)
        left -= expected
    raise AssertionError("the middle lies within the legs")


def _batches_in(legs: list[StageLeg]) -> int:
    return sum(leg.expected_batches or 0 for leg in legs)


def _driven(
    stream: BatchStream, legs: list[StageLeg], figures: Figures, memory: MemoryWatch, progress: Progress
) -> _Outcome:
    """Drive an open stream through the legs, and note what it came to."""
    next_look_s = 0.0

    def on_batch(_leg: StageLeg, taken: int) -> None:
        nonlocal next_look_s
        progress.step(taken)
        if time.monotonic() > next_look_s:
            memory.look(stream)
            next_look_s = time.monotonic() + _MEMORY_LOOK_S

    try:
        stream_legs(
            stream,
            legs,
            figures,
            on_leg=lambda leg: progress.begin(leg, figures),
            on_batch=on_batch,
            check_content=True,
        )
    finally:
        progress.end()
    memory.look(stream)
    return _Outcome(
        figures=figures,
        order_digest=stream.order_digest,
        bound_bytes=stream.stats()["memory"]["bound_bytes"],
        peak_bytes=memory.peak_bytes,
    )


def _record(stopped: _Outcome, resumed: _Outcome, straight: _Outcome, checkpoint_bytes: int) -> dict[str, Any]:
    """What `o41td demo --json` prints."""
    outcomes = (stopped, resumed, straight)
    flowing_s = sum(outcome.figures.flowing_s for outcome in outcomes)
    orders_equal = resumed.order_digest == straight.order_digest
    contents_equal = resumed.figures.content_crc == straight.figures.content_crc
    counts_equal = stopped.figures.rows + resumed.figures.rows == straight.figures.rows
    return {
        "batches": straight.figures.batches,
        "rows": straight.figures.rows,
        "bytes": straight.figures.nbytes,
        "rows_per_s": sum(outcome.figures.rows for outcome in outcomes) / flowing_s,
        "bytes_per_s": sum(outcome.figures.nbytes for outcome in outcomes) / flowing_s,
        "first_batch_s": stopped.figures.first_batch_s,
        "first_batch_after_resume_s": resumed.figures.first_batch_s,
        "wait_fraction": sum(outcome.figures.wait_s for outcome in outcomes) / flowing_s,
        "dropped_rows": straight.figures.dropped_rows,
        "stopped_after_batches": stopped.figures.batches,
        "checkpoint_bytes": checkpoint_bytes,
        "order_digest": digest_text(straight.order_digest),
        "order_digest_resumed": digest_text(resumed.order_digest),
        "content_crc": straight.figures.content_crc,
        "content_crc_resumed": resumed.figures.content_crc,
        "equal": orders_equal and contents_equal and counts_equal,
        "memory": {
            "bound_bytes": straight.bound_bytes,
            "peak_bytes": max(outcome.peak_bytes for outcome in outcomes),
        },
    }
