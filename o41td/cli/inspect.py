"""`o41td inspect`: what files hold, how they are laid out, and how much of a batch would be padding."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.plot import check_plot, save_figure
from o41td.cli.wording import bytes_text, count_text, counted_text, share_text
from o41td.percentages import percent_text
from o41td.writing.inspecting import inspect_target

__all__ = ["show_target"]

_BAR_CELLS = 30
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MOST_CELL_CHARACTERS = 100
_SHOWN_BINS = 12


def show_target(target: str, *, rows: int, input_format: str | None, plot_path: Path | None, as_json: bool) -> None:
    """Print what there is to know of a file, a manifest or a config.

    Args:
        target: which.
        rows: how many of the first rows.
        input_format: what a file is, where its suffix does not tell.
        plot_path: where to draw the lists' lengths.
        as_json: for programs.

    Raises:
        O41Error: It cannot be read.
        UsageProblem: It cannot be drawn.

    Blocks: while child processes read.
    """
    if plot_path is not None:
        check_plot(plot_path)
    record = inspect_target(target, rows=rows, input_format=input_format)
    if plot_path is not None:
        _draw(record["files"], plot_path)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
        return
    console = open_console()
    for name, split in record.get("splits", {}).items():
        _print_split(console, name, split)
    for facts in record["files"]:
        _print_file(console, facts)
    if plot_path is not None:
        console.print(Text(f"drawn in {plot_path}", style="dim"), soft_wrap=True)


def _print_split(console: Console, name: str, split: Mapping[str, Any]) -> None:
    numbers = f"{count_text(split['records'])} records, {counted_text(split['shards'], 'shard')}"
    console.print(Text.assemble((name, "bold"), f"  {numbers}, {bytes_text(split['bytes'])}"))
    for stage, (shards, records) in split["curriculum"].items():
        console.print(Text(f"  stage {stage}: {count_text(records)} records, {counted_text(shards, 'shard')}"))


def _print_file(console: Console, facts: Mapping[str, Any]) -> None:
    console.print()
    title = f"{facts['source']}: {facts['path']}" if "source" in facts else facts["path"]
    console.print(Text(title, style="bold"), soft_wrap=True)
    layout = facts["layout"]
    if layout is None:
        rows = "" if facts["sampled_rows"] else ", no rows"
        console.print(f"{facts['format']}, {bytes_text(facts['size_bytes'])}{rows}")
        if facts["columns"]:
            console.print(_columns_table(facts["columns"]))
    else:
        least, median, most = map(count_text, layout["row_group_rows"])
        sizes = least if least == most else f"{least} to {most} (median {median})"
        groups = counted_text(layout["row_groups"], "row group")
        console.print(
            f"{counted_text(layout['rows'], 'row')} in {groups} of {sizes}, {bytes_text(facts['size_bytes'])}"
        )
        console.print(Text(f"written by {layout['created_by']}", style="dim"))
        console.print(_layout_table(layout["columns"], dict(facts["columns"])))
    for name, lists in facts["lists"].items():
        _print_lengths(console, name, lists, facts["sampled_rows"])
    for number, row in enumerate(facts["rows"]):
        console.print(Text(f"row {number}", style="dim"))
        for name, value in row.items():
            console.print(Text(f"  {name}  {_shortened(value)}"), no_wrap=True, overflow="ellipsis")


def _columns_table(columns: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("column", overflow="fold")
    table.add_column("type", overflow="fold")
    for name, kind in columns:
        table.add_row(Text(name), Text(kind))
    return table


def _layout_table(columns: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("column", no_wrap=True)
    for title in ("type", "encodings", "codec"):
        table.add_column(title, overflow="fold")
    for title in ("bytes", "of decoded"):
        table.add_column(title, justify="right", no_wrap=True)
    for column in columns:
        top = column["name"].partition(".")[0]
        kind = f"list of {column['packed']}, packed" if column["packed"] else types.get(top, column["physical"])
        table.add_row(
            Text(column["name"]),
            Text(kind),
            ", ".join(name for name in column["encodings"] if name != "RLE") or "RLE",
            ", ".join(column["codecs"]).lower(),
            bytes_text(column["bytes"]),
            share_text(column["bytes"], column["decoded_bytes"]),
        )
    return table


def _print_lengths(console: Console, name: str, lists: Mapping[str, Any], sampled_rows: int) -> None:
    least, most = count_text(lists["least"]), count_text(lists["most"])
    line = f"lengths {least} to {most}, median {lists['median']:,.0f}, of {counted_text(sampled_rows, 'row')}"
    if "padding" in lists:
        line += f"; in {count_text(lists['length'])}: {_fit_text(lists)}"
    console.print(Text.assemble((name, "bold"), f"  {line}"), soft_wrap=True)
    if lists["least"] == lists["most"]:
        return
    bins = _coarser(lists["edges"], lists["counts"])
    tallest = max(count for _, _, count in bins)
    for low, high, count in bins:
        eighths = round(8 * _BAR_CELLS * count / tallest) if tallest else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        console.print(Text(f"  {low:>8,} – {high - 1:>8,}  {bar:<{_BAR_CELLS}}  {share_text(count, sampled_rows)}"))


def _fit_text(lists: Mapping[str, Any]) -> str:
    """How lists fit their field's length: "12.5 % padding, 0.0 % of values cut"."""
    return f"{percent_text(lists['padding'], 1)} padding, {percent_text(lists['cut'], 1)} of values cut"


def _coarser(edges: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Bins as (low, high, count), no more than fit on a screen."""
    step = -(-len(counts) // _SHOWN_BINS)
    return [
        (edges[at], edges[min(at + step, len(counts))], sum(counts[at : at + step]))
        for at in range(0, len(counts), step)
    ]


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CELL_CHARACTERS else f"{text[: _MOST_CELL_CHARACTERS - 1]}…"


def _draw(files: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws a histogram of each list column; a field's length is a line, and what lies right of it is cut."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [(facts.get("source", ""), name, lists) for facts in files for name, lists in facts["lists"].items()]
    figure = Figure(figsize=(8, 2.6 * max(1, len(drawn))), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (source, name, lists) in enumerate(drawn, 1):
        axes = figure.add_subplot(len(drawn), 1, place)
        axes.stairs(lists["counts"], lists["edges"], fill=True, color="#0072B2")
        axes.set(
            xlabel=f"length of {name}",
            ylabel="rows",
        )
        axes.xaxis.set_major_formatter(lambda length, _place: count_text(length))
        axes.yaxis.set_major_formatter(lambda rows, _place: count_text(rows))
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(source, loc="left")
        if lists["length"] is not None:
            axes.axvline(lists["length"], color="#D55E00")
            label = f" length {count_text(lists['length'])}"
            axes.text(lists["length"], 0.97, label, color="#D55E00", va="top", transform=axes.get_xaxis_transform())
            axes.set_title(_fit_text(lists), loc="right")
    save_figure(figure, path)
