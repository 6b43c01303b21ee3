"""Prints the values of a few rows of shards: what `o41td trace --show` starts, so that a bad file can hurt no one else.

``python -P -m o41td.workers.row_values`` reads one JSON document from standard input,

    {"columns": [[name, alias or null], …], "rows": [[path, row group, row in the group], …]}

and prints ``{"values": [{name: value, …}, …]}``, or ``{"error": text}``. A column is one of the file's, by its exact
name; where there is none of that name, the alias (a field's source) is looked for.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["values_of_rows"]

_BATCH_ROWS = 1024


class _Refusal(Exception):
    """What cannot be shown, and why."""


def values_of_rows(
    rows: Sequence[tuple[str, int, int]], columns: Sequence[tuple[str, str | None]]
) -> list[dict[str, Any]]:
    """Returns the columns' values of each (path, row group, row in the group), as JSON can hold them.

    Blocks: on the disk; each row group is decoded once, up to the last row that is wanted.
    """
    values: list[dict[str, Any]] = [{} for _ in rows]
    wanted: dict[str, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for place, (path, group, row) in enumerate(rows):
        wanted[path][group].append((row, place))
    for path, groups in wanted.items():
        with pq.ParquetFile(path) as shard:
            names = [_column_named(shard.schema_arrow.names, path, *column) for column in columns]
            for group, places in groups.items():
                for place, cells in _cells_of(shard, group, sorted(places), names):
                    values[place] = {column[0]: cell for column, cell in zip(columns, cells, strict=True)}
    return values


def _column_named(names: Sequence[str], path: str, name: str, alias: str | None) -> str:
    for candidate in (name, alias):
        if candidate is not None and candidate in names:
            if names.count(candidate) > 1:
                raise _Refusal(f"{path} has {names.count(candidate)} columns named {candidate!r}")
            return candidate
    raise _Refusal(f"{path} has no column {name!r}; it has {', '.join(names)}")


def _cells_of(
    shard: pq.ParquetFile, group: int, places: list[tuple[int, int]], names: Sequence[str]
) -> list[tuple[int, list[Any]]]:
    found = []
    first = at = 0
    for batch in shard.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=list(dict.fromkeys(names))):
        while at < len(places) and places[at][0] < first + batch.num_rows:
            row, place = places[at]
            found.append((place, [_plain(_column(batch, name)[row - first].as_py()) for name in names]))
            at += 1
        first += batch.num_rows
        if at == len(places):
            return found
    raise _Refusal(f"row group {group} has {first} rows, fewer than its footer says")


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column of exactly this name: asking for `a.b` brings the struct `a` as well."""
    return batch.column(batch.schema.get_field_index(name))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rows = [(path, group, row) for path, group, row in request["rows"]]
        return {"values": values_of_rows(rows, [(name, alias) for name, alias in request["columns"]])}
    except (_Refusal, OSError, pa.ArrowException) as error:
        return {"error": str(error)}


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
