"""PyTorch's DataLoader around a data set that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from peers.adapters.windows import Windows, plan_windows, shuffled_batches
from peers.peer import Job, StateDictLoader
from peers.workloads import BUFFER_ROWS, Batch


def own_share(items: list[Any]) -> list[Any]:
    """Every second of them, say, in a worker of two; all of them elsewhere."""
    worker = get_worker_info()
    return items if worker is None else items[worker.id :: worker.num_workers]


class WindowBatches(IterableDataset[Batch]):
    """Whole batches of shuffled windows; can tell and be told how many it has given."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._given = 0

    def __iter__(self) -> Iterator[Batch]:
        workload = self._job.workload
        windows = Windows(workload, use_threads=get_worker_info() is None)
        skip, number = self._given, 0
        for window in own_share(plan_windows(self._job)):
            batches = -(-window.num_rows // workload.batch_size)
            number += batches
            if number <= skip:
                continue
            self._given = number - batches
            for batch in shuffled_batches(windows.arrays(window.groups), workload, window.index):
                self._given += 1
                if self._given > skip:
                    yield {name: torch.from_numpy(array) for name, array in batch.items()}

    def state_dict(self) -> dict[str, int]:
        """What StatefulDataLoader asks for, in each worker."""
        return {"given": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on behind what was given."""
        self._given = state["given"]


class ShuffledRows(IterableDataset[Batch]):
    """Rows out of a buffer that is kept full; each is padded to its length."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[Batch]:
        windows = Windows(self._job.workload, use_threads=False)
        random = np.random.default_rng(1)
        buffer: list[Batch] = []
        for window in own_share(plan_windows(self._job)):
            for group in window.groups:
                arrays = windows.arrays((group,))
                for row in range(len(arrays["doc_id"])):
                    values = {name: torch.tensor(array[row]) for name, array in arrays.items()}
                    if len(buffer) < BUFFER_ROWS:
                        buffer.append(values)
                    else:
                        place = int(random.integers(BUFFER_ROWS))
                        yield buffer[place]
                        buffer[place] = values
        random.shuffle(buffer)
        yield from buffer


def open_windows_here(job: Job) -> DataLoader[Batch]:
    return DataLoader(WindowBatches(job), batch_size=None)


def open_windows_in_workers(job: Job) -> StateDictLoader:
    loader = StatefulDataLoader(WindowBatches(job), batch_size=None, num_workers=2, prefetch_factor=4)
    return StateDictLoader(loader, job)


def open_rows_in_workers(job: Job) -> DataLoader[Batch]:
    return DataLoader(ShuffledRows(job), batch_size=job.workload.batch_size, num_workers=2, prefetch_factor=4)
