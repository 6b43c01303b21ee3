"""A shard's rows, held until all is known of them: in memory, and from a limit on in a temporary file.

How a column is best laid out depends on all of its values: whether any is null, the largest token, whether all lists
are as long. So a shard is written in two passes, and this is where its rows wait meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa

from o41td.errors import SchemaError

__all__ = ["RowSpool"]

_MEMORY_BYTES = 256 << 20


class RowSpool:
    """Rows in the order they came.

    Args:
        folder: Where the temporary file goes, if it comes to one.
        memory_bytes: What is held in memory.
    """

    def __init__(self, folder: Path | None = None, *, memory_bytes: int = _MEMORY_BYTES) -> None:
        self.num_rows = 0
        self.num_bytes = 0
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._schemas: list[Any] = []
        self._nulls: set[str] = set()
        self._held: list[Any] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[int] = []
        self._schema: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Lets go of all rows."""
        self._held, self._runs = [], []
        self._held_bytes = self.num_rows = self.num_bytes = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, batch: Any) -> None:
        """Takes a record batch.

        Blocks: on the disk, where memory is full.
        """
        if not any(batch.schema.equals(schema, check_metadata=True) for schema in self._schemas):
            self._schemas.append(batch.schema)
        self._nulls.update(name for name, column in zip(batch.schema.names, batch.columns) if column.null_count)
        self.num_rows += batch.num_rows
        self.num_bytes += batch.nbytes
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes > self._memory_bytes:
            self._spill()

    def schema(self) -> Any:
        """Returns the schema that all rows have or can be given without loss.

        Raises:
            SchemaError: There is none.
        """
        if self._schema is None or len(self._schemas) > 1:
            try:
                self._schema = pa.unify_schemas(self._schemas, promote_options="permissive")
            except (pa.ArrowException, ValueError) as error:
                raise SchemaError(
                    f"the rows have different types: {' '.join(str(error).split())}",
                    advice="Mend the records, or give a schema",
                ) from error
        return self._schema

    def nullable(self) -> dict[str, bool]:
        """Returns for each column whether it has nulls, where rows lack the column too."""
        lacking = {name for name in self.schema().names for schema in self._schemas if name not in schema.names}
        return {name: name in self._nulls or name in lacking for name in self.schema().names}

    def batches(self) -> Iterator[Any]:
        """Yields the rows, of one schema; may be called again.

        Raises:
            SchemaError: A value would not be the same in the schema that all rows share.
        """
        schema = self.schema()
        for batch in self._stored():
            yield batch if batch.schema.equals(schema) else _cast(batch, schema)

    def tables(self, num_rows: int) -> Iterator[Any]:
        """Yields the rows as tables of `num_rows` each, the last one smaller, each column in one chunk."""
        parts: list[Any] = []
        have = 0
        for batch in self.batches():
            rest = batch
            while have + rest.num_rows >= num_rows:
                parts.append(rest.slice(0, num_rows - have))
                yield pa.Table.from_batches(parts).combine_chunks()
                rest = rest.slice(num_rows - have)
                parts, have = [], 0
            if rest.num_rows:
                parts.append(rest)
                have += rest.num_rows
        if parts:
            yield pa.Table.from_batches(parts).combine_chunks()

    def _stored(self) -> Iterator[Any]:
        for start in self._runs:
            assert self._file is not None
            self._file.seek(start)
            yield from pa.ipc.open_stream(self._file)
        yield from self._held

    def _spill(self) -> None:
        """Puts what is held into the file, in runs of one schema each."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by __exit__
        self._file.seek(0, 2)
        for _, run in groupby(self._held, lambda batch: batch.schema):
            batches = list(run)
            self._runs.append(self._file.tell())
            with pa.ipc.new_stream(self._file, batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        self._held, self._held_bytes = [], 0


def _cast(batch: Any, schema: Any) -> Any:
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            columns.append(batch.column(place).cast(field.type))
        except (pa.ArrowException, ValueError) as error:
            has = batch.schema.field(place).type
            raise SchemaError(
                f"some rows have type {has}, others {field.type}: {' '.join(str(error).split())}",
                column=field.name,
                advice="Mend the records, or give a schema",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
