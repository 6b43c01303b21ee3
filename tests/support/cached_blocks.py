"""Decoding blocks through a block cache, or without one, in this process: what the slot holds and what is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from o41td.error_records import error_from_record
from o41td.fields import FieldPlan
from o41td.order.leaving import LeavingOrder
from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_folder import CacheFolder
from o41td.workers.block_decoder import BlockDecoder
from o41td.workers.messages import BlockFailed, DecodeBlock
from o41td.workers.piece import Piece, SourceFormat
from o41td.workers.slot_rows import Placement


class CachedBlocks:
    """One worker's decoder of the shards of one source, with a slot of its own.

    Args:
        paths: The shards, indexed as they are now.
        fields: The fields.
        cache_dir: Where units are kept; None is without a cache.
        num_rows: The rows of each shard of records, which have one unit; of Parquet the footers tell.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        fields: Sequence[FieldPlan],
        cache_dir: Path | None = None,
        *,
        encoding: str = "parquet",
        num_rows: int = 0,
        decoding_bytes: int = 1 << 20,
        max_row_group_bytes: int = 64 << 20,
        limit_bytes: int | None = None,
        block_rows: int = 8192,
    ) -> None:
        self._shards = {path: [str(path), path.stat().st_size, path.stat().st_mtime_ns, None] for path in paths}
        self.units: list[tuple[Path, int, int, int]] = []
        for path in paths:
            groups = [num_rows] if encoding != "parquet" else rows_of_groups(path)
            first_rows = np.cumsum([0, *groups]).tolist()
            self.units += [(path, group, rows, first_rows[group]) for group, rows in enumerate(groups)]
        self._decoding_bytes = decoding_bytes
        self.cache = None if cache_dir is None else BlockCache(CacheFolder(str(cache_dir), limit_bytes))
        self._slot = {field.name: np.zeros((block_rows, *field.shape), field.numpy_dtype) for field in fields}
        self._decoder = BlockDecoder(
            self._slot,
            block_rows,
            [SourceFormat("web", tuple(fields), encoding)],
            max_row_group_bytes=max_row_group_bytes,
            max_held_units=4,
            cache=self.cache,
        )

    def decode(
        self, *slices: tuple[int, int, int], leaving: list[int] | None = None, careful: bool = False
    ) -> tuple[dict[str, list[Any]], list[tuple[list[int], str]]]:
        """Decode a block of slices (unit, first row, one past the last).

        Returns:
            The slot's rows by field, without the bad ones, and the bad rows with their errors in full.
        """
        pieces, row = [], 0
        for number, (unit, start, stop) in enumerate(slices):
            pieces.append(self._piece(number, unit, start, stop, row))
            row += stop - start
        for values in self._slot.values():
            values[...] = 1
        order = DecodeBlock(7, 0, 0, row, leaving, careful, pieces)
        done = self._decoder.decode(order, lambda _piece: None)
        rows_of = [np.frombuffer(rows, "<i8").tolist() for rows in done.bad_rows]
        errors = [error_from_record(error) for error in done.bad_errors]
        bad = sorted((rows, f"{type(error).__name__}: {error}") for rows, error in zip(rows_of, errors, strict=True))
        good = np.setdiff1d(np.arange(row), [each for rows, _error in bad for each in rows])
        assert isinstance(done, BlockFailed) == (not len(good))
        if leaving is not None:
            good = np.sort(Placement(order=LeavingOrder(*leaving).rows(row)).places[good])
        return {name: [value.tobytes() for value in values[good]] for name, values in self._slot.items()}, bad

    def is_kept(self, unit: int, start: int, stop: int) -> bool:
        """Whether a slice is known to the cache."""
        return self._decoder.is_kept(0, Piece(*self._piece(0, unit, start, stop, 0)))

    def _piece(self, number: int, unit: int, start: int, stop: int, block_row: int) -> list[Any]:
        path, group, rows, first = self.units[unit]
        of_unit = [group, rows, self._decoding_bytes, first]
        return [number, *self._shards[path], *of_unit, start, stop, block_row, "v"]

    def close(self) -> None:
        """Close the files."""
        self._decoder.close()

    @property
    def counts(self) -> dict[str, int]:
        """What the cache did since this was asked last."""
        assert self.cache is not None
        return self.cache.take_counts()[0]


def rows_of_groups(path: Path) -> list[int]:
    """The rows of each row group of a Parquet file."""
    footer = pq.read_metadata(path)
    return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
