"""`o41td status`: the loaders that the user has running on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.wording import count_text, share_text
from o41td.memory import human_bytes

__all__ = ["loaders_view", "show_status"]

_WATCH_S = 1.0


def show_status(*, watch: bool, as_json: bool) -> None:
    """Print the running loaders, once or every second.

    Args:
        watch: go on until Ctrl-C.
        as_json: print a list for programs, a line each time when watching.

    Blocks: for one question to each loader; with `watch`, until Ctrl-C.
    """
    from o41td.runtime import list_loaders

    console = Console()
    if as_json:
        _print_json(list_loaders())
        while watch:
            time.sleep(_WATCH_S)
            _print_json(list_loaders())
    elif not watch:
        console.print(loaders_view(list_loaders()))
    elif console.is_terminal:
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                live.update(loaders_view(list_loaders()), refresh=True)
                time.sleep(_WATCH_S)
    else:
        while True:
            console.print(loaders_view(list_loaders()))
            time.sleep(_WATCH_S)


def loaders_view(loaders: Sequence[Mapping[str, Any]]) -> RenderableType:
    """What a person sees of `list_loaders()`; fits into 80 columns."""
    if not loaders:
        return Text("No loader of yours runs on this machine. One starts with open_batch_stream or `o41td run`.")
    return Group(*(_loader_view(loader) for loader in loaders))


def _print_json(loaders: Sequence[Mapping[str, Any]]) -> None:
    print(json.dumps(list(loaders)), flush=True)  # noqa: T201 - a program reads this


def _loader_view(loader: Mapping[str, Any]) -> RenderableType:
    """One loader: a heading, a table of its ranks, and what its processes do."""
    heading = Text.assemble((str(loader["name"]), "bold"), (f"  pid {loader['pid']}", "dim"))
    verdict = [Padding(Text(loader["verdict"], style="yellow"), (0, 0, 0, 2))] if loader.get("verdict") else []
    stage_names = {source["stage"]: source["name"].rpartition("/")[0] for source in loader["sources"]}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in _RANK_COLUMNS:
        table.add_column(title, justify=justify, no_wrap=True)
    for rank in loader["ranks"]:
        table.add_row(
            f"{rank['rank']} of {rank['world_size']}",
            stage_names.get(rank["stage"]) or str(rank["stage"]),
            count_text(rank["batches"]),
            count_text(rank["rows_per_s"]),
            share_text(rank["wait_fraction"], 1),
            count_text(rank["dropped_rows"]),
        )
    details = [_workers_text(loader["workers"]), _memory_text(loader["memory"]), _sources_text(loader["sources"])]
    lines = [Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in details if line]
    return Group(heading, *verdict, *([Padding(table, (0, 0, 0, 2))] if loader["ranks"] else []), *lines, Text(""))


_RANK_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("rank", "left"),
    ("stage", "left"),
    ("batches", "right"),
    ("rows/s", "right"),
    ("wait", "right"),
    ("dropped", "right"),
)


def _workers_text(workers: Sequence[Mapping[str, Any]]) -> str:
    """Workers by what they do, their restarts, their memory: "2 workers: 1 busy, 1 idle"."""
    if not workers:
        return ""
    states: dict[str, int] = {}
    for worker in workers:
        states[str(worker["state"])] = states.get(str(worker["state"]), 0) + 1
    text = f"{len(workers)} {'worker' if len(workers) == 1 else 'workers'}: " + _listed(
        f"{count} {state}" for state, count in sorted(states.items())
    )
    restarts = sum(worker.get("restarts", 0) for worker in workers)
    return f"{text}, {restarts} restarted" if restarts else text


def _memory_text(memory: Mapping[str, Any]) -> str:
    """Memory in use and its bound: "memory 273.7 MiB of at most 392.9 MiB"."""
    bound = f"at most {human_bytes(memory['bound_bytes'])}" if memory.get("bound_bytes") else ""
    used = memory.get("used_bytes")
    if used is None:
        return f"memory {bound}" if bound else ""
    return f"memory {human_bytes(used)}{f' of {bound}' if bound else ''}"


def _sources_text(sources: Sequence[Mapping[str, Any]]) -> str:
    """Each source's epoch and rows: "web epoch 0, 61,440 rows; books …"."""
    return "; ".join(
        f"{source['name']}: epoch {source['epoch']}, {count_text(source['rows'])} rows" for source in sources
    )


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)
