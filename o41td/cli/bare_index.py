"""`o41td index FILES`: what shards are, without a config; read in a process of its own, which a bad file may end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.index import shards_table
from o41td.encodings import encoding_of
from o41td.listing import is_local, list_files
from o41td.workers.supervisor import describe_exit

__all__ = ["show_files"]

_CONFIG_SUFFIXES = (".toml", ".json", ".yaml", ".yml")


def show_files(entries: Sequence[str], *, as_json: bool) -> bool:
    """Print each shard's figures and the columns that all or some have; returns whether every shard can be read.

    Args:
        entries: files, folders and globs.
        as_json: for programs.

    Raises:
        UsageProblem: One of them is a config, or lies in a store.
        O41Error: There is no such file, or they are of two encodings.

    Blocks: until every footer is read; a shard of records is gone through to its end.
    """
    odd = next((entry for entry in entries if entry.lower().endswith(_CONFIG_SUFFIXES)), None)
    if odd is not None:
        raise UsageProblem(f"{odd} is a config or a checkpoint: give it alone, or files without it")
    remote = next((entry for entry in entries if not is_local(entry)), None)
    if remote is not None:
        raise UsageProblem(f"{remote} is not on this machine: name it in a config's source, and index the config")
    paths = list_files(entries, source="files")
    record = _record_of(paths, encoding_of(paths, source="files"))
    if as_json:
        print(json.dumps([record]), flush=True)  # noqa: T201 - a program reads this
    else:
        console = open_console()
        console.print(shards_table([record]))
        if record["columns"]:
            console.print(_columns_table(record))
    return not any("error" in shard for shard in record["shards"])


def _record_of(paths: Sequence[str], encoding: str) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    while len(answers) < len(paths):
        found, how_it_ended = _answers_to(paths[len(answers) :], encoding)
        answers += found
        if len(answers) < len(paths):
            answers.append({"error": f"reading it ends the process that does: {how_it_ended}"})
    columns = Counter((name, kind) for answer in answers for name, kind in answer.pop("columns", ()))
    return {
        "source": "files",
        "encoding": encoding,
        **{key: sum(answer.get(key, 0) for answer in answers) for key in ("rows", "row_groups", "bytes")},
        "shards": [{"uri": path, **answer} for path, answer in zip(paths, answers, strict=True)],
        "columns": [{"name": name, "type": kind, "shards": shards} for (name, kind), shards in columns.items()],
    }


def _answers_to(paths: Sequence[str], encoding: str) -> tuple[list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "o41td.workers.bare_shard"],
        input=json.dumps({"encoding": encoding, "paths": list(paths)}),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in lines], describe_exit(done.returncode)


def _columns_table(record: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("column", "type", ""):
        table.add_column(title, overflow="fold")
    readable = sum("error" not in shard for shard in record["shards"])
    for column in record["columns"]:
        part = "" if column["shards"] == readable else f"in {column['shards']} of {readable} shards"
        table.add_row(Text(column["name"]), Text(column["type"], style="dim"), Text(part, style="yellow"))
    return table
