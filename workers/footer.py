"""A shard's footer: how many rows each row group has, what decoding it costs, and whether its schema fits the fields.

Only the projected columns' metadata is looked at: asking for an encrypted column's aborts the process, which is why
footers are read in workers and nowhere else, and walking all columns of a wide shard is slow.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from o41td.errors import CorruptDataError
from o41td.fields import FieldPlan, value_bytes
from o41td.projection import FieldProjection, PlanMemory, ProjectionPlan
from o41td.workers.lost_handles import again_if_lost
from o41td.workers.messages import FooterRead
from o41td.workers.shard_file import (
    ShardIdentity,
    check_unchanged,
    content_version,
    indexed_identity,
    not_parquet,
    open_shard_file,
    raise_failure,
    remote_version,
)

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects, Tail

__all__ = ["ShardFooter", "check_leaves", "decoded_width_of", "metadata_of_tail", "read_footer"]

_OFFSET_BYTES = 4.125
"""A list's offset and validity bit: one a row, and for each level below the outermost one a value at most."""

_LEVEL_BYTES = 2
"""Arrow decodes the levels of a whole column chunk into 16-bit integers: one a value for definition (where anything may
be null) and one for repetition (where anything is a list). Of a list of bools they are 32 times the values."""


_UNKNOWN_WIDTH = 8.0
"""Of leaves that are read for no field: numbers, or offsets of what the pages hold."""

_INT96_BYTES = 12
"""Arrow holds these timestamps as they are stored while it makes nanoseconds of them."""

_LITERAL_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED"})
"""Encodings of pages that hold binary values byte for byte; RLE is how levels are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFooter:
    """One shard, by row group: rows, and bytes of the projected columns, each int64 [row groups].

    Attributes:
        rows: Rows.
        decoded_bytes: What the columns take in Arrow, and never less than what their pages take uncompressed.
        decoding_bytes: The same with the levels that Arrow holds while it decodes them.
        compressed_bytes: What they take in the file.
        footer_bytes: What the footer itself takes in the file.
        size_bytes: The file's size.
        mtime_ns: Its modification time.
        version: Digest of its content.
        plan: How its columns become fields.
    """

    rows: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    decoding_bytes: NDArray[np.int64]
    compressed_bytes: NDArray[np.int64]
    footer_bytes: int
    size_bytes: int
    mtime_ns: int
    version: str
    plan: ProjectionPlan

    def answer(self, task_id: int) -> FooterRead:
        """Returns what a worker says of it."""
        return FooterRead(
            task_id=task_id,
            rows=self.rows.astype("<i8").tobytes(),
            decoded_bytes=self.decoded_bytes.astype("<i8").tobytes(),
            decoding_bytes=self.decoding_bytes.astype("<i8").tobytes(),
            compressed_bytes=self.compressed_bytes.astype("<i8").tobytes(),
            footer_bytes=self.footer_bytes,
            size_bytes=self.size_bytes,
            mtime_ns=self.mtime_ns,
            version=self.version,
        )

    @property
    def num_rows(self) -> int:
        """Rows in the shard."""
        return int(self.rows.sum())


def read_footer(
    objects: RemoteObjects | None,
    path: str,
    fields: Sequence[FieldPlan],
    *,
    source: str | None = None,
    size_bytes: int | None = None,
    etag: str | None = None,
    plans: PlanMemory | None = None,
) -> ShardFooter:
    """Reads one shard's footer and checks its schema against the fields.

    Args:
        objects: Where remote shards are read, or None for this machine's files.
        path: The shard's path or URI.
        fields: The fields of the source.
        source: The source's name, for errors.
        size_bytes: A remote shard's size when it was listed.
        etag: Its etag then.
        plans: Where the plan of the shard before may be found.

    Returns:
        The footer. A shard without rows is fine and adds nothing.

    Raises:
        MissingShardError: There is no such file.
        CorruptDataError: It is not Parquet, cut short, damaged or encrypted.
        SchemaError: Its columns do not give the fields.
        StorageError: The store does not answer.

    Blocks: On the store.
    Called by: A worker.
    """
    identity = indexed_identity(path, objects, source=source, size_bytes=size_bytes, etag=etag)
    if identity.size_bytes < 12:
        raise not_parquet(f"it has {identity.size_bytes} bytes", source=source, shard=path)
    try:
        version, metadata, schema = again_if_lost(
            lambda: _read(objects, path, identity),
            reopen=lambda: check_unchanged(identity, path, objects, source=source),
        )
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes Arrow raise is that shard's error
        raise_failure(error, source=source, shard=path)
    plan = (plans or PlanMemory()).plan_of(schema, fields, source=source, shard=path)
    check_leaves(plan, metadata, source=source, shard=path)
    try:
        rows, decoded_bytes, decoding_bytes, compressed_bytes = _row_groups_of(metadata, plan)
    except Exception as error:  # noqa: BLE001 - as above
        raise_failure(error, source=source, shard=path)
    if (rows < 0).any() or int(rows.sum()) != metadata.num_rows:
        why = f"its footer counts {metadata.num_rows} rows, and its row groups {int(rows.sum())}"
        raise CorruptDataError(f"the shard contradicts itself: {why}", source=source, shard=path)
    footer_bytes = int(metadata.serialized_size)
    del metadata
    gc.collect(0)  # a footer whose schema was looked at is a cycle, and hundreds would wait for the collector
    return ShardFooter(
        rows=rows,
        decoded_bytes=decoded_bytes,
        decoding_bytes=decoding_bytes,
        compressed_bytes=compressed_bytes,
        footer_bytes=footer_bytes,
        size_bytes=identity.size_bytes,
        mtime_ns=identity.mtime_ns,
        version=version,
        plan=plan,
    )


def _read(objects: RemoteObjects | None, path: str, identity: ShardIdentity) -> tuple[str, Any, Any]:
    """(version, metadata, Arrow schema) of a shard."""
    if objects is not None:
        tail = objects.tail(path, identity.info)
        metadata = metadata_of_tail(tail)
        return remote_version(identity, tail.data), metadata, metadata.schema.to_arrow_schema()
    with open_shard_file(path) as file:
        version = content_version(file, identity)
        parquet = pq.ParquetFile(file)
        return version, parquet.metadata, parquet.schema_arrow


def metadata_of_tail(tail: Tail) -> Any:
    """Returns the footer that stands at the end of a shard, or raises what Arrow does where there is none."""
    return pq.read_metadata(pa.BufferReader(pa.py_buffer(tail.data)))


def check_leaves(plan: ProjectionPlan, metadata: Any, *, source: str | None, shard: str) -> None:
    """Checks that leaves counted in the Arrow schema are the file's columns, so an index means the same in both.

    Raises:
        CorruptDataError: They are not.
    """
    if plan.num_leaves != metadata.num_columns:
        why = f"its Arrow schema has {plan.num_leaves} leaf columns and its Parquet schema {metadata.num_columns}"
        raise CorruptDataError(f"the shard contradicts itself: {why}", source=source, shard=shard)


def decoded_width_of(leaf_type: Any) -> float:
    """Bytes that one value of a leaf takes in Arrow, list offsets and validity left out.

    Of binary values and dictionaries this is the offset or index; their bytes are the pages' uncompressed size at
    least.

    Args:
        leaf_type: An Arrow type that `plan_projection` accepts as a leaf.
    """
    if isinstance(leaf_type, pa.BaseExtensionType):
        leaf_type = leaf_type.storage_type
    if pa.types.is_null(leaf_type):
        return 0.0
    try:
        return float(leaf_type.bit_width) / 8
    except ValueError:
        return 8.0


def _packed_row_bytes(item: FieldProjection) -> int:
    """What a row that fills the field packs, where the type does not say it: pages may say nothing of it either."""
    if pa.types.is_fixed_size_binary(item.leaf_type):
        return 0
    return math.prod(item.field.shape) * value_bytes(item.field.source_dtype or "i32")


def _row_groups_of(
    metadata: Any, plan: ProjectionPlan
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    leaf_types = {item.leaf_index: item.leaf_type for item in plan.fields}
    packed_bytes = {item.leaf_index: _packed_row_bytes(item) for item in plan.fields if item.kind == "packed"}
    columns = []
    for index in plan.column_indices:
        column = metadata.schema.column(index)
        nullable = 0.125 if column.max_definition_level else 0.0
        level_bytes = _LEVEL_BYTES * ((column.max_definition_level > 0) + (column.max_repetition_level > 0))
        width = (decoded_width_of(leaf_types[index]) if index in leaf_types else _UNKNOWN_WIDTH) + nullable
        width += _INT96_BYTES if column.physical_type == "INT96" else 0
        columns.append((index, width, packed_bytes.get(index, 0), column.max_repetition_level, level_bytes))
    num_groups = metadata.num_row_groups
    rows = np.zeros(num_groups, np.int64)
    decoded = np.zeros(num_groups, np.int64)
    levels = np.zeros(num_groups, np.int64)
    compressed = np.zeros(num_groups, np.int64)
    for group in range(num_groups):
        row_group = metadata.row_group(group)
        rows[group] = num_rows = row_group.num_rows
        for index, width, packed, num_lists, level_bytes in columns:
            chunk = row_group.column(index)
            is_literal = not packed or _LITERAL_ENCODINGS.issuperset(chunk.encodings)
            value_bytes = width if is_literal else width + packed
            num_offsets = (num_rows + 1 + (num_lists - 1) * chunk.num_values) if num_lists else 0
            in_arrow = int(chunk.num_values * value_bytes + num_offsets * _OFFSET_BYTES) + 1
            decoded[group] += max(in_arrow, chunk.total_uncompressed_size)
            levels[group] += chunk.num_values * level_bytes
            compressed[group] += chunk.total_compressed_size
    return rows, decoded, decoded + levels, compressed
