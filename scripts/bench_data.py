"""Shards that the benchmarks write for themselves, and bare pyarrow over them.

python -P scripts/bench_data.py FOLDER COLUMN,COLUMN SHARE/OF     reads every so many row groups, one JSON line
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["floor_of", "narrow", "put_table", "tabular", "tokens", "wide", "write_shards"]


def tokens(rng: np.random.Generator, rows: int, first: int) -> pa.Table:
    """Lists of 2 048 tokens, small ones more often than large ones."""
    values = (50_000 ** rng.random(rows * 2048, dtype=np.float32)).astype(np.int32) - 1
    lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * 2048, pa.array(values))
    return pa.table({"tokens": lists, "doc_id": np.arange(first, first + rows)})


def tabular(rng: np.random.Generator, rows: int, first: int) -> pa.Table:
    """Forty floats, ten integers, a label and a number."""
    columns: dict[str, Any] = {f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(40)}
    columns |= {f"i{i}": rng.integers(0, 10**6, rows) for i in range(10)}
    return pa.table(columns | {"label": rng.random(rows) < 0.1, "doc_id": np.arange(first, first + rows)})


def wide(rng: np.random.Generator, rows: int, _first: int) -> pa.Table:
    """Two hundred floats."""
    return pa.table({f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(200)})


def narrow(rng: np.random.Generator, rows: int, first: int) -> pa.Table:
    """A number and eight int32."""
    values = pa.array(rng.integers(0, 10**6, 8 * rows, dtype=np.int32))
    return pa.table({"doc_id": np.arange(first, first + rows), "x": pa.FixedSizeListArray.from_arrays(values, 8)})


def write_shards(folder: Path, make: Any, *, shards: int, rows: int, row_group_rows: int) -> Path:
    """Writes shards of `rows` rows each, unless they are there, and returns their folder; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        path = folder / f"{shard:03d}.parquet"
        if not path.exists():
            table = make(np.random.default_rng(shard), rows, shard * rows)
            put_table(table, path, row_group_size=row_group_rows)
    return folder


def put_table(table: pa.Table, path: Path, *, row_group_size: int) -> None:
    """Writes a shard that is there whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    pq.write_table(table, partial, row_group_size=row_group_size, compression="zstd")
    partial.rename(path)


def floor_of(folder: Path, columns: Sequence[str], processes: int) -> dict[str, Any]:
    """What as many processes read with bare pyarrow, each its share of the row groups, and nothing else done."""
    own = [sys.executable, "-P", __file__, str(folder), ",".join(columns)]
    running = [
        subprocess.Popen([*own, f"{share}/{processes}"], stdout=subprocess.PIPE, text=True)
        for share in range(processes)
    ]
    parts = [json.loads(process.communicate()[0]) for process in running]
    return {
        **{name: sum(part[name] for part in parts) for name in ("rows", "bytes", "cpu_s")},
        "rows_per_s": sum(part["rows"] / part["wall_s"] for part in parts),
    }


def read_share(folder: Path, columns: list[str], share: int, of: int) -> dict[str, Any]:
    """Reads every `of`-th row group."""
    pa.set_cpu_count(1)
    files = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)][share::of]
    rows = num_bytes = 0
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for file, group in groups:
        table = file.read_row_group(group, columns=columns, use_threads=False)
        rows, num_bytes = rows + table.num_rows, num_bytes + table.nbytes
    took_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {"rows": rows, "bytes": num_bytes, "wall_s": took_s, "cpu_s": cpu_s}


if __name__ == "__main__":
    place, names, part = sys.argv[1:]
    number, parts_in_all = map(int, part.split("/"))
    print(json.dumps(read_share(Path(place), names.split(","), number, parts_in_all)))
