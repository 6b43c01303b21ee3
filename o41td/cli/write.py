"""`o41td write`: rows of other formats as shards that stream fast."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from o41td.cli.console import open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.file_progress import run_shown
from o41td.cli.storage import storage_of
from o41td.cli.wording import bytes_text, count_text, counted_text, digest_text, duration_text, speed_text
from o41td.listing import is_local, local_path_of
from o41td.sizes import parse_size
from o41td.writing.conversion import WriteJob, WriteReport, run_write
from o41td.writing.layout import BALANCED, FAST, Layout, layout_named

__all__ = ["layout_of", "manifest_uri_of", "size_of", "splits_of", "write_data", "write_job_of"]

_MANIFEST_NAME = "data-manifest-v1.json"


def write_job_of(
    inputs: Sequence[str],
    to: str,
    *,
    splits: Sequence[str] | None,
    layout: str,
    fast: bool = False,
    shard_size: str,
    row_group_size: str | None,
    **settings: Any,
) -> WriteJob:
    """Returns the job that was typed.

    Args:
        inputs: files, folders and globs.
        to: the manifest, or its folder.
        splits: NAME=SHARE each.
        layout: its name.
        fast: whether --fast was typed.
        shard_size: as people write sizes.
        row_group_size: the same; None keeps the layout's own.
        **settings: what `WriteJob` takes as it is typed.

    Raises:
        UsageProblem: A size, a split, --to or the layout makes no sense.
        ConfigError: The settings do not.
    """
    chosen = layout_of(layout, fast=fast)
    if row_group_size is not None:
        chosen = replace(chosen, row_group_bytes=size_of("--row-group-size", row_group_size))
    return WriteJob(
        inputs=inputs,
        manifest_uri=manifest_uri_of(to),
        splits=splits_of(splits),
        layout=chosen,
        shard_bytes=size_of("--shard-size", shard_size),
        **settings,
    )


def write_data(job: WriteJob, *, storage_path: Path | None = None, as_json: bool) -> None:
    """Write, and say what was written.

    Args:
        job: what to write.
        storage_path: settings to reach remote storage.
        as_json: print one JSON object instead of text.

    Raises:
        O41Error: The inputs or the store do not allow it.

    Blocks: until the data set is published.
    """
    storage = storage_of(storage_path)
    report, wall_s = run_shown(
        lambda tell: run_write(job, storage=storage, on_progress=tell), job, rows="rows", quiet=as_json
    )
    if as_json:
        print(json.dumps(report_record(report, wall_s)), flush=True)  # noqa: T201 - a program reads this
    else:
        _print_report(open_console(), report, wall_s)


def report_record(report: WriteReport, wall_s: float) -> dict[str, Any]:
    """Returns what `o41td write --json` prints."""
    return {
        "manifest": report.manifest_uri,
        "rows": report.rows,
        "input_bytes": report.input_bytes,
        "bytes": report.size_bytes,
        "shards": len(report.shards),
        "reused_shards": report.reused,
        "row_digest": digest_text(report.digest),
        "wall_s": round(wall_s, 3),
        "splits": _splits(report),
    }


def splits_of(typed: Sequence[str] | None) -> dict[str, float]:
    """Returns each split's share.

    Raises:
        UsageProblem: One is not NAME=SHARE, or a name stands twice.
    """
    splits: dict[str, float] = {}
    for text in typed or ["train=1"]:
        name, _, share = text.partition("=")
        try:
            value = float(share)
        except ValueError:
            raise UsageProblem(f"--split {text!r} is not NAME=SHARE, such as train=0.99.") from None
        if not name or name in splits:
            raise UsageProblem(f"--split {text!r}: give each split a name of its own.")
        splits[name] = value
    return splits


def layout_of(name: str, *, fast: bool) -> Layout:
    """Returns the layout that `--layout` and `--fast` mean.

    Raises:
        UsageProblem: They mean two.
        ConfigError: There is none of that name.
    """
    named = layout_named(name)
    if fast and named not in (BALANCED, FAST):
        raise UsageProblem(f"--fast is --layout fast, and --layout {name} is given: leave one of them out")
    return FAST if fast else named


def manifest_uri_of(to: str) -> str:
    """Returns the manifest that `--to` means: itself, or one of the usual name in a folder.

    Raises:
        UsageProblem: A file that is no manifest is there.
    """
    path = local_path_of(to) if is_local(to) else None
    if to.endswith(".json") and (path is None or not os.path.isdir(path)):
        return to
    if path is not None and os.path.isfile(path):
        raise UsageProblem(f"--to {to}: this is a file; name a folder, or a manifest that ends in .json")
    return f"{to.rstrip('/') or '/'}/{_MANIFEST_NAME}"


def size_of(option: str, text: str) -> int:
    """Returns the bytes that an option says.

    Raises:
        UsageProblem: It says none.
    """
    try:
        return parse_size(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise UsageProblem(f"{option}: {error}.") from None


def _splits(report: WriteReport) -> Mapping[str, dict[str, int]]:
    splits: dict[str, dict[str, int]] = {}
    for shard in report.shards:
        split = splits.setdefault(shard.split, {"shards": 0, "rows": 0, "row_groups": 0, "bytes": 0})
        split["shards"] += 1
        split["rows"] += shard.records
        split["row_groups"] += len(shard.row_groups or ())
        split["bytes"] += shard.size_bytes
    return splits


def _print_report(console: Console, report: WriteReport, wall_s: float) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("split")
    for title in ("rows", "shards", "row groups", "bytes"):
        table.add_column(title, justify="right")
    for name, split in _splits(report).items():
        counts = (count_text(split[key]) for key in ("rows", "shards", "row_groups"))
        table.add_row(name, *counts, bytes_text(split["bytes"]))
    console.print(table)
    reused = f", {counted_text(report.reused, 'shard')} done before" if report.reused else ""
    console.print(f"{speed_text(report.rows, report.input_bytes, wall_s)} in {duration_text(wall_s)}{reused}")
    console.print(
        f"{bytes_text(report.input_bytes)} became {bytes_text(report.size_bytes)}; every row read back the same"
    )
    console.print(f"manifest {report.manifest_uri}", soft_wrap=True)
