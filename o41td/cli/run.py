"""`o41td run`: a config's stages streamed to their end, and how fast that went."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from o41td.cli.failure import Interrupted
from o41td.cli.pace import Figures, StageLeg, stream_legs
from o41td.cli.progress import SilentProgress, progress_on
from o41td.cli.summary import print_run_summary
from o41td.cli.wording import count_text

if TYPE_CHECKING:
    from o41td import BatchStream, BatchStreamConfig

__all__ = ["record_of", "run_config", "stage_legs"]


def run_config(
    config_path: Path,
    *,
    rank: int,
    world_size: int,
    num_batches: int | None,
    checkpoint_path: Path | None,
    resume_path: Path | None,
    as_json: bool,
) -> None:
    """Stream the config's stages in turn and print a summary; its last line is JSON with `as_json`.

    Args:
        config_path: the config.
        rank: this process's number.
        world_size: how many there are.
        num_batches: stop after this many batches of this rank; None goes on to the last stage's end.
        checkpoint_path: where to save the position at the end, also after Ctrl-C or an error.
        resume_path: a checkpoint to go on from.
        as_json: for programs.

    Raises:
        O41Error: The config, the checkpoint or the data do not allow it.
        Interrupted: Ctrl-C.
    """
    from o41td import BatchStreamConfig

    config = BatchStreamConfig.load(config_path)
    progress = SilentProgress() if as_json else progress_on(Console(stderr=True))
    figures = Figures()
    with _opened(config, resume_path, rank=rank, world_size=world_size) as (stream, first_stage):
        legs = stage_legs(config, first_stage=first_stage)
        try:
            stream_legs(
                stream,
                legs,
                figures,
                on_leg=lambda leg: progress.begin(leg, figures),
                on_batch=lambda _leg, taken: progress.step(taken),
                num_batches=num_batches,
            )
        except KeyboardInterrupt:
            raise Interrupted(_interruption_text(figures, checkpoint_path)) from None
        finally:
            progress.end()
            if checkpoint_path is not None:
                stream.checkpoint().save(checkpoint_path)
        record = record_of(stream, figures)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        print_run_summary(Console(), record, checkpoint_path=checkpoint_path)


def stage_legs(config: BatchStreamConfig, *, first_stage: int = 0, stage_batches: int | None = None) -> list[StageLeg]:
    """The config's stages from `first_stage` on, each to its end or for at most `stage_batches`."""
    return [
        StageLeg(stage=index, name=config.stage_names[index], num_batches=stage_batches, expected_batches=stage_batches)
        for index in range(first_stage, len(config.stages))
    ]


def record_of(stream: BatchStream, figures: Figures) -> dict[str, Any]:
    """The summary as `o41td run --json` prints it."""
    return {
        "batches": figures.batches,
        "rows": figures.rows,
        "bytes": figures.nbytes,
        "wall_s": round(figures.wall_s, 4),
        "first_batch_s": None if figures.first_batch_s is None else round(figures.first_batch_s, 4),
        "rows_per_s": round(figures.rows / figures.flowing_s, 1) if figures.flowing_s > 0 else 0.0,
        "wait_s": round(figures.wait_s, 4),
        "dropped_rows": stream.dropped_rows,
        "order_digest": stream.order_digest,
    }


@contextlib.contextmanager
def _opened(
    config: BatchStreamConfig, resume_path: Path | None, *, rank: int, world_size: int
) -> Iterator[tuple[BatchStream, int]]:
    """The stream, new or resumed, and the stage it stands at."""
    from o41td import Checkpoint, open_batch_stream, resume_batch_stream

    if resume_path is None:
        with open_batch_stream(config, rank=rank, world_size=world_size) as stream:
            yield stream, 0
        return
    checkpoint = Checkpoint.load(resume_path)
    with resume_batch_stream(checkpoint, rank=rank, world_size=world_size) as stream:
        yield stream, checkpoint.stage


def _interruption_text(figures: Figures, checkpoint_path: Path | None) -> str:
    text = f"Interrupted after {count_text(figures.batches)} batches, {count_text(figures.rows)} rows"
    return f"{text}; saved in {checkpoint_path}, go on with --resume." if checkpoint_path else f"{text}."
