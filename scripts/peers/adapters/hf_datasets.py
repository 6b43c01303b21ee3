"""HF datasets, streaming out of Parquet with its own shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from datasets import IterableDataset, load_dataset
from torch.utils.data import DataLoader

from peers.peer import Job, StateDictLoader
from peers.workloads import BUFFER_ROWS, Batch, dense_columns


def dataset_of(job: Job) -> IterableDataset:
    """Shuffled: the order of files, and rows within a buffer."""
    data = load_dataset("parquet", data_files=job.files, split="train", streaming=True, columns=job.workload.names)
    return data.shuffle(seed=1, buffer_size=BUFFER_ROWS)


class Here(StateDictLoader):
    """Batches as Arrow tables, made arrays of."""

    def __init__(self, job: Job) -> None:
        super().__init__(dataset_of(job).with_format("arrow"), job)
        self._workload = job.workload

    def __iter__(self) -> Iterator[Batch]:
        for table in self._loader.iter(batch_size=self._workload.batch_size):
            yield dense_columns(table, self._workload)


def open_here(job: Job) -> Here:
    return Here(job)


def open_in_workers(job: Job) -> DataLoader[Batch]:
    workload = job.workload

    def padded(row: dict[str, Any]) -> dict[str, Any]:
        for column in workload.columns:
            if column.length is not None and len(row[column.name]) != column.length:
                values = row[column.name][: column.length]
                row[column.name] = torch.nn.functional.pad(values, (0, column.length - len(values)))
        return row

    data = dataset_of(job).with_format("torch")
    if workload.name == "docs":
        data = data.map(padded)
    return DataLoader(data, batch_size=workload.batch_size, num_workers=2, prefetch_factor=4)
