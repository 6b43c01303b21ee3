"""`o41td check`: what this host, these shards and this config come to, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.progress import opening_shown
from o41td.cli.wording import duration_text
from o41td.sizes import human_bytes

__all__ = ["check_view", "show_check"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def show_check(
    config_path: Path, *, rank: int, world_size: int, storage_path: Path | None = None, as_json: bool
) -> bool:
    """Print the probes; returns whether none fails.

    Args:
        config_path: the config.
        rank: whose loader is meant.
        world_size: how many ranks there are.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        ConfigError: The config makes no sense.

    Blocks: until every footer and a few row groups of each source are read, in processes of their own.
    """
    from o41td import BatchStreamConfig
    from o41td.checking import check
    from o41td.cli.storage import storage_of
    from o41td.rank_info import check_rank

    rank, world_size = check_rank(rank, world_size)
    config = BatchStreamConfig.load(config_path)
    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        record = check(config, rank, world_size, storage=storage_of(storage_path), progress=on_footer)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        open_console().print(check_view(record))
    return bool(record["state"] != "fail")


def check_view(record: Mapping[str, Any]) -> RenderableType:
    """What a person sees of `check`."""
    probes: Sequence[Mapping[str, str]] = record["probes"]
    widest = max(len(probe["name"]) for probe in probes)
    parts: list[RenderableType] = []
    for group, of_group in groupby(probes, key=itemgetter("group")):
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
        table.add_column(width=max(map(len, _STYLES)))
        table.add_column(width=widest, overflow="fold")
        table.add_column(overflow="fold")
        for probe in of_group:
            found = Text(probe["found"])
            if probe["advice"]:
                found.append(f"\n→ {probe['advice']}", style="dim")
            table.add_row(Text(probe["state"], style=_STYLES[probe["state"]]), Text(probe["name"]), found)
        parts += [Text(group, style="bold"), Padding(table, (0, 0, 0, 2), expand=False)]
    if record["bound_bytes"] is not None:
        text = f"\nmemory at most {human_bytes(record['bound_bytes'])}"
        if record["first_batch_s"] is not None:
            text += f"; first batch after about {duration_text(record['first_batch_s'])}"
        parts.append(Text(text))
    return Group(*parts)
