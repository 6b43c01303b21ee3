"""`o41td plan`: what a config comes to, how two differ, and a picture of the curriculum."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.plot import check_plot, plot_curriculum
from o41td.cli.progress import opening_shown
from o41td.cli.wording import bytes_text, count_text, counted_text, share_text
from o41td.sizes import human_bytes

__all__ = ["differences_view", "plan_view", "show_plan"]

_SOURCE_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("source", "left"),
    ("share", "right"),
    ("rows", "right"),
    ("shards", "right"),
    ("groups", "right"),
    ("stored", "right"),
    ("decoded", "right"),
)
_MOST_DIFFERENCE_TEXT = 60


def show_plan(
    config_path: Path,
    *,
    rank: int,
    world_size: int,
    plot_path: Path | None = None,
    other_path: Path | None = None,
    storage_path: Path | None = None,
    as_json: bool,
) -> None:
    """Print a config's plan, or how it differs from another's.

    Args:
        config_path: the config.
        rank: whose share is told.
        world_size: how many ranks there are.
        plot_path: where to draw the curriculum, a PNG, PDF or SVG.
        other_path: another config, to print the differences.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: The config or the data do not allow it.
        UsageProblem: matplotlib is missing, or the picture cannot be written there.

    Blocks: until every footer is read.
    """
    from o41td import BatchStreamConfig
    from o41td.cli.storage import storage_of
    from o41td.document_differences import differences_of
    from o41td.outline import read_outline
    from o41td.planning import plan_of
    from o41td.rank_info import check_rank

    rank, world_size = check_rank(rank, world_size)
    if plot_path is not None:
        check_plot(plot_path)
    storage = storage_of(storage_path)
    paths = [config_path] if other_path is None else [config_path, other_path]
    configs = [BatchStreamConfig.load(path) for path in paths]
    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        outlines = [
            read_outline(
                config,
                rank=rank,
                world_size=world_size,
                storage=storage,
                progress=on_footer,
                whatever_the_memory=False,
            )
            for config in configs
        ]
    records = [plan_of(outline, rank) for outline in outlines]
    if plot_path is not None:
        plot_curriculum(outlines[0], plot_path)
    if other_path is None:
        shown: Any = records[0]
        view = plan_view(records[0])
    else:
        first, second = (_compared(record) for record in records)
        shown = [list(difference) for difference in differences_of(first, second)]
        view = differences_view(shown)
    if as_json:
        print(json.dumps(shown), flush=True)  # noqa: T201 - a program reads this
    else:
        console = open_console()
        console.print(view)
        if plot_path is not None:
            console.print(Text(f"drawn in {plot_path}", style="dim"), soft_wrap=True)


def differences_view(differences: Sequence[Sequence[Any]]) -> RenderableType:
    """What a person sees of two plans' differences."""
    if not differences:
        return Text("the plans are the same")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what differs", no_wrap=True)
    table.add_column("in the first", justify="right", overflow="fold")
    table.add_column("in the second", justify="right", overflow="fold")
    for path, old, new in differences:
        table.add_row(Text(path), _difference_text(path, old), _difference_text(path, new))
    return table


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    """A plan without what says nothing new: the table of the memory's terms."""
    return {key: value for key, value in record.items() if key not in ("memory_table", "notices")}


def _difference_text(path: str, value: Any) -> Text:
    if value is None:
        text = "–"
    elif isinstance(value, bool) or not isinstance(value, int | float):
        text = value if isinstance(value, str) else json.dumps(value)
    elif "bytes" in path or ".terms." in path:
        text = human_bytes(int(value))
    else:
        text = count_text(value) if value == int(value) else f"{value:.4g}"
        text = str(value) if path.endswith("seed") else text
    return Text(text if len(text) <= _MOST_DIFFERENCE_TEXT else f"{text[: _MOST_DIFFERENCE_TEXT - 1]}…")


def plan_view(record: Mapping[str, Any]) -> RenderableType:
    """What a person sees of `plan(config)`; fits into 80 columns."""
    ranks = "1 rank" if record["world_size"] == 1 else f"rank {record['rank']} of {record['world_size']}"
    lanes = "1 lane" if record["lanes"] == 1 else f"{record['lanes']} lanes"
    parts: list[RenderableType] = [Text(f"{ranks}, {lanes}, seed {record['seed']}", style="dim"), Text("")]
    for stage in record["stages"]:
        parts += [*_stage_heading(stage), Padding(_sources_table(stage), (0, 0, 1, 2))]
    memory = record["memory"]
    allowed = f", of {human_bytes(memory['limit_bytes'])} allowed" if memory.get("limit_bytes") else ""
    parts.append(Text.assemble(("memory", "bold"), f"  at most {human_bytes(memory['bound_bytes'])}{allowed}"))
    parts.append(Text("\n".join(f"  {line}" for line in record["memory_table"].splitlines()), style="dim"))
    parts += [Text(f"\nNote: {notice}", style="yellow") for notice in record["notices"]]
    return Group(*parts)


def _stage_heading(stage: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A stage in a line, "mix  98,304 rows in 1,536 batches of 64, shuffled within 8,192", and more below it."""
    if stage["infinite"]:
        extent = f"{count_text(stage['rows'])} rows an epoch, endless, in batches of {stage['batch_size']}"
    else:
        extent = f"{count_text(stage['rows'])} rows in {count_text(stage['batches'])} batches of {stage['batch_size']}"
    heading = Text.assemble((stage["name"], "bold"), f"  {extent}")
    if stage["shuffle_buffer_rows"]:
        heading.append(f", shuffled within {count_text(stage['shuffle_buffer_rows'])}")
    yield heading
    for line in _stage_lines(stage):
        yield Padding(line, (0, 0, 0, 2), expand=False)


def _stage_lines(stage: Mapping[str, Any]) -> Iterator[Text]:
    """What else there is to say of a stage."""
    if not stage["infinite"]:
        if stage["steps_per_rank"] != stage["batches"]:
            yield Text(f"{counted_text(stage['steps_per_rank'], 'batch', 'batches')} for each rank")
        if stage["excluded_batches"]:
            yield Text(f"{counted_text(stage['excluded_batches'], 'batch', 'batches')} excluded")
        if stage["dropped_rows_all_ranks"]:
            yield Text(f"{counted_text(stage['dropped_rows_all_ranks'], 'row')} dropped at the end, over all ranks")
    sources = stage["sources"]
    requests = sum(source["requests"] for source in sources)
    epoch = "an epoch" if stage["infinite"] else "in all"
    yield Text(f"{count_text(requests)} reads of columns and footers {epoch}", style="dim")
    if len(sources) > 1:
        yield Text(f"the mix is within {stage['mix_error_rows']:.1f} rows of the weights", style="dim")


def _sources_table(stage: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    end_title = "epoch every" if stage["infinite"] else "last batch"
    for title, justify in (*_SOURCE_COLUMNS, (end_title, "right")):
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")
    for source in stage["sources"]:
        table.add_row(
            source["name"].removeprefix(f"{stage['name']}/"),
            share_text(source["share"], 1),
            count_text(source["rows"]),
            count_text(source["shards"]),
            count_text(source["row_groups"]),
            bytes_text(source["stored_bytes"]),
            bytes_text(source["decoded_bytes"]),
            count_text(source["epoch_batches"] if stage["infinite"] else source["last_batch"] or 0),
        )
    return table
