"""WebDataset: a tar a shard, an array a file in it, read by two workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

from peers.adapters.rows import as_batch, pad_rows, records, stacks_of
from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Batch


def convert(job: Job) -> None:
    job.folder.mkdir(parents=True)
    for path in job.files:
        one = dataclasses.replace(job, files=[path])
        with wds.TarWriter(str(job.folder / f"{Path(path).stem}.tar")) as tar:
            for number, record in enumerate(records(one)):
                tar.write({"__key__": f"{number:09d}"} | {f"{name}.npy": value for name, value in record.items()})


def open_loader(job: Job) -> Iterator[Batch]:
    names = list(stacks_of(job.workload))
    padded = pad_rows(job.workload)

    def row_of(sample: dict[str, Any]) -> dict[str, Any]:
        return padded({name: sample[f"{name}.npy"] for name in names})

    tars = sorted(str(path) for path in job.folder.glob("*.tar"))
    rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=1).shuffle(BUFFER_ROWS).decode().map(row_of)
    data = rows.to_tuple(*names).batched(job.workload.batch_size, partial=True)
    for arrays in wds.WebLoader(data, batch_size=None, num_workers=2, prefetch_factor=4):
        yield as_batch(dict(zip(names, arrays, strict=True)), job.workload)
