"""Looks at a few row groups of shards: what `o41td check` starts, so that a bad file can hurt no one else.

``python -P -m o41td.workers.shard_sample`` reads one JSON document from standard input,

    {"max_row_group_bytes": n, "storage": a StorageSettings record, "samples": [{"source", "encoding", "path",
     "size_bytes", "etag", "fields": [FieldPlan records], "row_group", "group_rows", "first_row", "decoding_bytes",
     "take"}, …]}

and prints a line for each sample, in order, once it is done: ``{"rows", "decode_s", "checksums", "pad", "refused"}`` or
``{"error": text}``. A file that ends this process is the one whose line is missing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from o41td.encodings import holds_records
from o41td.errors import O41Error
from o41td.fields import FieldPlan
from o41td.listing import is_local
from o41td.workers.child_storage import objects_of
from o41td.workers.lost_handles import again_if_lost
from o41td.workers.ranges import ByteRange, column_ranges
from o41td.workers.reader_pool import ReaderPool
from o41td.workers.shard_file import open_shard_file

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["has_page_checksum", "look_at_sample"]

_HEADER_BYTES = 64
_THRIFT_I32 = 5
_CRC_FIELD = 4


def has_page_checksum(header: bytes) -> bool | None:
    """Returns whether a page's header holds a checksum; None where this is no page header.

    A `PageHeader` (parquet.thrift) in Thrift's compact protocol: fields 1 to 3 are its type and two sizes, all i32, and
    field 4 is the optional crc. A field begins with a byte (id's increase << 4 | type), and an i32 is a varint.
    """
    at = field = 0
    while at < len(header):
        step, kind = header[at] >> 4, header[at] & 15
        field, at = field + step, at + 1
        if field > _CRC_FIELD:
            return False
        if not step or kind != _THRIFT_I32:
            return None
        if field == _CRC_FIELD:
            return True
        while at < len(header) and header[at] & 0x80:
            at += 1
        at += 1
    return None


def look_at_sample(
    sample: Mapping[str, Any], max_row_group_bytes: int, objects: RemoteObjects | None = None
) -> dict[str, Any]:
    """Decodes the first rows of a row group as a stream would, and says what was seen.

    Returns:
        `rows` that were looked at, `decode_s` for reading and projecting them, `checksums` (None where it cannot be
        told), `pad` by list field the share of its elements that are padding, and `refused`: of the rows with a value
        that does not fit, their number and the first one's error, else None.

    Raises:
        O41Error: The shard cannot be read.

    Blocks: on the disk.
    """
    fields = [FieldPlan.from_record(record) for record in sample["fields"]]
    take, encoding = sample["take"], sample["encoding"]
    started = time.perf_counter()
    reader = _reader_of(sample, fields, max_row_group_bytes, objects)
    table = reader.read_rows(
        sample["row_group"], 0, take, group_rows=sample["group_rows"], decoding_bytes=sample["decoding_bytes"]
    )
    place = {
        "row_offset_in_shard": sample["first_row"],
        "row_group": sample["row_group"],
        "shard": sample["path"],
        "source": sample["source"],
    }
    arrays = _arrays_of(fields, take)
    unfit = reader.projector.write_fitting(table, arrays, **place)
    refused = [] if unfit is None else [(unfit.rows, unfit.error)]
    refused += getattr(table, "refused", [])  # records that could not be had at all are left out of their tables
    decode_s = time.perf_counter() - started
    reader.close()
    return {
        "rows": take,
        "decode_s": decode_s,
        "checksums": None if holds_records(encoding) else _checksums_of(sample, reader, objects),
        "pad": {} if refused else _pad_of(sample, fields, arrays, max_row_group_bytes, objects),
        "refused": _refused(refused),
    }


def _refused(refused: Sequence[tuple[Any, Exception]]) -> dict[str, Any] | None:
    """How many rows do not fit, each counted once, and why the first does not."""
    if not refused:
        return None
    _rows, error = min(refused, key=lambda each: int(each[0][0]))
    return {"rows": len(np.unique(np.concatenate([rows for rows, _error in refused]))), "error": str(error)}


def _arrays_of(fields: Sequence[FieldPlan], rows: int) -> dict[str, Any]:
    return {field.name: np.zeros((rows, *field.shape), field.numpy_dtype) for field in fields}


def _reader_of(
    sample: Mapping[str, Any], fields: Sequence[FieldPlan], max_row_group_bytes: int, objects: RemoteObjects | None
) -> Any:
    is_here = is_local(sample["path"])
    return ReaderPool(max_row_group_bytes=max_row_group_bytes, objects=objects).reader(
        0,
        sample["path"],
        fields,
        encoding=sample["encoding"],
        source=sample["source"],
        size_bytes=None if is_here else sample["size_bytes"],
        etag=None if is_here else sample["etag"],
    )


def _pad_of(
    sample: Mapping[str, Any],
    fields: Sequence[FieldPlan],
    arrays: Mapping[str, Any],
    max_row_group_bytes: int,
    objects: RemoteObjects | None,
) -> dict[str, float]:
    """The share of padding by list field: padding is what differs where only `pad` does, however lists are nested."""
    lists = [replace(field, pad=_other_pad(field)) for field in fields if field.shape]
    if not lists:
        return {}
    reader = _reader_of(sample, lists, max_row_group_bytes, objects)
    take = sample["take"]
    table = reader.read_rows(
        sample["row_group"], 0, take, group_rows=sample["group_rows"], decoding_bytes=sample["decoding_bytes"]
    )
    others = _arrays_of(lists, take)
    reader.projector.write_fitting(table, others)
    reader.close()
    # As bytes, since a NaN is not equal to itself.
    return {name: float((_bits(arrays[name]) != _bits(other)).mean()) for name, other in others.items()}


def _other_pad(field: FieldPlan) -> int | float | bool:
    if field.dtype == "bool":
        return not field.pad
    return 1 if field.pad == 0 else 0


def _bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")


def _checksums_of(sample: Mapping[str, Any], reader: Any, objects: RemoteObjects | None) -> bool | None:
    """Whether the first projected column's first page carries a checksum: writers do it for all or none."""
    indices = reader.plan.column_indices
    if not indices:
        return None
    [(start, _stop)] = column_ranges(reader.facts.metadata, [sample["row_group"]], indices[:1])
    if not is_local(sample["path"]):
        assert objects is not None, "what was read can be read"
        info = reader.facts.identity.info
        header = objects.read(sample["path"], ByteRange(start, min(start + _HEADER_BYTES, info.size_bytes)), info)
        return has_page_checksum(bytes(header))
    return has_page_checksum(again_if_lost(lambda: _read_at(sample["path"], start)))


def _read_at(path: str, start: int) -> bytes:
    with open_shard_file(path) as file:
        file.seek(start)
        return bytes(file.read(_HEADER_BYTES))


def _answer(sample: Mapping[str, Any], max_row_group_bytes: int, objects: RemoteObjects | None) -> dict[str, Any]:
    try:
        return look_at_sample(sample, max_row_group_bytes, objects)
    except O41Error as error:
        return {"error": str(error)}


def _main() -> None:
    request = json.load(sys.stdin)
    objects = objects_of(request["storage"], [sample["path"] for sample in request["samples"]])
    for sample in request["samples"]:
        sys.stdout.write(json.dumps(_answer(sample, request["max_row_group_bytes"], objects)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
