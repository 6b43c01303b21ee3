"""LitData: chunks of its own, shuffled by it, read by two workers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from torch.utils.data import default_collate

from peers.adapters.rows import as_batch, pad_rows, records
from peers.peer import Job
from peers.workloads import Batch


def tensors(path: str, job: Job) -> Iterator[dict[str, Any]]:
    """The rows of a shard."""
    for record in records(dataclasses.replace(job, files=[path])):
        yield {name: torch.as_tensor(value) for name, value in record.items()}


def convert(job: Job) -> None:
    rows_of = functools.partial(tensors, job=job)
    optimize(rows_of, job.files, output_dir=str(job.folder), chunk_bytes="64MB", num_workers=1, verbose=False)


class Loader:
    """Batches of a `StreamingDataLoader`; its state is JSON."""

    def __init__(self, job: Job) -> None:
        self._workload = job.workload
        padded = pad_rows(job.workload)
        ragged = job.workload.name == "docs"
        self._loader = StreamingDataLoader(
            StreamingDataset(str(job.folder), shuffle=True, seed=1, drop_last=False),
            batch_size=job.workload.batch_size,
            num_workers=2,
            collate_fn=(lambda rows: default_collate([padded(row) for row in rows])) if ragged else None,
        )
        if job.state is not None:
            self._loader.load_state_dict(json.loads(job.state))

    def __iter__(self) -> Iterator[Batch]:
        return (as_batch(batch, self._workload) for batch in self._loader)

    def state(self) -> bytes:
        """The loader's."""
        return json.dumps(self._loader.state_dict()).encode()


def open_loader(job: Job) -> Loader:
    return Loader(job)
