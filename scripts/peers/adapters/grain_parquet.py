"""grain: Parquet files in a random order, some side by side, rows shuffled in windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from grain.experimental import InterleaveIterDataset, ParquetIterDataset, WindowShuffleIterDataset

from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch

_SIDE_BY_SIDE = 4


def dataset_of(job: Job) -> grain.IterDataset[Batch]:
    """Batches, still in this process."""
    columns = job.workload.columns

    def arrays(row: dict[str, Any]) -> dict[str, Any]:
        record = {}
        for column in columns:
            values = np.asarray(row[column.name], column.dtype)
            if column.length is not None and len(values) != column.length:
                values = values[: column.length]
                values = np.pad(values, (0, column.length - len(values)))
            record[column.name] = values
        return record

    def rows_of(path: str) -> grain.IterDataset[Any]:
        return ParquetIterDataset(path)

    files = grain.MapDataset.source(job.files).shuffle(seed=1).map(rows_of)
    rows = InterleaveIterDataset(files, cycle_length=min(_SIDE_BY_SIDE, len(job.files)))
    return WindowShuffleIterDataset(rows, window_size=BUFFER_ROWS, seed=1).map(arrays).batch(job.workload.batch_size)


class Iterated:
    """A grain iterator, whose state is JSON."""

    def __init__(self, data: grain.IterDataset[Batch], state: bytes | None) -> None:
        self._iterator: Any = iter(data)
        if state is not None:
            self._iterator.set_state(json.loads(state))

    def __iter__(self) -> Iterator[Batch]:
        yield from self._iterator

    def state(self) -> bytes:
        """The iterator's."""
        return json.dumps(self._iterator.get_state(), default=int).encode()


def open_here(job: Job) -> Iterated:
    return Iterated(dataset_of(job), job.state)


def open_in_workers(job: Job) -> Iterated:
    workers = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)
    return Iterated(dataset_of(job).mp_prefetch(workers), job.state)
