"""How a shard's columns are laid out in Parquet: which encoding, which codec, how many rows a row group has.

A `Layout` is what a user chooses; `plan_columns` turns it into settings for each column of one shard, out of its types
and of a sample of its rows. Decoding is what bounds a stream, so every rule trades bytes against the time to decode
them; docs/layout.md has the measurements.

    lists of numbers      packed into binary values (see `packed_lists`), plain
    integers, times       delta-packed: 20 random bits take 20 bits, and decode as fast as plain values
    floats                plain: a dictionary or a codec slows them three to six times and saves some percent
    all else              dictionary and zstd: strings are not on the way to a batch
    any of these          zstd, where a sample says that it saves enough (`min_saving`); a dictionary, where that does
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from o41td.errors import ConfigError
from o41td.projection import PACKED_KEY
from o41td.writing.packed_lists import ListFacts, pack_lists, packed_bytes_of, packed_dtype_of

__all__ = [
    "BALANCED",
    "FAST",
    "LAYOUTS",
    "LISTS",
    "SAMPLE_BYTES",
    "ColumnLayout",
    "Layout",
    "ShardLayout",
    "layout_named",
    "plan_columns",
]

_ZSTD_LEVEL = 1
SAMPLE_BYTES = 4 << 20
"""How much of a shard's first rows to plan it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What to aim for.

    Attributes:
        name: The name users give.
        packs_lists: Whether lists of numbers are packed; else any Parquet reader sees lists.
        min_saving: The share of a column's bytes that a codec or dictionary must save to be used, 0 to 1.
        checksums: Whether pages carry checksums, which a stream verifies: 0.5 ns a byte.
        row_group_bytes: What the rows of a row group take when decoded, about.
    """

    name: str
    packs_lists: bool
    min_saving: float
    checksums: bool
    row_group_bytes: int = 8 << 20


BALANCED = Layout(name="balanced", packs_lists=True, min_saving=0.15, checksums=True)
FAST = Layout(name="fast", packs_lists=True, min_saving=0.5, checksums=False)
LISTS = Layout(name="lists", packs_lists=False, min_saving=0.15, checksums=True)
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in (BALANCED, FAST, LISTS)}
"""The layouts by name."""


def layout_named(name: str) -> Layout:
    """Returns the layout of a name.

    Raises:
        ConfigError: There is none.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"{name!r} is no layout; give one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """One column of one shard.

    Attributes:
        field: Its Arrow field in the file.
        packed: The dtype that its lists are packed in; None leaves the column as it is.
        length: The length of all its lists, where they have one.
        encoding: Parquet's encoding; None is a dictionary.
        codec: Parquet's codec.
    """

    field: Any
    packed: str | None = None
    length: int | None = None
    encoding: str | None = None
    codec: str = "none"

    def laid_out(self, column: Any) -> Any:
        """The column's array as it goes into the file."""
        if self.packed is not None:
            return pack_lists(column, self.packed, self.length)
        return column if column.type == self.field.type else column.cast(self.field.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """All columns of one shard, and its row groups' rows."""

    columns: tuple[ColumnLayout, ...]
    row_group_rows: int
    checksums: bool
    metadata: Mapping[bytes, bytes] | None = field(default=None)

    @property
    def schema(self) -> Any:
        """The file's Arrow schema."""
        return pa.schema([column.field for column in self.columns], metadata=self.metadata)

    def laid_out(self, batch: Any) -> Any:
        """A record batch as it goes into the file."""
        columns = [layout.laid_out(column) for layout, column in zip(self.columns, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def writer_on(self, file: Any) -> Any:
        """A `pyarrow.parquet.ParquetWriter` with these settings; called with one row group's rows at a time."""
        return pq.ParquetWriter(file, self.schema, write_page_checksum=self.checksums, **_settings_of(self.columns))


def plan_columns(
    layout: Layout,
    schema: Any,
    *,
    sample: Any,
    nullable: Mapping[str, bool],
    lists: Mapping[str, ListFacts],
    mean_row_bytes: float,
) -> ShardLayout:
    """Plans one shard.

    Args:
        layout: What to aim for.
        schema: The Arrow schema of its rows.
        sample: Some of its first rows, about `SAMPLE_BYTES` of them, a record batch.
        nullable: By column, whether it has nulls.
        lists: By column, what is known of its lists.
        mean_row_bytes: What a row takes when decoded.

    Returns:
        The plan; the same for the same rows.
    """
    columns = []
    for member, values in zip(schema, sample.columns, strict=True):
        found = _unencoded(member, layout, nullable.get(member.name, True), lists.get(member.name))
        columns.append(_with_codec(found, values, layout))
    return ShardLayout(
        columns=tuple(columns),
        row_group_rows=max(1, int(layout.row_group_bytes / max(1.0, mean_row_bytes))),
        checksums=layout.checksums,
        metadata=schema.metadata,
    )


def _unencoded(member: Any, layout: Layout, has_nulls: bool, facts: ListFacts | None) -> ColumnLayout:  # noqa: FBT001
    """A column's field and packing."""
    field_here = pa.field(member.name, member.type, has_nulls, member.metadata)
    dtype = None if facts is None or not layout.packs_lists else packed_dtype_of(member.type, facts)
    if dtype is None or facts is None:
        return ColumnLayout(field=field_here)
    metadata = {**(member.metadata or {}), PACKED_KEY: dtype.encode()}
    length = facts.length or None
    width = packed_bytes_of(dtype, length)
    kind = pa.binary(width) if width else pa.binary()
    return ColumnLayout(
        field=pa.field(member.name, kind, has_nulls, metadata), packed=dtype, length=length, encoding="PLAIN"
    )


def _with_codec(column: ColumnLayout, sample: Any, layout: Layout) -> ColumnLayout:
    """The first of the column's candidates, unless another is smaller by enough."""
    candidates = _candidates(column)
    rows = column.laid_out(sample)
    sizes = [_size_of(candidate, rows) for candidate in candidates]
    best = 0
    for place, size in enumerate(sizes[1:], 1):
        if size <= sizes[0] * (1 - layout.min_saving) and size < sizes[best] * (1 - layout.min_saving / 2):
            best = place
    return candidates[best]


def _candidates(column: ColumnLayout) -> Sequence[ColumnLayout]:
    """Ways to write a column, the fastest to read first."""
    kind = column.field.type
    settings: list[tuple[str | None, str]]
    if column.packed is not None:
        settings = [("PLAIN", "none"), ("PLAIN", "zstd")]
    elif _is_delta_packable(kind):
        settings = [("DELTA_BINARY_PACKED", "none"), (None, "none"), (None, "zstd"), ("PLAIN", "zstd")]
    elif pa.types.is_floating(kind):
        settings = [("PLAIN", "none"), (None, "none"), ("PLAIN", "zstd")]
    elif pa.types.is_boolean(kind) or _holds_numbers(kind):
        settings = [("PLAIN", "none"), ("PLAIN", "zstd")]
    else:
        settings = [(None, "zstd")]
    return [
        ColumnLayout(field=column.field, packed=column.packed, length=column.length, encoding=encoding, codec=codec)
        for encoding, codec in settings
    ]


def _size_of(column: ColumnLayout, rows: Any) -> int:
    sink = pa.BufferOutputStream()
    schema = pa.schema([column.field.with_nullable(True)])
    with pq.ParquetWriter(sink, schema, **_settings_of([column])) as writer:
        writer.write_table(pa.Table.from_arrays([rows], schema=schema), row_group_size=max(1, len(rows)))
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    return sum(metadata.column(place).total_compressed_size for place in range(metadata.num_columns))


def _settings_of(columns: Sequence[ColumnLayout]) -> dict[str, Any]:
    """Arguments of a ParquetWriter. Columns are named by their leaves' paths, as it wants them."""
    paths = {column.field.name: _leaf_paths(column.field) for column in columns}
    codecs = {path: column.codec for column in columns for path in paths[column.field.name]}
    return {
        "compression": codecs,
        "compression_level": {path: _ZSTD_LEVEL for path, codec in codecs.items() if codec == "zstd"} or None,
        "use_dictionary": [path for column in columns if column.encoding is None for path in paths[column.field.name]],
        "column_encoding": {
            path: column.encoding for column in columns if column.encoding for path in paths[column.field.name]
        }
        or None,
        "write_statistics": [
            path for column in columns if column.packed is None for path in paths[column.field.name] if "." not in path
        ],
        "version": "2.6",
    }


def _leaf_paths(member: Any) -> list[str]:
    """The paths of a field's leaf columns in the file, as Parquet's writer names them."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, pa.schema([member])).close()
    schema = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [schema.column(place).path for place in range(len(schema))]


def _is_delta_packable(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
    )


def _holds_numbers(kind: Any) -> bool:
    """Whether a type is lists, at any depth, of numbers or bools."""
    while hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
