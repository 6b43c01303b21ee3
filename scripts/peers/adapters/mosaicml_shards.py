"""mosaicml-streaming: MDS shards, its own shuffle, read by two workers."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np

# Its data sets of pictures, which take no part here, import torchvision, and PyPI's does not load beside a CPU torch.
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from peers.adapters.rows import as_batch, pad_rows, records, stacks_of  # noqa: E402
from peers.peer import Job, StateDictLoader  # noqa: E402
from peers.workloads import BUFFER_ROWS, Batch, Workload  # noqa: E402


def encodings(workload: Workload) -> dict[str, str]:
    """MDS types: arrays of a known shape where all rows have it."""
    dtypes = {column.name: (column.dtype, column.length) for column in workload.columns}
    types = {}
    for name, parts in stacks_of(workload).items():
        dtype, length = dtypes[parts[0]]
        dtype = "uint8" if dtype == "bool" else dtype
        if len(parts) > 1:
            types[name] = f"ndarray:{dtype}:{len(parts)}"
        elif length is None:
            types[name] = dtype
        else:
            types[name] = f"ndarray:{dtype}" if workload.name == "docs" else f"ndarray:{dtype}:{length}"
    return types


def convert(job: Job) -> None:
    types = encodings(job.workload)
    with MDSWriter(out=str(job.folder), columns=types) as writer:
        for record in records(job):
            writer.write(
                {
                    name: value.astype(np.uint8) if isinstance(value, np.ndarray) and value.dtype == bool else value
                    for name, value in record.items()
                }
            )


def open_loader(job: Job) -> StateDictLoader:
    clean_stale_shared_memory()
    padded = pad_rows(job.workload)

    def collate(rows: list[dict[str, Any]]) -> Batch:
        batch: Batch = default_collate([padded(row) for row in rows])
        return batch

    data = StreamingDataset(
        local=str(job.folder),
        shuffle=True,
        shuffle_seed=1,
        shuffle_block_size=BUFFER_ROWS,
        batch_size=job.workload.batch_size,
    )
    loader = StreamingDataLoader(
        data,
        batch_size=job.workload.batch_size,
        num_workers=2,
        collate_fn=collate if job.workload.name == "docs" else default_collate,
    )
    return StateDictLoader(loader, job, functools.partial(as_batch, workload=job.workload))
