"""All rows of a split in a random order, in bounded memory: a distribution into buckets on disk, then one at a time.

Every row has a 64-bit key by hash, and rows leave in the order of their keys. A bucket is a range of keys, so the order
does not depend on how many buckets there are, nor on how rows came in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.writing.record_batches import BATCH_ROWS
from o41td.writing.row_spool import RowSpool

__all__ = ["RowShuffle"]

_BUCKET_BITS = 6
_KEY_COLUMN = "o41td.key"
_MEMORY_BYTES = 256 << 20


class RowShuffle:
    """Rows on their way into the order of their keys.

    Args:
        folder: Where temporary files go; about as much as the rows take when decoded.
        memory_bytes: What is held in memory, about; a bucket larger than that is distributed once more.
    """

    def __init__(self, folder: Path, *, memory_bytes: int = _MEMORY_BYTES, _first_bit: int = 0) -> None:
        self.num_rows = 0
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._first_bit = _first_bit
        self._held = ExitStack()
        share = memory_bytes >> (_BUCKET_BITS + 1)
        self._buckets = [
            self._held.enter_context(RowSpool(folder, memory_bytes=share)) for _ in range(1 << _BUCKET_BITS)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def add(self, batch: Any, keys: NDArray[np.uint64]) -> None:
        """Takes rows with a key each.

        Blocks: on the disk.
        """
        self._add(batch.append_column(_KEY_COLUMN, pa.array(keys)), keys)

    def batches(self) -> Iterator[Any]:
        """Yields all rows in the order of their keys; afterwards they are gone."""
        for bucket in self._buckets:
            if not bucket.num_rows:
                continue
            if bucket.num_bytes > self._memory_bytes and self._first_bit + _BUCKET_BITS < 64:
                with RowShuffle(
                    self._folder, memory_bytes=self._memory_bytes, _first_bit=self._first_bit + _BUCKET_BITS
                ) as finer:
                    for batch in bucket.batches():
                        finer._add(batch, _keys_of(batch))
                    yield from finer.batches()
            else:
                yield from _sorted(bucket)
            bucket.clear()

    def _add(self, batch: Any, keys: NDArray[np.uint64]) -> None:
        self.num_rows += batch.num_rows
        shift = np.uint64(64 - _BUCKET_BITS - self._first_bit)
        buckets = (keys >> shift).astype(np.int64) & ((1 << _BUCKET_BITS) - 1)
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(1 << _BUCKET_BITS), side="right").tolist()
        rows = batch.take(pa.array(order))
        start = 0
        for place, end in enumerate(ends):
            if end > start:
                self._buckets[place].add(rows.slice(start, end - start))
            start = end


def _sorted(bucket: RowSpool) -> Iterator[Any]:
    (table,) = bucket.tables(bucket.num_rows)
    keys = table[_KEY_COLUMN].to_numpy()
    order = np.argsort(keys, kind="stable")
    plain = table.drop_columns([_KEY_COLUMN])
    for start in range(0, len(order), BATCH_ROWS):
        rows = plain.take(pa.array(order[start : start + BATCH_ROWS])).combine_chunks()
        yield from rows.to_batches()


def _keys_of(batch: Any) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = batch.column(batch.schema.get_field_index(_KEY_COLUMN)).to_numpy()
    return keys
