"""The values of traced rows, read in a process of their own: a damaged or encrypted file may end it, and only it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from o41td.config import StorageConfig
from o41td.errors import ConfigError, CorruptDataError
from o41td.listing import local_path_of
from o41td.outline import Outline
from o41td.workers.supervisor import describe_exit

__all__ = ["add_values"]


def add_values(
    outline: Outline,
    stage: int,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    *,
    storage: StorageConfig | None = None,
) -> None:
    """Adds `values` to each of a traced batch's rows: what the shards hold in these columns.

    Args:
        outline: The stream.
        stage: The batch's stage.
        rows: The rows, as `trace_batch` lists them.
        columns: Columns of the shards, or fields of the config, which stand for their source.
        storage: How to reach remote storage.

    Blocks: while a child process reads the row groups.

    Raises:
        ConfigError: There is no such column.
        CorruptDataError: A shard ended the process that read it.
    """
    aliases = {field.name: field.source for field in outline.job.stages[stage].sources[0].fields}
    request = {
        "columns": [[column, aliases.get(column)] for column in columns],
        "rows": [[local_path_of(row["shard"]), row["encoding"], row["row_group"], row["row_in_group"]] for row in rows],
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "o41td.workers.row_values"],
        input=json.dumps({**request, "storage": (storage or StorageConfig()).secret_record()}),  # kept by nobody
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        detail = f"the process that read these rows did not survive it: {describe_exit(done.returncode)}"
        raise CorruptDataError(detail, shard=_only(rows))
    answer: Mapping[str, Any] = json.loads(done.stdout)
    if "refusal" in answer:
        raise ConfigError("these values cannot be shown", problems=[("show", answer["refusal"])])
    if "error" in answer:
        raise CorruptDataError(f"these rows cannot be read: {answer['error']}", shard=_only(rows))
    for row, values in zip(rows, answer["values"], strict=True):
        row["values"] = values


def _only(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The shard that all rows are of; None where there are several."""
    shards = {row["shard"] for row in rows}
    return shards.pop() if len(shards) == 1 else None
