"""`o41td status`: the loaders that the user has running on this machine, and what holds each of them back."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.console import PAPER_WIDTH, open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.wording import bytes_text, count_text, counted_text, duration_text, rate_text, share_text
from o41td.sizes import human_bytes

__all__ = ["loaders_view", "show_status"]

_WATCH_S = 1.0
_MOST_WORKERS_SHOWN = 16
_MOST_SOURCES_SHOWN = 16
_SHRINKING = ("stage", "source")
_GOOD = ("loop", "balanced", "ended")

_RANK_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("rank", "left"),
    ("stage", "left"),
    ("step", "right"),
    ("done", "right"),
    ("batch/s", "right"),
    ("rows/s", "right"),
    ("MB/s", "right"),
    ("wait", "right"),
    ("ready", "right"),
    ("drop", "right"),
)
_WORKER_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("worker", "left"),
    ("state", "left"),
    ("busy", "right"),
    ("MB/s", "right"),
    ("RSS", "right"),
    ("restarts", "right"),
)
_SOURCE_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("source", "left"),
    ("epoch", "right"),
    ("done", "right"),
    ("rows", "right"),
    ("shards", "right"),
    ("decoded", "right"),
)


def show_status(name: str | None = None, *, watch: bool, as_json: bool, as_prometheus: bool = False) -> None:
    """Print the running loaders, once or every second.

    Args:
        name: only those of this name; None shows all.
        watch: go on until Ctrl-C.
        as_json: print a list for programs, a line each time when watching.
        as_prometheus: print the figures in Prometheus' text format, once.

    Raises:
        UsageProblem: Two forms at once, Prometheus' again and again, or there is no loader of that name to begin with.

    Blocks: for one question to each loader; with `watch`, until Ctrl-C.
    """
    from o41td.prometheus import prometheus_text
    from o41td.runtime import list_loaders

    def look() -> list[dict[str, Any]]:
        return list_loaders(name)

    if as_prometheus and (as_json or watch):
        raise UsageProblem("--prometheus prints figures once, for one scrape: give it without --json and --watch")
    console = open_console()
    loaders = look()
    if name is not None and not loaders:
        raise UsageProblem(_none_of_name(name, list_loaders()))
    if as_prometheus:
        sys.stdout.write(prometheus_text(loaders))
    elif as_json:
        _print_json(loaders)
        while watch:
            time.sleep(_WATCH_S)
            _print_json(look())
    elif not watch:
        console.print(loaders_view(loaders))
    elif console.is_terminal:
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                live.update(loaders_view(look()), refresh=True)
                time.sleep(_WATCH_S)
    else:
        while True:
            console.print(loaders_view(look()))
            time.sleep(_WATCH_S)


def _none_of_name(name: str, loaders: Sequence[Mapping[str, Any]]) -> str:
    others = ", ".join(sorted(loader["name"] for loader in loaders))
    return f"no loader of yours is named {name!r} on this machine; {f'there are {others}' if others else 'none runs'}."


def loaders_view(loaders: Sequence[Mapping[str, Any]]) -> RenderableType:
    """What a person sees of `list_loaders()`; fits into 80 columns, and takes what room there is."""
    if not loaders:
        return Text("No loader of yours runs on this machine. One starts with open_batch_stream or `o41td run`.")
    return Group(*(_loader_view(loader) for loader in loaders))


def _print_json(loaders: Sequence[Mapping[str, Any]]) -> None:
    print(json.dumps(list(loaders)), flush=True)  # noqa: T201 - a program reads this


def _loader_view(loader: Mapping[str, Any]) -> RenderableType:
    """One loader: a heading, the verdict, tables of ranks, workers and sources, and its memory."""
    heading = Text.assemble((str(loader["name"]), "bold"), (f"  pid {loader['pid']}", "dim"))
    if loader.get("uptime_s"):
        heading.append(f", up {duration_text(loader['uptime_s'])}", style="dim")
    if loader.get("served_ranks"):
        attendance = f", served: {count_text(len(loader['ranks']))} of {count_text(len(loader['served_ranks']))} ranks"
        heading.append(attendance, style="dim")
    parts: list[RenderableType] = [*_verdict_lines(loader)]
    if loader["ranks"]:
        parts.append(_Spaced(_ranks_table(loader["ranks"])))
    if loader["workers"]:
        parts.append(_Spaced(_workers_table(loader["workers"])))
    if loader["sources"]:
        parts.append(_Spaced(_sources_table(loader["sources"])))
    told = (
        _arena_text(loader),
        _memory_text(loader["memory"]),
        _storage_text(loader.get("storage")),
        _cache_text(loader.get("cache")),
        _bad_rows_text(loader.get("bad_rows", 0)),
    )
    parts += [Text(line, style="dim") for line in told if line]
    return Group(heading, *(Padding(part, (0, 0, 0, 2), expand=False) for part in parts), Text(""))


def _verdict_lines(loader: Mapping[str, Any]) -> Iterator[Text]:
    """The verdict, what it rests on, and what to change, each a line of its own where the console is wide enough."""
    yield Text(loader["verdict"], style="green" if loader["limit"] in _GOOD else "yellow")
    if loader["evidence"]:
        yield Text(", ".join(loader["evidence"]), style="dim")
    if loader["advice"]:
        yield Text(f"{loader['advice']}.")


class _Spaced:
    """A table with two spaces between its columns where they fit, else one."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table_for(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._table_for(console, options))

    def _table_for(self, console: Console, options: ConsoleOptions) -> Table:
        self._table.padding = (0, 2, 0, 0)
        whole = Measurement.get(console, options.update(width=PAPER_WIDTH), self._table)
        if whole.maximum > options.max_width:
            self._table.padding = (0, 1, 0, 0)
        return self._table


def _ranks_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(_RANK_COLUMNS)
    for rank in ranks:
        total = rank["stage_batches"]
        table.add_row(
            f"{rank['rank']}/{rank['world_size']}",
            _shrinking(rank["stage_name"]),
            count_text(rank["step"]),
            share_text(rank["stage_batch"], total) if total else "∞",
            rate_text(rank["batches_per_s"]),
            count_text(rank["rows_per_s"]),
            rate_text(rank["bytes_per_s"] / 1e6),
            share_text(rank["wait_fraction"], 1),
            count_text(rank["ready_batches"]),
            count_text(rank["dropped_rows"]),
        )
    return table


def _workers_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(_WORKER_COLUMNS)
    table.add_column("reading")
    for worker in workers[:_MOST_WORKERS_SHOWN]:
        rate = worker.get("bytes_per_s")
        table.add_row(
            str(worker["id"]),
            worker["state"],
            share_text(worker["busy_fraction"], 1) if "busy_fraction" in worker else "–",
            "–" if rate is None else rate_text(rate / 1e6),
            human_bytes(worker["rss_bytes"]),
            count_text(worker["restarts"]),
            _reading_text(worker["reading"]),
        )
    if len(workers) > _MOST_WORKERS_SHOWN:
        table.add_row("…", f"{len(workers) - _MOST_WORKERS_SHOWN} more")
    return table


def _sources_table(sources: Sequence[Mapping[str, Any]]) -> Table:
    asked = [source.get("cache_hits", 0) + source.get("cache_misses", 0) for source in sources]
    kept: tuple[tuple[str, Any], ...] = (("found", "right"),) if any(asked) else ()
    table = _table(_SOURCE_COLUMNS + kept)
    for source, lookups in zip(sources[:_MOST_SOURCES_SHOWN], asked, strict=False):
        done = "–" if source["progress"] is None else share_text(source["progress"], 1)
        counts = (count_text(source[key]) for key in ("rows", "shards", "decoded_rows"))
        found = (share_text(source.get("cache_hits", 0), lookups),) if kept else ()
        style = None if source["is_current"] else "dim"
        table.add_row(_shrinking(source["name"]), count_text(source["epoch"]), done, *counts, *found, style=style)
    if len(sources) > _MOST_SOURCES_SHOWN:
        table.add_row(f"… {len(sources) - _MOST_SOURCES_SHOWN} more")
    return table


def _table(columns: Sequence[tuple[str, Any]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for title, justify in columns:
        table.add_column(title, justify=justify, no_wrap=title not in _SHRINKING)
    return table


def _reading_text(reading: Mapping[str, Any] | None) -> Text:
    """What a worker reads, and for how long where that is long: "4.50 s: group 5 of part-00003.parquet"."""
    if reading is None:
        return Text("")
    text = _shrinking("")
    if reading["for_s"] >= 1:
        text.append(f"{duration_text(reading['for_s'])}: ", style="yellow")
    return text.append(f"group {reading['row_group']} of {reading['shard'].rpartition('/')[2]}")


def _arena_text(loader: Mapping[str, Any]) -> str:
    """The arena's slots: "arena 12 of 40 slots free, 240.0 MiB"."""
    arena = loader.get("arena")
    return f"arena {arena['free']} of {arena['slots']} slots free, {human_bytes(arena['bytes'])}" if arena else ""


def _memory_text(memory: Mapping[str, Any]) -> str:
    """Memory in use and its bound: "memory 273.7 MiB of at most 392.9 MiB"."""
    bound = f"at most {human_bytes(memory['bound_bytes'])}" if memory.get("bound_bytes") else ""
    used = memory.get("used_bytes")
    if used is None:
        return f"memory {bound}" if bound else ""
    return f"memory {human_bytes(used)}{f' of {bound}' if bound else ''}"


def _storage_text(storage: Mapping[str, Any] | None) -> str:
    """Object stores: "storage 1,204 requests, 3 retries, 126 MB/s, 8 in flight; last fault: …"."""
    if storage is None:
        return ""
    text = f"storage {counted_text(storage['requests'], 'request')}"
    if storage["retries"]:
        text += f", {counted_text(storage['retries'], 'retry', 'retries')}"
    text += f", {bytes_text(storage['bytes_per_s'])}/s, {count_text(storage['in_flight'])} in flight"
    return f"{text}; last fault: {storage['last_error']}" if storage["last_error"] else text


def _bad_rows_text(bad_rows: int) -> str:
    """Rows that could not be had: "bad data: 12 rows are replaced by others"."""
    if not bad_rows:
        return ""
    return f"bad data: {counted_text(bad_rows, 'row is', 'rows are')} replaced by others"


def _cache_text(cache: Mapping[str, Any] | None) -> str:
    """The block cache: "cache 97 % of 1,024 units found, 3.2 GiB read, 101.0 MiB written, 12 files evicted"."""
    if cache is None:
        return ""
    asked = cache["hits"] + cache["misses"]
    text = f"cache {share_text(cache['hits'], asked)} of {count_text(asked)} units found"
    text += f", {human_bytes(cache['read_bytes'])} read, {human_bytes(cache['written_bytes'])} written"
    for key, word in (("evicted_files", "evicted"), ("broken_files", "damaged")):
        if cache[key]:
            text += f", {counted_text(cache[key], 'file')} {word}"
    return f"{text}; it keeps nothing more: {cache['failure']}" if cache["failure"] else text


def _shrinking(text: str) -> Text:
    """Text that is cut where its column, the only one that may wrap, gives way to the others."""
    return Text(text, no_wrap=True, overflow="ellipsis")
