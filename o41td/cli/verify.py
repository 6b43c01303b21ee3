"""`o41td verify`: whether two configs or checkpoints are the same stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.progress import opening_shown
from o41td.cli.wording import count_text

__all__ = ["comparison_view", "show_comparison"]

_MOST_TEXT = 160


def show_comparison(
    first: Path, second: Path, *, world_size: int, storage_path: Path | None = None, as_json: bool
) -> bool:
    """Print whether two streams are the same, and return it.

    Args:
        first: a config or checkpoint.
        second: another.
        world_size: the lanes of a config that names none.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: A config, a checkpoint or its data do not allow it.

    Blocks: until all footers are read, and while batches are worked out.
    """
    from o41td.cli.storage import storage_of
    from o41td.outline import read_outline
    from o41td.verifying import compare_streams

    storage = storage_of(storage_path)
    with opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
        outlines = [
            read_outline(path, world_size=world_size, storage=storage, progress=on_footer) for path in (first, second)
        ]
        record = compare_streams(*outlines)
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        open_console().print(comparison_view(record))
    return bool(record["identical"])


def comparison_view(record: Mapping[str, Any]) -> RenderableType:
    """What a person sees of `compare_streams`."""
    if record["identical"]:
        return Text("identical", style="bold green")
    first = record["first"]
    if first is None:
        heading = Text(f"no difference in {count_text(record['compared_rows'])} rows of each stage, but other settings")
    else:
        place = f"batch {count_text(first['number'])} of stage {first['stage_name']}"
        named = place if first["batch"] is None else f"batch {count_text(first['batch'])} ({place})"
        heading = Text.assemble("they part at ", (named, "bold"), f": {first['why']}")
    parts: list[RenderableType] = [heading]
    if record["advice"]:
        parts.append(Text(f"{record['advice']}."))
    if not record["differences"]:
        return Group(*parts)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what differs", no_wrap=True)
    for title in ("in the first", "in the second"):
        table.add_column(title, overflow="fold")
    for path, old, new in record["differences"]:
        table.add_row(Text(path), _shown(old), _shown(new))
    return Group(*parts, Text(""), table)


def _shown(value: Any) -> Text:
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value)
    return Text(text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…")
