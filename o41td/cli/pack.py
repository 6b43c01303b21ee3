"""`o41td pack`: documents into sequences of one length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from o41td.cli.console import open_console
from o41td.cli.file_progress import run_shown
from o41td.cli.storage import storage_of
from o41td.cli.wording import bytes_text, count_text, counted_text, duration_text
from o41td.cli.write import layout_of, manifest_uri_of, size_of
from o41td.percentages import percent_text
from o41td.writing.packed_documents import PackJob, PackReport, run_pack

__all__ = ["pack_documents", "pack_job_of"]


def pack_job_of(
    inputs: Sequence[str], to: str, *, layout: str, fast: bool = False, shard_size: str, **settings: Any
) -> PackJob:
    """Returns the job that was typed.

    Args:
        inputs: files, folders and globs.
        to: the manifest, or its folder.
        layout: its name.
        fast: whether --fast was typed.
        shard_size: as people write sizes.
        **settings: what `PackJob` takes as it is typed.

    Raises:
        UsageProblem: The size, --to or the layout makes no sense.
        ConfigError: The settings do not.
    """
    return PackJob(
        inputs=inputs,
        manifest_uri=manifest_uri_of(to),
        layout=layout_of(layout, fast=fast),
        shard_bytes=size_of("--shard-size", shard_size),
        **settings,
    )


def pack_documents(job: PackJob, *, storage_path: Path | None = None, as_json: bool) -> None:
    """Pack, and say what came in and what went out.

    Args:
        job: what to pack.
        storage_path: settings to reach remote storage.
        as_json: print one JSON object instead of text.

    Raises:
        O41Error: The inputs or the store do not allow it.

    Blocks: until the data set is published.
    """
    storage = storage_of(storage_path)
    report, wall_s = run_shown(
        lambda tell: run_pack(job, storage=storage, on_progress=tell), job, rows="documents", quiet=as_json
    )
    if as_json:
        print(json.dumps(pack_record(report, wall_s)), flush=True)  # noqa: T201 - a program reads this
    else:
        _print_report(open_console(), job, report, wall_s)


def pack_record(report: PackReport, wall_s: float) -> dict[str, Any]:
    """Returns what `o41td pack --json` prints."""
    return {
        "manifest": report.manifest_uri,
        **asdict(report.counts),
        "waste": report.waste,
        "shards": len(report.shards),
        "bytes": sum(shard.size_bytes for shard in report.shards),
        "reused_shards": report.reused,
        "wall_s": round(wall_s, 3),
    }


def _print_report(console: Console, job: PackJob, report: PackReport, wall_s: float) -> None:
    counts = report.counts
    empty = f", and {count_text(counts.empty)} empty ones" if counts.empty else ""
    console.print(f"{counted_text(counts.documents, 'document')} of {count_text(counts.tokens)} tokens{empty}")
    dropped = f", {count_text(counts.dropped)} tokens left out" if counts.dropped else ""
    console.print(
        f"{counted_text(counts.sequences, 'sequence')} of {job.length}: {percent_text(report.waste, 2)} padding, "
        f"{counted_text(counts.cut, 'document')} cut{dropped}"
    )
    size = sum(shard.size_bytes for shard in report.shards)
    reused = f", {count_text(report.reused)} done before" if report.reused else ""
    console.print(
        f"{counted_text(len(report.shards), 'shard')} of {bytes_text(size)} in {duration_text(wall_s)}{reused}; "
        "every row read back the same"
    )
    console.print(f"manifest {report.manifest_uri}", soft_wrap=True)
