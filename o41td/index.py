"""The index: where every row of every source lies, as arrays over units. Row counts only, never a row.

A unit is a Parquet row group, or a whole shard of records. Order is arithmetic over `unit_rows`; the other arrays say
where a unit's bytes are and what decoding it costs. 1 000 000 units take 44 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import PARQUET
from o41td.listing import is_local

__all__ = [
    "ShardEntry",
    "ShardUnits",
    "SourceIndex",
    "etag_of_version",
    "index_source",
    "unit_rows_of_source",
    "is_remote_source",
    "version_of_etag",
]

_ETAG = "etag:"


def version_of_etag(etag: str) -> str:
    """The version of a remote shard that has an etag: a checkpoint so holds it in full."""
    return _ETAG + etag


def etag_of_version(version: str | None) -> str | None:
    """Returns the etag that a version is; None where it is none."""
    return version.removeprefix(_ETAG) if version is not None and version.startswith(_ETAG) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard as it was when the stream was first opened.

    `version` is derived from its content (local files), or is its etag; `mtime_ns` is only a hint that nothing happened
    since the index was read, and is no part of the version. Where a manifest states all that the order needs, nothing
    of the shard was read and its version is None.
    """

    uri: str
    rows: int
    size_bytes: int
    mtime_ns: int
    version: str | None

    @property
    def etag(self) -> str | None:
        """The etag of a remote shard, where its store has them."""
        return etag_of_version(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnits:
    """What is known of a shard: its entry; per unit rows, and bytes as in `SourceIndex` (int64 arrays)."""

    entry: ShardEntry
    rows: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    decoding_bytes: NDArray[np.int64]
    compressed_bytes: NDArray[np.int64]
    footer_bytes: int


@dataclass(frozen=True, kw_only=True)
class SourceIndex:
    """One source of one stage: its shards in the listed order, and its units in the order of their rows.

    Arrays have one element a unit: `unit_shard` int32, `unit_row_group` int32, `unit_rows` int64, `unit_first_row`
    int64 (the unit's first row within its shard); int64 `unit_decoded_bytes` (in Arrow), `unit_decoding_bytes` (with
    what decoding them holds besides) and `unit_compressed_bytes`: of Parquet the projected columns, of records all that
    the shard holds.

    Of the shards' footers, as they are in the files, `footers_bytes` is the sum and `largest_footer_bytes` the largest.
    """

    stage: int
    source: int
    name: str
    encoding: str
    shards: tuple[ShardEntry, ...]
    unit_shard: NDArray[np.int32]
    unit_row_group: NDArray[np.int32]
    unit_rows: NDArray[np.int64]
    unit_first_row: NDArray[np.int64]
    unit_decoded_bytes: NDArray[np.int64]
    unit_decoding_bytes: NDArray[np.int64]
    unit_compressed_bytes: NDArray[np.int64]
    footers_bytes: int
    largest_footer_bytes: int

    @cached_property
    def num_rows(self) -> int:
        """Rows in the source."""
        return int(self.unit_rows.sum())

    @cached_property
    def shard_first_unit(self) -> NDArray[np.int64]:
        """First unit of each shard, and one past the last unit at the end: int64 [shards + 1]."""
        return np.searchsorted(self.unit_shard, np.arange(len(self.shards) + 1)).astype(np.int64)

    def to_record(self) -> dict[str, Any]:
        """Returns a msgpack-able record of everything."""
        return {
            "stage": self.stage,
            "source": self.source,
            "name": self.name,
            "encoding": self.encoding,
            "footers_bytes": self.footers_bytes,
            "largest_footer_bytes": self.largest_footer_bytes,
            "shards": [[s.uri, s.rows, s.size_bytes, s.mtime_ns, s.version] for s in self.shards],
            **{name: np.ascontiguousarray(getattr(self, name)).tobytes() for name, _dtype in _ARRAYS},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> SourceIndex:
        """Returns the index of `to_record`."""
        return cls(
            stage=record["stage"],
            source=record["source"],
            name=record["name"],
            encoding=record["encoding"],
            shards=tuple(
                ShardEntry(uri=uri, rows=rows, size_bytes=size_bytes, mtime_ns=mtime_ns, version=version)
                for uri, rows, size_bytes, mtime_ns, version in record["shards"]
            ),
            footers_bytes=record["footers_bytes"],
            largest_footer_bytes=record["largest_footer_bytes"],
            **{name: np.frombuffer(record[name], dtype) for name, dtype in _ARRAYS},
        )


_UNIT_ROWS = 8192
"""A source without shards is cut into units of so many rows; another number would be another order."""

_ARRAYS = (
    ("unit_shard", "<i4"),
    ("unit_row_group", "<i4"),
    ("unit_rows", "<i8"),
    ("unit_first_row", "<i8"),
    ("unit_decoded_bytes", "<i8"),
    ("unit_decoding_bytes", "<i8"),
    ("unit_compressed_bytes", "<i8"),
)


def is_remote_source(source: SourceIndex) -> bool:
    """Whether any shard of a source is not a file of this machine."""
    return any(not is_local(shard.uri) for shard in source.shards)


def unit_rows_of_source(num_rows: int) -> NDArray[np.int64]:
    """Returns the rows of the units of a source that has no shards: int64, of a fixed size but for the last."""
    starts = np.arange(0, num_rows, _UNIT_ROWS, dtype=np.int64)
    return np.minimum(_UNIT_ROWS, num_rows - starts)


def index_source(
    *, stage: int, source: int, name: str, shards: Sequence[ShardUnits], encoding: str = PARQUET
) -> SourceIndex:
    """Lays the units of the shards end to end, in the listed order."""
    counts = np.array([len(shard.rows) for shard in shards], np.int64)
    unit_rows = _joined([shard.rows for shard in shards])
    starts = np.cumsum(unit_rows) - unit_rows
    first_units = np.cumsum(counts) - counts
    shard_starts = np.array([starts[u] if n else 0 for u, n in zip(first_units, counts, strict=True)], np.int64)
    return SourceIndex(
        stage=stage,
        source=source,
        name=name,
        encoding=encoding,
        shards=tuple(shard.entry for shard in shards),
        unit_shard=np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        unit_row_group=(np.arange(len(unit_rows)) - np.repeat(first_units, counts)).astype(np.int32),
        unit_rows=unit_rows,
        unit_first_row=starts - np.repeat(shard_starts, counts),
        unit_decoded_bytes=_joined([shard.decoded_bytes for shard in shards]),
        unit_decoding_bytes=_joined([shard.decoding_bytes for shard in shards]),
        unit_compressed_bytes=_joined([shard.compressed_bytes for shard in shards]),
        footers_bytes=sum(shard.footer_bytes for shard in shards),
        largest_footer_bytes=max((shard.footer_bytes for shard in shards), default=0),
    )


def _joined(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *arrays]).astype(np.int64, copy=False)
