"""`o41td demo`, and so `scripts/run`: the sample or the user's own config, streamed with a stop and without."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from o41td.cli.comparison import compare_with_a_stop
from o41td.cli.ending import AskedToEnd, asked_to_end
from o41td.cli.failure import Interrupted, StreamsPartError
from o41td.cli.progress import SilentProgress, progress_on
from o41td.cli.summary import print_demo_summary
from o41td.cli.wording import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from o41td import BatchStreamConfig

__all__ = ["OWN_CONFIG_STAGE_BATCHES", "run_demo"]

#  Of each stage of a user's own config, unless told otherwise: enough to see it flow, whatever its size.
OWN_CONFIG_STAGE_BATCHES = 500


def run_demo(config_path: Path | None, *, folder: Path | None, stage_batches: int | None, as_json: bool) -> None:
    """Stream the sample, or the user's own config, three times and compare.

    Args:
        config_path: the user's own config; None takes the sample.
        folder: where the sample is kept; None takes the user's cache.
        stage_batches: at most this many batches of each stage.
        as_json: print one JSON object instead of text.

    Raises:
        O41Error: The config or the data do not allow it.
        UsageProblem: There are too few batches to stop in the middle of.
        StreamsPartError: The streams are not the same.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP.
    """
    try:
        with asked_to_end():
            _run_demo(config_path, folder=folder, stage_batches=stage_batches, as_json=as_json)
    except AskedToEnd as asked:
        raise Interrupted(f"{asked.word}.", asked.number) from None


def _run_demo(config_path: Path | None, *, folder: Path | None, stage_batches: int | None, as_json: bool) -> None:
    console = Console(highlight=False, quiet=as_json)
    if config_path is None:
        config = _sample(console, folder)
    else:
        stage_batches = OWN_CONFIG_STAGE_BATCHES if stage_batches is None else stage_batches
        config = _own_config(console, config_path, stage_batches)
    with tempfile.TemporaryDirectory(prefix="o41td-demo-") as scratch:
        record = compare_with_a_stop(
            config,
            stage_batches=stage_batches,
            checkpoint_path=Path(scratch) / "checkpoint.json",
            progress=SilentProgress() if as_json else progress_on(console),
            say=lambda text: _say(console, text),
        )
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        print_demo_summary(console, record, num_workers=config.threads)
    if not record["equal"]:
        raise StreamsPartError("the stream that was stopped and resumed is not the one that never stopped.")


def _sample(console: Console, folder: Path | None) -> BatchStreamConfig:
    """Write the sample where it is not there yet, say so, and return its config."""
    from o41td.demo import DEMO_SHARDS, default_demo_folder, demo_config, write_demo_data

    folder = default_demo_folder() if folder is None else folder
    num_written = 0
    start_s = time.monotonic()
    with console.status("Writing the sample ...") as status:

        def on_shard(num: int) -> None:
            nonlocal num_written
            num_written = num
            status.update(f"Writing the sample: {num} of {DEMO_SHARDS} shards")

        shards = [path for paths in write_demo_data(folder, on_shard=on_shard).values() for path in paths]
    size = bytes_text(sum(path.stat().st_size for path in shards))
    made = f"written in {duration_text(time.monotonic() - start_s)}" if num_written else "used again"
    _say(console, f"Sample of {len(shards)} Parquet shards, {size}, {made}: {_short(folder)}")
    return demo_config(folder)


def _own_config(console: Console, config_path: Path, stage_batches: int) -> BatchStreamConfig:
    from o41td import BatchStreamConfig

    config = BatchStreamConfig.load(config_path)
    stages = "1 stage" if len(config.stages) == 1 else f"{len(config.stages)} stages"
    limit = f"at most {count_text(stage_batches)} batches of each"
    _say(console, f"{config_path}: {stages}, {limit} (--batches changes that)")
    return config


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _short(path: Path) -> str:
    """The path as the user would write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
