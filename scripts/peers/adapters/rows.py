"""Rows as formats of one record a row hold them: narrow columns of one dtype side by side, as one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from peers.peer import Job
from peers.workloads import Workload

__all__ = ["as_batch", "pad_rows", "records", "stacks_of"]


def stacks_of(workload: Workload) -> dict[str, list[str]]:
    """Which columns lie side by side under which name: of lists each for itself."""
    if workload.name != "tabular":
        return {column.name: [column.name] for column in workload.columns}
    stacks: dict[str, list[str]] = {}
    for column in workload.columns:
        stacks.setdefault({"float32": "floats", "int64": "ints"}.get(column.dtype, column.name), []).append(column.name)
    return stacks


def records(job: Job) -> Iterator[dict[str, Any]]:
    """Every row of the shards: lists at their own length, up to what is wanted of them."""
    lengths = {column.name: column.length for column in job.workload.columns}
    stacks = stacks_of(job.workload)
    for path in job.files:
        for table in pq.ParquetFile(path).iter_batches(columns=job.workload.names):
            columns: list[Any] = []
            for parts in stacks.values():
                length = lengths[parts[0]]
                if length is not None:
                    columns.append([np.asarray(values.values)[:length] for values in table[parts[0]]])
                else:
                    arrays = [table[part].to_numpy(zero_copy_only=False) for part in parts]
                    columns.append(np.stack(arrays, axis=1) if len(arrays) > 1 else arrays[0])
            for row in zip(*columns, strict=True):
                yield dict(zip(stacks, row, strict=True))


def pad_rows(workload: Workload) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes a record's lists as long as the workload wants them."""
    lengths = {column.name: column.length for column in workload.columns if column.length is not None}

    def padded(record: dict[str, Any]) -> dict[str, Any]:
        for name, length in lengths.items():
            values = np.asarray(record[name])
            if len(values) == length:
                record[name] = values
            else:
                record[name] = np.zeros(length, values.dtype)
                record[name][: len(values)] = values
        return record

    return padded


def as_batch(batch: Mapping[str, Any], workload: Workload) -> dict[str, npt.NDArray[Any]]:
    """Columns by their own names out of those that lie side by side: views, nothing is copied."""
    columns = {}
    for name, parts in stacks_of(workload).items():
        if len(parts) == 1:
            columns[parts[0]] = batch[name]
        else:
            columns |= {part: batch[name][:, place] for place, part in enumerate(parts)}
    return columns
