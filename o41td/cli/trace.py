"""`o41td trace`: what is in a batch, and where a row comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.progress import opening_shown
from o41td.cli.wording import count_text, counted_text, printable

__all__ = ["TraceQuestion", "batch_view", "row_view", "show_trace"]

_MOST_ROWS_SHOWN = 64
_MOST_TEXT = 60
_MOST_ITEMS = 12
_SHORT_NAME = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuestion:
    """What is asked: a batch by its global number or by a rank's step, or a shard's row."""

    batch: int | None = None
    step: int | None = None
    rank: int = 0
    shard: str | None = None
    row: int | None = None
    epochs: int | None = None
    columns: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuses a question that is none, or several.

        Raises:
            UsageProblem: It is.
        """
        asked = [
            name
            for name, value in (("--batch", self.batch), ("--step", self.step), ("--shard", self.shard))
            if value is not None
        ]
        if len(asked) != 1:
            given = f"{' and '.join(asked)} are given" if asked else "none of them is given"
            raise UsageProblem(f"give one of --batch G, --step K and --shard PATH --row N; {given}")
        if (self.shard is None) != (self.row is None):
            raise UsageProblem("--shard and --row go together")
        if self.shard is None and self.epochs is not None:
            raise UsageProblem("--epochs goes with --shard and --row")
        if self.shard is not None and self.columns:
            raise UsageProblem("--show goes with --batch or --step")


def show_trace(
    target: Path, question: TraceQuestion, *, world_size: int, storage_path: Path | None = None, as_json: bool
) -> None:
    """Print the answer.

    Args:
        target: a config or checkpoint.
        question: what is asked.
        world_size: how many ranks there are.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: The stream has no such batch or row, or its data do not allow it.
        UsageProblem: The question makes no sense.

    Blocks: until every footer is read; with columns to show, while a child process reads them.
    """
    from o41td.cli.storage import storage_of
    from o41td.outline import read_outline
    from o41td.rank_info import check_rank
    from o41td.row_values import add_values
    from o41td.tracing import batch_of_step, trace_batch, trace_row

    question.check()
    check_rank(question.rank, world_size)
    storage = storage_of(storage_path)
    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        outline = read_outline(target, world_size=world_size, storage=storage, progress=on_footer)
    if question.shard is not None and question.row is not None:
        record = trace_row(outline, question.shard, question.row, epochs=question.epochs)
    else:
        batch = question.batch if question.step is None else batch_of_step(outline, question.step, question.rank)
        assert batch is not None
        record = trace_batch(outline, batch)
        if question.columns:
            add_values(outline, record["stage"], record["rows"], question.columns, storage=storage)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        view = row_view(record) if question.shard is not None else batch_view(record, question.columns)
        open_console().print(view)


def batch_view(record: Mapping[str, Any], columns: Sequence[str] = ()) -> RenderableType:
    """What a person sees of `trace_batch`."""
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    folder = _common_folder([row["shard"] for row in rows])
    parts: list[RenderableType] = [_heading(record, len(rows))]
    if folder:
        parts.append(Text(f"shards in {folder}", style="dim", overflow="fold"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("place", "row", "group"):
        table.add_column(title, justify="right", no_wrap=True)
    names = max((len(row["shard"].removeprefix(folder)) for row in rows), default=0)
    table.add_column("shard", overflow="fold", min_width=min(names, _SHORT_NAME))
    table.add_column("source", overflow="fold")
    for column in columns:
        # A row is a line; but a list of texts, such as the documents of a sequence, has a line for each, read whole.
        are_texts = any(_are_texts(row["values"][column]) for row in rows)
        table.add_column(column, no_wrap=not are_texts, overflow="fold" if are_texts else "ellipsis")
    for row in rows[:_MOST_ROWS_SHOWN]:
        cells = [_value_text(row["values"][column]) for column in columns]
        place = (count_text(row["place"]), count_text(row["row"]), count_text(row["row_group"]))
        table.add_row(*place, Text(row["shard"].removeprefix(folder)), Text(_short_name(record, row["source"])), *cells)
    parts += [Text(""), table]
    if len(rows) > _MOST_ROWS_SHOWN:
        parts.append(Text(f"… and {count_text(len(rows) - _MOST_ROWS_SHOWN)} more; --json has all", style="dim"))
    return Group(*parts)


def row_view(record: Mapping[str, Any]) -> RenderableType:
    """What a person sees of `trace_row`."""
    heading = Text.assemble(
        ("row ", "bold"), (count_text(record["row"]), "bold"), f" of {record['shard']}", overflow="fold"
    )
    occurrences: Sequence[Mapping[str, Any]] = record["occurrences"]
    if not occurrences:
        why = "in no batch so far" if record["so_far"] else "in no batch: it is among the rows that batching drops"
        return Group(heading, Text(why))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("batch", "step", "rank", "place", "epoch"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    table.add_column("")
    for come in occurrences:
        numbers = (come["batch"], come["step"], come["rank"], come["place"], come["epoch"])
        cells = ["–" if number is None else count_text(number) for number in numbers]
        table.add_row(*cells, Text(come["source"]), Text(_STATES[come["state"]], style="yellow"))
    return Group(heading, Text(""), table)


_STATES = {
    "delivered": "",
    "ahead": "",
    "excluded": "excluded",
    "dropped": "dropped with the last round",
}


def _heading(record: Mapping[str, Any], num_rows: int) -> Text:
    """Where a batch stands: "batch 1,207: batch 7 of stage mix, lane 7; step 301 of rank 3 of 4; 64 rows"."""
    text = Text.assemble(
        (f"batch {count_text(record['batch'])}", "bold"),
        f": batch {count_text(record['number'])} of stage {record['stage_name']}, lane {record['lane']}; ",
    )
    if record["state"] == "excluded":
        text.append("excluded", style="yellow")
    elif record["state"] == "dropped":
        text.append("dropped: the last round is not full", style="yellow")
    elif record["world_size"] == 1:
        text.append(f"step {count_text(record['step'])}")
    else:
        text.append(f"step {count_text(record['step'])} of rank {record['rank']} of {record['world_size']}")
    return text.append(f"; {counted_text(num_rows, 'row')}")


def _short_name(record: Mapping[str, Any], source: str) -> str:
    return source.removeprefix(f"{record['stage_name']}/")


def _common_folder(uris: Sequence[str]) -> str:
    """The folder that all lie below, with its slash; "" if there is none."""
    low, high = min(uris, default=""), max(uris, default="")
    length = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return low[: low.rfind("/", 0, length) + 1]


def _value_text(value: Any) -> Text:
    """A value in a cell: a long list by its length and its first items, texts one a line, long text cut."""
    if _are_texts(value):
        lines = [_shortened(item) for item in value[:_MOST_ITEMS]]
        more = len(value) - len(lines)
        return Text("\n".join([*lines, f"… and {count_text(more)} more"] if more else lines))
    if isinstance(value, list) and len(value) > _MOST_ITEMS:
        shown = json.dumps(value[:_MOST_ITEMS], ensure_ascii=False)
        return Text(f"({count_text(len(value))}) {shown[:-1]}, …]")
    shown = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return Text(_one_line(shown if len(shown) <= _MOST_TEXT else f"{shown[: _MOST_TEXT - 1]}…"))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _shortened(text: str) -> str:
    """A text with its middle left out if it is long: a path is told apart by its end."""
    end = 2 * _MOST_TEXT // 3
    return _one_line(text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - end - 1]}…{text[-end:]}")


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")
