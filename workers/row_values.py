"""Prints the values of a few rows of shards: what `o41td trace --show` starts, so that a bad file can hurt no one else.

``python -P -m o41td.workers.row_values`` reads one JSON document from standard input,

    {"columns": [[name, alias or null], …], "storage": a StorageSettings record,
     "rows": [[path, encoding, unit, row in the unit], …]}

and prints ``{"values": [{name: value, …}, …]}``, ``{"refusal": text}`` where there is no such column, or ``{"error":
text}`` where a shard cannot be read. A column is one of the file's, or a key of its
records, by its exact name; where there is none of that name, the alias (a field's source) is looked for.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td.encodings import JSON_LINES, holds_records
from o41td.fields import SOURCE_DTYPES
from o41td.json_values import json_value
from o41td.listing import is_local
from o41td.projection import PACKED_BITS, PACKED_KEY
from o41td.workers.child_storage import objects_of
from o41td.workers.lost_handles import LocalFile
from o41td.workers.record_feed import open_feed
from o41td.workers.record_reader import open_record_file

if TYPE_CHECKING:
    from o41td.workers.remote_file import RemoteFile
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["values_of_rows"]

_BATCH_ROWS = 1024
_MAX_RECORD_BYTES = 1 << 28

_Units = Mapping[int, list[tuple[int, int]]]  # (row, place in the answer) by unit
_Columns = Sequence[tuple[str, str | None]]


class _Refusal(Exception):
    """What cannot be shown, and why."""


def values_of_rows(
    rows: Sequence[tuple[str, str, int, int]],
    columns: Sequence[tuple[str, str | None]],
    objects: RemoteObjects | None = None,
) -> list[dict[str, Any]]:
    """Returns the columns' values of each (path, encoding, unit, row in the unit), as JSON can hold them.

    Blocks: on the disk; each unit is decoded once, up to the last row that is wanted.
    """
    values: list[dict[str, Any]] = [{} for _ in rows]
    wanted: dict[tuple[str, str], dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for place, (path, encoding, unit, row) in enumerate(rows):
        wanted[path, encoding][unit].append((row, place))
    for (path, encoding), units in wanted.items():
        cells_of = _cells_of_records if holds_records(encoding) else _cells_of_columns
        for place, cells in cells_of(path, encoding, units, columns, None if is_local(path) else objects):
            values[place] = {column[0]: json_value(cell) for column, cell in zip(columns, cells, strict=True)}
    return values


def _cells_of_columns(
    path: str, _encoding: str, units: _Units, columns: _Columns, objects: RemoteObjects | None
) -> Iterator[tuple[int, list[Any]]]:
    file = LocalFile(path) if objects is None else _remote_file(path, objects)
    with file, pq.ParquetFile(pa.PythonFile(file, mode="r")) as shard:
        names = [_column_named(shard.schema_arrow.names, path, *column) for column in columns]
        for group, places in units.items():
            batches = shard.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(dict.fromkeys(names)))
            first = 0
            batch = next(batches)
            for row, place in sorted(places):
                while row >= first + batch.num_rows:
                    first += batch.num_rows
                    batch = next(batches)
                yield place, [_cell(batch, name, row - first) for name in names]


def _remote_file(path: str, objects: RemoteObjects) -> RemoteFile:
    from o41td.workers.remote_file import RemoteFile

    return RemoteFile(objects, path, objects.stat(path))


def _cells_of_records(
    path: str, encoding: str, units: _Units, columns: _Columns, objects: RemoteObjects | None
) -> Iterator[tuple[int, list[Any]]]:
    record: dict[str, Any] = {}
    codec = msgspec.json if encoding == JSON_LINES else msgspec.msgpack
    file = open_record_file(path, objects, None if objects is None else objects.stat(path))
    feed = open_feed(file, encoding, max_record_bytes=_MAX_RECORD_BYTES)
    try:
        for row, place in sorted(place for places in units.values() for place in places):
            if row >= feed.position:  # a small source's row may come more than once in a batch
                feed.skip(row - feed.position)
                record = codec.decode(feed.take(1, 1)[0])
            yield place, [record[_column_named(list(record), path, *column)] for column in columns]
    finally:
        feed.close()


def _column_named(names: Sequence[str], path: str, name: str, alias: str | None) -> str:
    for candidate in (name, alias):
        if candidate is not None and candidate in names:
            if names.count(candidate) > 1:
                raise _Refusal(f"{path} has {names.count(candidate)} columns named {candidate!r}")
            return candidate
    raise _Refusal(f"{path} has no column {name!r}; it has {', '.join(names)}")


def _cell(batch: pa.RecordBatch, name: str, row: int) -> Any:
    """A value of the column of exactly this name, packed lists as lists: `a.b` brings the struct `a` along."""
    place = batch.schema.get_field_index(name)
    value = batch.column(place)[row].as_py()
    dtype = (batch.schema.field(place).metadata or {}).get(PACKED_KEY, b"").decode()
    if value is None or (dtype not in SOURCE_DTYPES and dtype != PACKED_BITS):
        return value
    if dtype == PACKED_BITS:
        bits = np.unpackbits(np.frombuffer(value, np.uint8, offset=1), bitorder="little")
        return bits[: len(bits) - value[0]].astype(bool).tolist()
    return np.frombuffer(value, SOURCE_DTYPES[dtype]).tolist()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rows = [(path, encoding, unit, row) for path, encoding, unit, row in request["rows"]]
        objects = objects_of(request["storage"], [path for path, *_ in rows])
        return {"values": values_of_rows(rows, [(name, alias) for name, alias in request["columns"]], objects)}
    except _Refusal as refusal:
        return {"refusal": str(refusal)}
    except Exception as error:  # noqa: BLE001 - whatever a damaged file does to a reader is the answer
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
