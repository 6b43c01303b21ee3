"""What a loader by hand over Parquet does: row groups in a random order, some at a time, their rows shuffled."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from peers.peer import Job
from peers.workloads import BUFFER_ROWS, Workload, dense_columns

__all__ = ["Window", "Windows", "plan_windows", "shuffled_batches"]


@dataclass(frozen=True, slots=True)
class Window:
    """Row groups, as (path, number), whose rows are shuffled with each other; `index` is its place in the order."""

    index: int
    groups: tuple[tuple[str, int], ...]
    num_rows: int


def plan_windows(job: Job, seed: int = 1) -> list[Window]:
    """All row groups in a random order, in windows of at least `BUFFER_ROWS` rows."""
    groups = []
    for path in job.files:
        footer = pq.read_metadata(path)
        groups += [((path, number), footer.row_group(number).num_rows) for number in range(footer.num_row_groups)]
    windows: list[Window] = []
    window, rows = [], 0
    for index in np.random.default_rng(seed).permutation(len(groups)).tolist():
        window.append(groups[index][0])
        rows += groups[index][1]
        if rows >= BUFFER_ROWS:
            windows.append(Window(len(windows), tuple(window), rows))
            window, rows = [], 0
    return [*windows, Window(len(windows), tuple(window), rows)] if window else windows


class Windows:
    """Reads windows; files that were opened stay open, their footers parsed."""

    def __init__(self, workload: Workload, *, use_threads: bool) -> None:
        self._workload = workload
        self._use_threads = use_threads
        self._open = functools.lru_cache(maxsize=128)(pq.ParquetFile)

    def arrays(self, groups: tuple[tuple[str, int], ...]) -> dict[str, npt.NDArray[Any]]:
        """The rows of some row groups as arrays."""
        names = self._workload.names
        tables = [
            self._open(path).read_row_group(n, columns=names, use_threads=self._use_threads) for path, n in groups
        ]
        return dense_columns(pa.concat_tables(tables), self._workload)


def shuffled_batches(
    arrays: dict[str, npt.NDArray[Any]], workload: Workload, index: int
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Batches of a window's rows, shuffled by the window's place in the order."""
    order = np.random.default_rng((1, index)).permutation(len(arrays["doc_id"]))
    for begin in range(0, len(order), workload.batch_size):
        rows = order[begin : begin + workload.batch_size]
        yield {name: array[rows] for name, array in arrays.items()}
