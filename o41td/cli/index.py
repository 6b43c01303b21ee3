"""`o41td index`: reads every footer into the index cache, and shows what is known of the shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.progress import opening_shown
from o41td.cli.wording import bytes_text, count_text, counted_text
from o41td.index import SourceIndex

__all__ = ["index_record", "shards_table", "show_index"]

_MOST_SHARDS_SHOWN = 64


def show_index(config_path: Path, *, storage_path: Path | None = None, as_json: bool) -> None:
    """Print each shard's rows, row groups, bytes and version.

    Args:
        config_path: a config or a checkpoint.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: The config or the data do not allow it.

    Blocks: until every footer that the cache lacks is read, by workers.
    """
    from o41td.cli.storage import storage_of
    from o41td.outline import read_outline

    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        outline = read_outline(config_path, storage=storage_of(storage_path), progress=on_footer)
    stages = range(len(outline.job.stages))
    records = [index_record(source) for stage in stages for source in outline.sources_of(stage)]
    if as_json:
        print(json.dumps(records), flush=True)  # noqa: T201 - a program reads this
    else:
        open_console().print(shards_table(records))


def index_record(source: SourceIndex) -> dict[str, Any]:
    """Returns what `o41td index --json` prints of a source; a version is null where nothing of the shard was read."""
    groups = np.bincount(source.unit_shard, minlength=len(source.shards)).tolist()
    return {
        "source": source.name,
        "encoding": source.encoding,
        "rows": source.num_rows,
        "row_groups": sum(groups),
        "bytes": sum(shard.size_bytes for shard in source.shards),
        "shards": [
            {
                "uri": shard.uri,
                "rows": shard.rows,
                "row_groups": num_groups,
                "bytes": shard.size_bytes,
                "version": shard.version,
            }
            for shard, num_groups in zip(source.shards, groups, strict=True)
        ],
    }


def shards_table(records: Sequence[dict[str, Any]]) -> Table:
    """What a person sees of the records of some sources."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("rows", "groups", "bytes"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("shard", overflow="fold")
    for record in records:
        name = Text(f"{record['source']}: {counted_text(len(record['shards']), 'shard')}", style="bold")
        table.add_row(*_numbers(record), name)
        for shard in record["shards"][:_MOST_SHARDS_SHOWN]:
            if "error" in shard:
                table.add_row("", "", "", Text(shard["error"], style="red"))
            else:
                table.add_row(*_numbers(shard), Text(shard["uri"]))
        if len(record["shards"]) > _MOST_SHARDS_SHOWN:
            more = count_text(len(record["shards"]) - _MOST_SHARDS_SHOWN)
            table.add_row("", "", "", Text(f"… and {more} more; --json has all", style="dim"))
    return table


def _numbers(record: dict[str, Any]) -> tuple[str, str, str]:
    return count_text(record["rows"]), count_text(record["row_groups"]), bytes_text(record["bytes"])
