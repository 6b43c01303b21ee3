"""LitData: chunks of its own, shuffled by it, read by two workers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize
from torch.utils.data import default_collate

from peers.adapters.rows import as_batch, pad_rows, records
from peers.peer import Job, StateDictLoader


def tensors(path: str, job: Job) -> Iterator[dict[str, Any]]:
    """The rows of a shard."""
    for record in records(dataclasses.replace(job, files=[path])):
        yield {name: torch.as_tensor(value) for name, value in record.items()}


def convert(job: Job) -> None:
    rows_of = functools.partial(tensors, job=job)
    optimize(rows_of, job.files, output_dir=str(job.folder), chunk_bytes="64MB", num_workers=1, verbose=False)


def open_loader(job: Job) -> StateDictLoader:
    padded = pad_rows(job.workload)
    ragged = job.workload.name == "docs"
    loader = StreamingDataLoader(
        StreamingDataset(str(job.folder), shuffle=True, seed=1, drop_last=False),
        batch_size=job.workload.batch_size,
        num_workers=2,
        collate_fn=(lambda rows: default_collate([padded(row) for row in rows])) if ragged else None,
    )
    return StateDictLoader(loader, job, functools.partial(as_batch, workload=job.workload))
