"""Whatever a user calls records, as record batches: dicts, tables, record batches, readers, in any mix.

Types of dicts are inferred from a chunk of them at a time, unless a schema is given; `RowSpool` brings chunks of
different types together, where nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from o41td.errors import DataError, SchemaError
from o41td.projection import packed_dtypes_of
from o41td.workers.record_tables import first_odd_value
from o41td.writing.packed_lists import unpacked

__all__ = ["BATCH_ROWS", "record_batches"]

BATCH_ROWS = 1024
"""Rows of a batch at most; a batch is what is shuffled, cut and packed at a time."""


def record_batches(records: Any, schema: Any = None) -> Iterator[Any]:
    """Yields records as record batches of at most `BATCH_ROWS` rows, none empty, packed lists as lists.

    Args:
        records: A table, a record batch, a record batch reader, or an iterable of dicts, tables and record batches.
        schema: The `pyarrow.Schema` that rows must have; None takes what they have.

    Raises:
        SchemaError: Rows do not have the schema, or a column stands twice.
        DataError: What is given is no records.
    """
    if isinstance(records, pa.Table | pa.RecordBatch | Mapping):
        records = [records]
    first_row = 0
    for item in _chunked_dicts(iter(records)):
        for batch in _batches_of(item, first_row, schema):
            yield batch
            first_row += batch.num_rows


def _batches_of(item: Any, first_row: int, schema: Any) -> Iterator[Any]:
    if isinstance(item, list):
        item = _batch_of_dicts(item, first_row, schema)
    elif not isinstance(item, pa.Table | pa.RecordBatch):
        raise DataError(f"a record is a dict, and tables and record batches hold some; {type(item).__name__} does not")
    if any(packed_dtypes_of(item.schema)):
        # Arrow takes columns that pack different dtypes for columns of one type.
        batches = item.to_batches() if isinstance(item, pa.Table) else [item]
        item = pa.Table.from_batches([unpacked(batch) for batch in batches], None if batches else pa.schema([]))
    names = item.schema.names
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise SchemaError("two columns have this name", column=doubled, advice="Rename one of them")
    if schema is not None and not item.schema.equals(schema):
        item = _with_schema(item, first_row, schema)
    table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        if batch.num_rows:
            yield batch


def _chunked_dicts(items: Iterator[Any]) -> Iterator[Any]:
    """Dicts as lists of them; all else as it is."""
    for item in items:
        if not isinstance(item, Mapping):
            yield item
            continue
        rows = [item]
        other: list[Any] = []
        for following in islice(items, BATCH_ROWS - 1):
            if not isinstance(following, Mapping):
                other.append(following)
                break
            rows.append(following)
        yield from chain([rows], other)


def _batch_of_dicts(rows: list[Mapping[str, Any]], first_row: int, schema: Any) -> Any:
    names = list(dict.fromkeys(name for row in rows for name in row)) if schema is None else schema.names
    unknown = next((name for row in rows for name in row if name not in names), None) if schema is not None else None
    if unknown is not None:
        raise SchemaError("the schema has no such column", column=unknown)
    columns = []
    for name in names:
        kind = None if schema is None else schema.field(name).type
        try:
            columns.append(pa.array([row.get(name) for row in rows], kind))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            row = first_row + first_odd_value([row.get(name) for row in rows], kind)
            other = "of another type than those before it" if kind is None else f"not of the schema's type {kind}"
            raise SchemaError(
                f"the value is {other}: {_told(error)}",
                column=name,
                row=row,
                advice="Mend the records, or give a schema",
            ) from error
    if schema is not None:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_arrays(columns, names)


def _with_schema(item: Any, first_row: int, schema: Any) -> Any:
    if item.schema.names != schema.names:
        missing: Iterable[str] = [name for name in schema.names if name not in item.schema.names]
        if missing or len(item.schema.names) != len(schema.names):
            has = ", ".join(item.schema.names)
            raise SchemaError(f"records {first_row} and on have columns {has}, and not those of the schema")
        item = item.select(schema.names)
    try:
        return item.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaError(f"records {first_row} and on do not have the schema's types: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())
