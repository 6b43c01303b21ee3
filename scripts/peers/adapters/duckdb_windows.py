"""duckdb: files in a random order, read by its own threads, windows of what comes shuffled."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np

from peers.adapters.windows import shuffled_batches
from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch, dense_columns


def open_windows(job: Job) -> Iterator[Batch]:
    database = duckdb.connect(config={"threads": 2, "preserve_insertion_order": False})
    files = np.random.default_rng(1).permutation(np.array(job.files)).tolist()
    columns = ", ".join(f'"{name}"' for name in job.workload.names)
    rows = database.sql(f"SELECT {columns} FROM read_parquet(?)", params=[files])  # noqa: S608
    reader = rows.to_arrow_reader(BUFFER_ROWS)  # streams, where that of `execute` is made whole before
    for number, window in enumerate(reader):
        yield from shuffled_batches(dense_columns(window, job.workload), job.workload, number)
