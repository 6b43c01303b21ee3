"""polars: some row groups of a file at a time, shuffled in polars, handed over as Arrow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from peers.adapters.windows import shuffled_batches
from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch, dense_columns


def open_windows(job: Job) -> Iterator[Batch]:
    windows = [
        (path, begin) for path in job.files for begin in range(0, pq.read_metadata(path).num_rows, 2 * BUFFER_ROWS)
    ]
    scans = {path: pl.scan_parquet(path).select(job.workload.names) for path in job.files}
    for number, index in enumerate(np.random.default_rng(1).permutation(len(windows)).tolist()):
        path, begin = windows[index]
        rows = scans[path].slice(begin, 2 * BUFFER_ROWS).collect()
        yield from shuffled_batches(dense_columns(rows.to_arrow(), job.workload), job.workload, number)
