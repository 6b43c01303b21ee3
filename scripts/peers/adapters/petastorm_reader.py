"""Petastorm: two threads read row groups in a random order, batches come out of its shuffling queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from petastorm import TransformSpec, make_batch_reader
from petastorm.pytorch import BatchedDataLoader

from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch


def open_loader(job: Job) -> Iterator[Batch]:
    workload = job.workload

    def padded(frame: Any) -> Any:
        for column in workload.columns:
            if column.length is not None:
                rows = np.zeros((len(frame), column.length), column.dtype)
                for row, values in enumerate(frame[column.name]):
                    rows[row, : len(values)] = values[: column.length]
                frame[column.name] = list(rows)
        return frame

    fields = [(c.name, np.dtype(c.dtype).type, (c.length,), False) for c in workload.columns if c.length is not None]
    reader = make_batch_reader(
        [f"file://{path}" for path in job.files],
        schema_fields=workload.names,
        reader_pool_type="thread",
        workers_count=2,
        shuffle_row_groups=True,
        seed=1,
        num_epochs=1,
        transform_spec=TransformSpec(padded, edit_fields=fields) if workload.name == "docs" else None,
    )
    with BatchedDataLoader(reader, workload.batch_size, shuffling_queue_capacity=BUFFER_ROWS) as loader:
        yield from loader
