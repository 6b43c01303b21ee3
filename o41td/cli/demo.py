"""`o41td demo`, and so `scripts/run`: stopped and resumed is the same as never stopped.

Three streams of the same config: one that is stopped in the middle, one that goes on from its checkpoint, and one
without a stop. The order digest says that the same rows came in the same order, a CRC over all arrays that the same
bytes did.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from o41td.cli.failure import Interrupted, UsageProblem
from o41td.cli.pace import Figures, MemoryWatch, StageLeg, stream_legs
from o41td.cli.progress import Progress, SilentProgress, progress_on
from o41td.cli.summary import print_demo_summary
from o41td.cli.wording import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from o41td import BatchStream, BatchStreamConfig

__all__ = ["run_demo"]

#  Of each stage of a user's own config, unless told otherwise: enough to see it flow, whatever its size.
OWN_CONFIG_STAGE_BATCHES = 500
_MEMORY_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What one stream came to."""

    figures: Figures
    order_digest: int
    dropped_rows: int
    bound_bytes: int
    peak_bytes: int


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
        Interrupted: Ctrl-C.
    """
    console = Console(highlight=False, quiet=as_json)
    try:
        if config_path is None:
            config = _sample(console, folder)
        else:
            config, stage_batches = _own_config(console, config_path, stage_batches)
        with tempfile.TemporaryDirectory(prefix="o41td-demo-") as scratch:
            record = _compare(console, config, stage_batches, Path(scratch) / "checkpoint.json", silent=as_json)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted.") from None
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        print_demo_summary(console, record, num_workers=config.threads)
    if not record["equal"]:
        raise RuntimeError("the resumed stream is not the same as the one without a stop")


def _sample(console: Console, folder: Path | None) -> BatchStreamConfig:
    from o41td.demo import DEMO_SHARDS, default_demo_folder, demo_config, write_demo_data

    folder = default_demo_folder() if folder is None else folder
    start_s = time.monotonic()
    with console.status("Writing the sample ...") as status:
        write_demo_data(
            folder, on_shard=lambda num: status.update(f"Writing the sample: {num} of {DEMO_SHARDS} shards")
        )
    shards = sorted(folder.rglob("*.parquet"))
    made = f"written in {duration_text(time.monotonic() - start_s)}" if time.monotonic() - start_s > 0.5 else "kept"
    _say(
        console,
        f"Sample: web and books, {len(shards)} Parquet shards, "
        f"{bytes_text(sum(path.stat().st_size for path in shards))}, {made} in {_short(folder)}",
    )
    return demo_config(folder)


def _own_config(console: Console, config_path: Path, stage_batches: int | None) -> tuple[BatchStreamConfig, int]:
    from o41td import BatchStreamConfig

    config = BatchStreamConfig.load(config_path)
    stage_batches = OWN_CONFIG_STAGE_BATCHES if stage_batches is None else stage_batches
    num_stages = len(config.stages)
    _say(
        console,
        f"{config_path}: {num_stages} {'stage' if num_stages == 1 else 'stages'}, "
        f"at most {count_text(stage_batches)} batches of each (--batches changes that)",
    )
    return config, stage_batches


def _compare(
    console: Console, config: BatchStreamConfig, stage_batches: int | None, checkpoint_path: Path, *, silent: bool
) -> dict[str, Any]:
    """Stream with a stop, on from the checkpoint, and without a stop."""
    from o41td import Checkpoint, open_batch_stream, resume_batch_stream

    progress: Progress = SilentProgress() if silent else progress_on(console)
    legs = _legs_of(config, stage_batches)
    first_legs, later_legs = _halves_of(legs)

    num_stopped = sum(leg.num_batches or 0 for leg in first_legs)
    _say(console, f"\n1  Stream, and stop after batch {count_text(num_stopped)}")
    stopped = _streamed(
        lambda: open_batch_stream(config),
        first_legs,
        Figures(),
        progress,
        at_end=lambda stream: stream.checkpoint().save(checkpoint_path),
    )
    checkpoint_bytes = checkpoint_path.stat().st_size
    _say(console, f"   saved a checkpoint of {bytes_text(checkpoint_bytes)}, and closed the stream")

    _say(console, "\n2  Go on from the checkpoint, in a new loader")
    checkpoint = Checkpoint.load(checkpoint_path)
    resumed = _streamed(
        lambda: resume_batch_stream(checkpoint),
        later_legs,
        Figures(content_crc=stopped.figures.content_crc),
        progress,
    )

    _say(console, "\n3  The same without a stop")
    straight = _streamed(lambda: open_batch_stream(config), legs, Figures(), progress)
    return _record(stopped, resumed, straight, checkpoint_bytes)


def _legs_of(config: BatchStreamConfig, stage_batches: int | None) -> list[StageLeg]:
    """Each stage with the number of batches that will be streamed of it, by the plan.

    Raises:
        UsageProblem: There are fewer than two.
    """
    from o41td import plan

    legs = []
    for index, stage in enumerate(plan(config)["stages"]):
        counts = [count for count in (stage["batches"], stage_batches) if count is not None]
        num_batches = min(counts, default=OWN_CONFIG_STAGE_BATCHES)
        if num_batches:
            legs.append(
                StageLeg(
                    stage=index,
                    name=config.stage_names[index],
                    num_batches=None if num_batches == stage["batches"] else num_batches,
                    expected_batches=num_batches,
                )
            )
    if sum(leg.expected_batches or 0 for leg in legs) < 2:
        raise UsageProblem("this config gives fewer than two batches: there is no middle to stop in. Lower batch_size.")
    return legs


def _halves_of(legs: list[StageLeg]) -> tuple[list[StageLeg], list[StageLeg]]:
    """The legs up to the middle batch of all, and from there on."""
    left = sum(leg.expected_batches or 0 for leg in legs) // 2
    first: list[StageLeg] = []
    for place, leg in enumerate(legs):
        expected = leg.expected_batches or 0
        if left <= expected:
            first.append(dataclasses.replace(leg, num_batches=left, expected_batches=left))
            rest = dataclasses.replace(
                leg,
                num_batches=None if leg.num_batches is None else leg.num_batches - left,
                expected_batches=expected - left,
            )
            return first, [rest, *legs[place + 1 :]]
        first.append(leg)
        left -= expected
    raise AssertionError("the middle lies within the legs")


def _streamed(
    open_stream: Callable[[], BatchStream],
    legs: list[StageLeg],
    figures: Figures,
    progress: Progress,
    *,
    at_end: Callable[[BatchStream], object] = lambda _stream: None,
) -> _Outcome:
    """Open a stream, drive it through the legs, and note what it came to."""
    memory = MemoryWatch()
    next_look_s = 0.0
    with open_stream() as stream:

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
        at_end(stream)
        return _Outcome(
            figures=figures,
            order_digest=stream.order_digest,
            dropped_rows=stream.dropped_rows,
            bound_bytes=stream.stats()["memory"]["bound_bytes"],
            peak_bytes=memory.peak_bytes,
        )


def _record(stopped: _Outcome, resumed: _Outcome, straight: _Outcome, checkpoint_bytes: int) -> dict[str, Any]:
    """What `o41td demo --json` prints."""
    all_figures = [outcome.figures for outcome in (stopped, resumed, straight)]
    flowing_s = sum(figures.flowing_s for figures in all_figures)
    orders_equal = resumed.order_digest == straight.order_digest
    contents_equal = resumed.figures.content_crc == straight.figures.content_crc
    counts_equal = stopped.figures.rows + resumed.figures.rows == straight.figures.rows
    return {
        "batches": straight.figures.batches,
        "rows": straight.figures.rows,
        "bytes": straight.figures.nbytes,
        "rows_per_s": sum(figures.rows for figures in all_figures) / flowing_s,
        "bytes_per_s": sum(figures.nbytes for figures in all_figures) / flowing_s,
        "first_batch_s": stopped.figures.first_batch_s,
        "first_batch_after_resume_s": resumed.figures.first_batch_s,
        "wait_fraction": sum(figures.wait_s for figures in all_figures) / flowing_s,
        "dropped_rows": straight.dropped_rows,
        "stopped_after_batches": stopped.figures.batches,
        "checkpoint_bytes": checkpoint_bytes,
        "order_digest": straight.order_digest,
        "order_digest_resumed": resumed.order_digest,
        "content_crc": straight.figures.content_crc,
        "content_crc_resumed": resumed.figures.content_crc,
        "equal": orders_equal and contents_equal and counts_equal,
        "memory": {
            "bound_bytes": straight.bound_bytes,
            "peak_bytes": max(outcome.peak_bytes for outcome in (stopped, resumed, straight)),
        },
    }


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _short(path: Path) -> str:
    """The path as the user would write it."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
