"""Small Parquet shards for tests, whose every value follows from the row's `id`.

`id` counts through all shards of a call, so a test can work out any row's content by hand:
`tokens_of(id)` is the list in its row, `score_of(id)` its score.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def tokens_of(row_id: int, longest: int = 8) -> list[int]:
    """Row `row_id`'s tokens: 1 to `longest` numbers, id·100 and on, so that no two rows share one below 100 tokens."""
    return [row_id * 100 + place for place in range(row_id % longest + 1)]


def score_of(row_id: int) -> float:
    """Row `row_id`'s score: exact in 32 bits too."""
    return row_id * 0.5


def shard_table(first_id: int, num_rows: int, *, longest: int = 8) -> pa.Table:
    """Rows `first_id` to `first_id + num_rows` (exclusive): id int64, tokens list<int32>, score float64, flag bool."""
    ids = range(first_id, first_id + num_rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "tokens": pa.array([tokens_of(i, longest) for i in ids], pa.list_(pa.int32())),
            "score": pa.array([score_of(i) for i in ids], pa.float64()),
            "flag": pa.array([i % 3 == 0 for i in ids], pa.bool_()),
        }
    )


@dataclass(frozen=True)
class ShardWriter:
    """Writes shards below a folder. Tests get one as the fixture `write_shards` and call it."""

    folder: Path

    def __call__(
        self,
        shard_rows: Sequence[int] = (100,),
        *,
        name: str = "data",
        first_id: int = 0,
        row_group_rows: int = 16,
        longest: int = 8,
        compression: str = "zstd",
    ) -> list[Path]:
        """Write one shard for each entry of `shard_rows` and return their paths in order.

        Args:
            shard_rows: rows of each shard; 0 is a shard without row groups.
            name: folder below the writer's own, so that a test can write several sources.
            first_id: `id` of the first row.
            row_group_rows: rows of a row group (the last of a shard is smaller).
            longest: most tokens in a row.
            compression: Parquet's codec.
        """
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for index, num_rows in enumerate(shard_rows):
            path = folder / f"part-{index:05d}.parquet"
            table = shard_table(first_id, num_rows, longest=longest)
            pq.write_table(table, path, row_group_size=row_group_rows, compression=compression)
            first_id += num_rows
            paths.append(path)
        return paths


def damage_row_group(path: Path, row_group: int) -> None:
    """Overwrite a row group's pages of the first column, and leave the file's size, time and footer alone."""
    column = pq.read_metadata(path).row_group(row_group).column(0)
    start = min(o for o in (column.dictionary_page_offset, column.data_page_offset) if o)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * column.total_compressed_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
