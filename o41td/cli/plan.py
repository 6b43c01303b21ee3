"""`o41td plan`: what a config comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.progress import opening_shown
from o41td.cli.wording import bytes_text, count_text, share_text
from o41td.memory import human_bytes

__all__ = ["plan_view", "show_plan"]

_SOURCE_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("source", "left"),
    ("share", "right"),
    ("shards", "right"),
    ("row groups", "right"),
    ("rows", "right"),
    ("stored", "right"),
    ("decoded", "right"),
)


def show_plan(config_path: Path, *, rank: int, world_size: int, as_json: bool) -> None:
    """Print a config's plan.

    Args:
        config_path: the config.
        rank: whose share is told.
        world_size: how many ranks there are.
        as_json: for programs.

    Raises:
        O41Error: The config or the data do not allow it.

    Blocks: until every footer is read.
    """
    from o41td import BatchStreamConfig, plan

    config = BatchStreamConfig.load(config_path)
    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        record = plan(config, rank=rank, world_size=world_size, progress=on_footer)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        Console(highlight=False).print(plan_view(record))


def plan_view(record: Mapping[str, Any]) -> RenderableType:
    """What a person sees of `plan(config)`; fits into 80 columns."""
    ranks = "1 rank" if record["world_size"] == 1 else f"rank {record['rank']} of {record['world_size']}"
    lanes = "1 lane" if record["lanes"] == 1 else f"{record['lanes']} lanes"
    parts: list[RenderableType] = [Text(f"{ranks}, {lanes}, seed {record['seed']}", style="dim"), Text("")]
    for stage in record["stages"]:
        parts += [_stage_heading(stage), Padding(_sources_table(stage), (0, 0, 1, 2))]
    memory = record["memory"]
    allowed = f", of {human_bytes(memory['limit_bytes'])} allowed" if memory.get("limit_bytes") else ""
    parts.append(Text.assemble(("memory", "bold"), f"  at most {human_bytes(memory['bound_bytes'])}{allowed}"))
    parts.append(Text("\n".join(f"  {line}" for line in record["memory_table"].splitlines()), style="dim"))
    parts += [Text(f"\nNote: {notice}", style="yellow") for notice in record["notices"]]
    return Group(*parts)


def _stage_heading(stage: Mapping[str, Any]) -> Text:
    """A stage in a line: "mix  98,304 rows in 1,536 batches of 64, shuffled within 8,192"."""
    if stage["infinite"]:
        extent = f"{count_text(stage['rows'])} rows an epoch, endless, in batches of {stage['batch_size']}"
    else:
        extent = f"{count_text(stage['rows'])} rows in {count_text(stage['batches'])} batches of {stage['batch_size']}"
    heading = Text.assemble((stage["name"], "bold"), f"  {extent}")
    if stage["shuffle_buffer_rows"]:
        heading.append(f", shuffled within {count_text(stage['shuffle_buffer_rows'])}")
    if not stage["infinite"]:
        if stage["steps_per_rank"] != stage["batches"]:
            heading.append(f"\n  {count_text(stage['steps_per_rank'])} batches for each rank")
        if stage["dropped_rows_all_ranks"]:
            heading.append(f"\n  {count_text(stage['dropped_rows_all_ranks'])} rows dropped at the end, over all ranks")
    return heading


def _sources_table(stage: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in _SOURCE_COLUMNS:
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")
    for source in stage["sources"]:
        table.add_row(
            source["name"].removeprefix(f"{stage['name']}/"),
            share_text(source["share"], 1),
            count_text(source["shards"]),
            count_text(source["row_groups"]),
            count_text(source["rows"]),
            bytes_text(source["stored_bytes"]),
            bytes_text(source["decoded_bytes"]),
        )
    return table
