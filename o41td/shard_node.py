"""Sources made of shard files: `Parquet`, `JsonLines`, `MessagePack`, read by span.

A chain that begins with one of these stands in a stage as a `FileSource` would: workers read the shards themselves, row
group by row group, and hand the rows to the nodes behind. Here the same files are read by anybody who asks for a span.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from o41td.counted import kind_text
from o41td.encodings import JSON_LINES, MESSAGE_PACK, PARQUET
from o41td.errors import ConfigError, SchemaError
from o41td.index_cache import FileIdentity, file_identity
from o41td.listing import is_local, list_files
from o41td.nodes import Node, Span
from o41td.nodes.fingerprint import fingerprint_of
from o41td.path_argument import path_text

if TYPE_CHECKING:
    from o41td.workers.record_tables import RecordTables

__all__ = ["JsonLines", "MessagePack", "Parquet", "ShardNode"]


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard, as it was when its rows were counted: its path, what tells it from another, rows of each unit."""

    path: str
    identity: FileIdentity
    unit_rows: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.unit_rows)


class ShardNode(Node):
    """A source made of shard files.

    Args:
        files: Paths, folders and globs, by the rules of `FileSource`.
        columns: The columns to answer with; all if None.
    """

    encoding: ClassVar[str]

    def __init__(
        self, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, columns: Sequence[str] | None = None
    ) -> None:
        listed = [files] if isinstance(files, str | os.PathLike) else list(files)
        self.files = tuple(path_text(file) for file in listed)
        self.columns = None if columns is None else tuple(columns)
        if not self.files:
            raise ConfigError(f"{type(self).__name__} has no files")

    @property
    def num_rows(self) -> int:
        """Rows in all shards. Blocks: when first asked for, on every shard's footer; shards of records are counted."""
        return self._starts[-1]

    def fingerprint(self) -> str:
        """A digest of how it reads, not of what: that is what versions tell, and files may be added.

        Nor of this module's text, so that checkpoints and kept results outlive another version of this package.
        """
        own = next(cls for cls in type(self).__mro__ if cls.__module__ == __name__)
        parameters = {name: value for name, value in self.parameters().items() if name != "files"}
        return fingerprint_of(self, {**parameters, "encoding": self.encoding}, base=own)

    @cached_property
    def version(self) -> str:
        """A digest of each shard's path, size, modification time and row counts."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in self.shards:
            size_bytes, mtime_ns, _inode = shard.identity
            digest.update(repr((os.fsencode(shard.path), size_bytes, mtime_ns, shard.unit_rows)).encode())
        return digest.hexdigest()

    def forward(self, batch: Span) -> Any:
        """Returns the rows of a span as a `pyarrow.Table`.

        Raises:
            ConfigError: The span reaches beyond the last row.
            ChangedDataError: A shard is not what it was when its rows were counted.
            DataError: It cannot be read.

        Blocks: On the files.
        """
        import pyarrow as pa

        if not isinstance(batch, Span):
            raise ConfigError(f"{self.label!r} answers a Span, not {kind_text(batch)}", advice="Give Span(at, take)")
        span = batch
        if span.stop > self.num_rows:
            raise ConfigError(f"rows [{span.at}, {span.stop}) were asked of {self.label!r}, which has {self.num_rows}")
        parts = [self._checked_rows(*piece) for piece in self._pieces(span)]
        return pa.concat_tables(parts, promote_options="permissive")

    @cached_property
    def shards(self) -> tuple[_Shard, ...]:
        """The shards, in the order of their rows."""
        remote = next((file for file in self.files if not is_local(file)), None)
        if remote is not None:
            raise ConfigError(
                f"{remote} is remote, and spans of {self.label!r} are asked for here",
                advice="Streams read remote shards; to read spans, or to freeze the source, have the files here",
            )
        return tuple(
            _Shard(path, file_identity(path), self._unit_rows(path))
            for path in list_files(self.files, source=self.label, encoding=self.encoding)
        )

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(shard.num_rows for shard in self.shards)]

    def _pieces(self, span: Span) -> Iterator[tuple[_Shard, int, int]]:
        """The shards of a span, each with the half-open range of its rows; of an empty span, no rows of one shard."""
        number = min(bisect_right(self._starts, span.at) - 1, len(self.shards) - 1)
        row = span.at
        while True:
            start = self._starts[number]
            stop = min(span.stop, self._starts[number + 1])
            yield self.shards[number], row - start, stop - start
            row, number = stop, number + 1
            if row >= span.stop:
                return

    def _checked_rows(self, shard: _Shard, start: int, stop: int) -> Any:
        from o41td.workers.shard_file import indexed_identity

        size_bytes, mtime_ns, _inode = shard.identity
        indexed_identity(shard.path, source=self.label, size_bytes=size_bytes, mtime_ns=mtime_ns)
        return self._rows(shard, start, stop)

    def _unit_rows(self, path: str) -> tuple[int, ...]:
        """Counts the rows of a shard's units."""
        raise NotImplementedError

    def _rows(self, shard: _Shard, start: int, stop: int) -> Any:
        """Reads rows [start, stop) of a shard."""
        raise NotImplementedError


class Parquet(ShardNode):
    """Parquet shards: of each, only the row groups that a span touches are read."""

    encoding = PARQUET

    def _unit_rows(self, path: str) -> tuple[int, ...]:
        import pyarrow.parquet as pq

        from o41td.workers.lost_handles import again_if_lost
        from o41td.workers.shard_file import raise_failure

        try:
            metadata = again_if_lost(lambda: pq.read_metadata(path))
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes Arrow raise is that shard's error
            raise_failure(error, source=self.label, shard=path)
        return tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))

    def _rows(self, shard: _Shard, start: int, stop: int) -> Any:
        from o41td.workers.lost_handles import again_if_lost
        from o41td.workers.shard_file import raise_failure

        ends = list(accumulate(shard.unit_rows))
        first = bisect_right(ends, start)
        groups = [
            group
            for group in range(first, len(ends))
            if ends[group] - shard.unit_rows[group] < stop and shard.unit_rows[group]
        ]
        try:
            table = again_if_lost(lambda: self._read_groups(shard.path, groups))
        except Exception as error:  # noqa: BLE001 - as above
            raise_failure(error, source=self.label, shard=shard.path)
        skipped = start - (ends[groups[0]] - shard.unit_rows[groups[0]]) if groups else 0
        return table.slice(skipped, stop - start)

    def _read_groups(self, path: str, groups: list[int]) -> Any:
        import pyarrow.parquet as pq

        from o41td.workers.shard_file import open_shard_file

        with open_shard_file(path) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            return parquet.read_row_groups(groups, columns=self._present(parquet.schema_arrow), use_threads=False)

    def _present(self, schema: Any) -> list[str] | None:
        if self.columns is None:
            return None
        missing = [name for name in self.columns if name not in schema.names]
        if missing:
            raise SchemaError(
                f"columns {', '.join(map(repr, missing))} are missing; there are {', '.join(schema.names)}",
                source=self.label,
                column=missing[0],
            )
        return list(self.columns)


class _RecordShards(ShardNode):
    """Shards of records. A span is found by passing over what lies before it in its shard."""

    def _unit_rows(self, path: str) -> tuple[int, ...]:
        with closing(self._tables(path)) as tables:
            return (tables.count(),)

    def _rows(self, shard: _Shard, start: int, stop: int) -> Any:
        with closing(self._tables(shard.path)) as tables:
            return tables.read_rows(start, stop)

    def _tables(self, path: str) -> RecordTables:
        from o41td.workers.record_tables import RecordTables

        return RecordTables(path, self.encoding, columns=self.columns, source=self.label)


class JsonLines(_RecordShards):
    """Shards of gzip JSON lines, one record a line."""

    encoding = JSON_LINES


class MessagePack(_RecordShards):
    """Shards of Zstandard frames of MessagePack, one record a frame."""

    encoding = MESSAGE_PACK
