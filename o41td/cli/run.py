"""`o41td run`: a config's stages streamed to their end, and how fast that went."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from o41td.cli.console import open_console
from o41td.cli.ending import AskedToEnd, asked_to_end
from o41td.cli.failure import Interrupted
from o41td.cli.pace import Figures, legs_of, stream_legs
from o41td.cli.progress import SilentProgress, opening_shown, progress_on
from o41td.cli.summary import print_run_summary
from o41td.cli.wording import counted_text, digest_text
from o41td.cli.writable import check_writable

if TYPE_CHECKING:
    from o41td import BatchStream, BatchStreamConfig, StorageConfig

__all__ = ["run_config"]


def run_config(
    config_path: Path,
    *,
    rank: int,
    world_size: int,
    num_batches: int | None,
    checkpoint_path: Path | None,
    resume_path: Path | None,
    storage_path: Path | None = None,
    as_json: bool,
) -> None:
    """Stream the config's stages in turn and print a summary; its last line is JSON with `as_json`.

    The JSON comes too when a signal ends an open stream; what a person is told then is on standard error.

    Args:
        config_path: the config.
        rank: this process's number.
        world_size: how many there are.
        num_batches: stop after this many batches of this rank; None goes on to the last stage's end.
        checkpoint_path: where to save the position at the end, also after Ctrl-C, SIGTERM, SIGHUP or an error.
        resume_path: a checkpoint to go on from.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: The config, the checkpoint or the data do not allow it.
        UsageProblem: The checkpoint could not be saved there.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP.
    """
    from o41td import BatchStreamConfig
    from o41td.cli.storage import storage_of

    config, storage = BatchStreamConfig.load(config_path), storage_of(storage_path)
    if checkpoint_path is not None:
        check_writable("--checkpoint", checkpoint_path)
    console = Console(stderr=True, quiet=as_json)
    progress = SilentProgress() if as_json else progress_on(console)
    figures = Figures()
    is_saved = False
    record: dict[str, Any] | None = None
    try:
        with asked_to_end(), contextlib.ExitStack() as stack:
            with opening_shown(console) as on_footer:
                stream = stack.enter_context(
                    _opened(
                        config,
                        resume_path,
                        rank=rank,
                        world_size=world_size,
                        storage=storage,
                        on_footer=on_footer,
                    )
                )
            try:
                stream_legs(
                    stream,
                    legs_of(stream, config.stage_names),
                    figures,
                    on_leg=lambda leg: progress.begin(leg, figures),
                    on_batch=lambda _leg, taken: progress.step(taken),
                    num_batches=num_batches,
                )
            finally:
                progress.end()
                if checkpoint_path is not None:
                    stream.checkpoint().save(checkpoint_path)
                    is_saved = True
                record = _record_of(stream, figures, bad_rows=_bad_rows_of(stream, config))
    except AskedToEnd as asked:
        if as_json and record is not None:
            _print_json(record)
        raise Interrupted(_ending_text(asked, figures, checkpoint_path if is_saved else None), asked.number) from None
    assert record is not None
    if as_json:
        _print_json(record)
    else:
        print_run_summary(open_console(), record, checkpoint_path=checkpoint_path)


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this


def _bad_rows_of(stream: BatchStream, config: BatchStreamConfig) -> int | None:
    """Rows found bad, for which others stood in; None where the loader cannot say it any more.

    Blocks: for one question to the coordinator, where rows may be replaced at all.
    """
    from o41td import O41Error

    if config.on_bad_data != "replace":
        return 0
    try:
        return int(stream.stats()["bad_rows"])
    except O41Error:
        return None


def _record_of(stream: BatchStream, figures: Figures, *, bad_rows: int | None) -> dict[str, Any]:
    """The summary as `o41td run --json` prints it."""
    return {
        "batches": figures.batches,
        "rows": figures.rows,
        "bytes": figures.nbytes,
        "wall_s": round(figures.wall_s, 4),
        "first_batch_s": None if figures.first_batch_s is None else round(figures.first_batch_s, 4),
        "rows_per_s": round(figures.rows / figures.flowing_s, 1) if figures.flowing_s > 0 else 0.0,
        "wait_s": round(figures.wait_s, 4),
        "dropped_rows": figures.dropped_rows,
        "bad_rows": bad_rows,
        "order_digest": digest_text(stream.order_digest),
    }


def _opened(
    config: BatchStreamConfig,
    resume_path: Path | None,
    *,
    rank: int,
    world_size: int,
    storage: StorageConfig | None,
    on_footer: Callable[[int, int], None],
) -> BatchStream:
    """The stream, from its beginning or from a checkpoint of the same config.

    What may change on a resume (threads, memory, `on_bad_data`, …) is as `config` has it, not as it was.

    Raises:
        CheckpointError: The checkpoint is of another config.
    """
    from o41td import Checkpoint, open_batch_stream, resume_batch_stream

    if resume_path is None:
        return open_batch_stream(config, rank=rank, world_size=world_size, storage=storage, progress=on_footer)
    from o41td.resuming import checkpoint_under

    checkpoint = checkpoint_under(
        Checkpoint.load(resume_path), config, told=f"the checkpoint {resume_path} is of another config"
    )
    return resume_batch_stream(
        checkpoint, rank=rank, world_size=world_size, storage=storage, exclude=config.exclude, progress=on_footer
    )


def _ending_text(asked: AskedToEnd, figures: Figures, saved: Path | None) -> str:
    text = (
        f"{asked.word} after {counted_text(figures.batches, 'batch', 'batches')}, {counted_text(figures.rows, 'row')}"
    )
    return f"{text}; saved in {saved}, go on with --resume." if saved else f"{text}."
