"""What a file holds and how it is laid out: what `o41td inspect` starts, so that a bad file can hurt no one else.

``python -P -m o41td.writing.inspection`` reads one JSON document from standard input,

    {"path", "format", "encoding", "source", "fields": [FieldPlan records], "rows": n}

and prints what `facts_of` returns, or ``{"error": record}``. With `fields` the first rows are those that a stream would
deliver, and each list field's padding is told; without, they are what the file holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from o41td.error_records import error_to_record
from o41td.errors import CorruptDataError, O41Error
from o41td.fields import FieldPlan
from o41td.json_values import json_value
from o41td.projection import PACKED_KEY
from o41td.workers.reader_pool import ReaderPool
from o41td.writing.column_inputs import opened
from o41td.writing.inputs import InputFile, read_inputs

__all__ = ["facts_of"]

_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20
_MOST_BINS = 40


def facts_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is to be known of a file.

    Returns:
        `layout` (None unless it is Parquet): rows, row groups, and of each column type, encodings, codecs and bytes;
        `columns`: names and types of the rows; `sampled_rows`: how many were looked at; `lists`: by list column what
        `lengths_of` says; `rows`: the first rows.

    Raises:
        O41Error: It cannot be read.

    Blocks: on the disk.
    """
    path = Path(request["path"])
    file = InputFile(path=str(path), format=request["format"], size_bytes=path.stat().st_size, mtime_ns=0)
    sample = _sample_of(file)
    fields = [FieldPlan.from_record(record) for record in request["fields"]]
    wanted = {field.source: field.shape[0] for field in fields if len(field.shape) == 1}
    names = sample.schema.names
    lists = {
        name: lengths_of(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), wanted.get(name))
        for name, column in zip(names, sample.columns)
        if _is_list(column.type) and (not fields or name in wanted)
    }
    first = sample.slice(
        0, min(request["rows"], sample.num_rows)
    )  # Arrow's table without columns has any rows asked for
    return {
        "path": str(path),
        "format": file.format,
        "size_bytes": file.size_bytes,
        "layout": _layout_of(path) if file.format == "parquet" else None,
        "columns": [[name, str(kind)] for name, kind in zip(names, sample.schema.types)],
        "sampled_rows": sample.num_rows,
        "lists": lists,
        "rows": _projected(request, fields, first.num_rows)
        if fields
        else [json_value(row) for row in first.to_pylist()],
    }


def lengths_of(lengths: NDArray[Any], length: int | None) -> dict[str, Any]:
    """Returns how long lists are.

    Returns:
        `least`, `median`, `most`; `counts` in the bins [edges[i], edges[i + 1]), the last of which holds its end; for a
        field of some length, the share of its values that is `padding`, and of the lists' values that is `cut`.
    """
    if not len(lengths):
        return {"least": 0, "median": 0, "most": 0, "edges": [0, 1], "counts": [0], "length": length}
    most = int(lengths.max())
    top = max(most, length or 0) + 1
    edges = np.unique(np.linspace(0, top, min(top, _MOST_BINS) + 1).round().astype(np.int64))
    found: dict[str, Any] = {
        "least": int(lengths.min()),
        "median": float(np.median(lengths)),
        "most": most,
        "edges": edges.tolist(),
        "counts": np.histogram(lengths, edges)[0].tolist(),
        "length": length,
    }
    if length is not None:
        kept = np.minimum(lengths, length)
        found["padding"] = 1 - float(kept.sum()) / (length * len(lengths))
        found["cut"] = 1 - float(kept.sum()) / max(1, int(lengths.sum()))
    return found


def _sample_of(file: InputFile) -> Any:
    parts: list[Any] = []
    num_rows = num_bytes = 0
    for part in read_inputs([file]):
        parts.append(part.batch)
        num_rows += part.batch.num_rows
        num_bytes += part.batch.nbytes
        if num_rows >= _SAMPLE_ROWS or num_bytes >= _SAMPLE_BYTES:
            break
    if not parts:
        return pa.table({})
    return pa.concat_tables([pa.Table.from_batches([part]) for part in parts], promote_options="permissive")


def _layout_of(path: Path) -> dict[str, Any]:
    file = pq.ParquetFile(opened(path))
    metadata = file.metadata
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups] or [0]
    columns = []
    for place in range(metadata.num_columns):
        chunks = [group.column(place) for group in groups]
        path_in_schema = metadata.schema.column(place).path
        schema = file.schema_arrow
        names = (path_in_schema, path_in_schema.partition(".")[0])  # a name may hold dots itself
        place_of_field = max(map(schema.get_field_index, names), key=lambda found: found >= 0)
        member = schema.field(place_of_field) if place_of_field >= 0 else None
        columns.append(
            {
                "name": path_in_schema,
                "physical": metadata.schema.column(place).physical_type,
                "packed": None if member is None else _packed(member),
                "nullable": metadata.schema.column(place).max_definition_level > 0,
                "encodings": sorted({name for chunk in chunks for name in chunk.encodings}),
                "codecs": sorted({chunk.compression for chunk in chunks}),
                "bytes": sum(chunk.total_compressed_size for chunk in chunks),
                "decoded_bytes": sum(chunk.total_uncompressed_size for chunk in chunks),
            }
        )
    return {
        "rows": metadata.num_rows,
        "row_groups": metadata.num_row_groups,
        "row_group_rows": [min(rows), int(np.median(rows)), max(rows)],
        "footer_bytes": metadata.serialized_size,
        "created_by": metadata.created_by,
        "columns": columns,
    }


def _packed(member: Any) -> str | None:
    return (member.metadata or {}).get(PACKED_KEY, b"").decode(errors="replace") or None


def _projected(request: Mapping[str, Any], fields: Sequence[FieldPlan], num_rows: int) -> list[dict[str, Any]]:
    """The first rows as a stream would deliver them."""
    if not num_rows:
        return []
    readers = ReaderPool()
    try:
        keys = {"encoding": request["encoding"], "source": request["source"]}
        reader = readers.reader(0, request["path"], fields, **keys)
        arrays = {field.name: np.empty((num_rows, *field.shape), field.numpy_dtype) for field in fields}
        done = group = 0
        while done < num_rows:
            take = num_rows - done
            if request["encoding"] == "parquet":
                rows = pq.read_metadata(request["path"]).row_group(group).num_rows
                take = min(take, rows)
            if take:
                table = reader.read_rows(group, 0, take)
                reader.projector.write(table, {name: array[done:] for name, array in arrays.items()})
            done, group = done + take, group + 1
    finally:
        readers.close()
    return [{name: json_value(array[row].tolist()) for name, array in arrays.items()} for row in range(num_rows)]


def _is_list(kind: Any) -> bool:
    return hasattr(kind, "value_type") and not pa.types.is_dictionary(kind) and not pa.types.is_map(kind)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return facts_of(request)
    except O41Error as error:
        return {"error": error_to_record(error)}
    except Exception as error:  # noqa: BLE001 - whatever a damaged file does to a reader is the answer
        told = f"the file cannot be shown: {type(error).__name__}: {error}"
        return {"error": error_to_record(CorruptDataError(told, shard=request["path"]))}


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
