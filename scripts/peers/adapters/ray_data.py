"""Ray Data: read by its tasks, shuffled locally, taken as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator

import ray

from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch, dense_columns


def open_batches(job: Job) -> Iterator[Batch]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_parquet(job.files, columns=job.workload.names, shuffle="files")
    batches = data.iter_batches(
        batch_size=job.workload.batch_size,
        batch_format="pyarrow",
        local_shuffle_buffer_size=BUFFER_ROWS,
        local_shuffle_seed=1,
        prefetch_batches=4,
    )
    for table in batches:
        yield dense_columns(table, job.workload)
