"""Lance: tables in its own format, scanned, or taken from row by row in a random order (Lance is made for it)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from peers.peer import Job
from peers.workloads import Batch, dense_columns

_AHEAD = 4


def convert(job: Job) -> None:
    rows = ds.dataset(job.files).scanner(columns=job.workload.names)
    lance.write_dataset(rows.to_reader(), str(job.folder))


def open_scan(job: Job) -> Iterator[Batch]:
    table = lance.dataset(str(job.folder))
    for batch in table.to_batches(columns=job.workload.names, batch_size=job.workload.batch_size):
        yield dense_columns(batch, job.workload)


class Taken:
    """Batches of a permutation of all rows, a few of them taken ahead by two threads."""

    def __init__(self, job: Job) -> None:
        self._workload = job.workload
        self._table = lance.dataset(str(job.folder))
        self._order = np.random.default_rng(1).permutation(self._table.count_rows())
        self._place = 0 if job.state is None else int(job.state)

    def __iter__(self) -> Iterator[Batch]:
        size = self._workload.batch_size
        ahead: deque[Future[pa.Table]] = deque()
        with ThreadPoolExecutor(2) as threads:
            for begin in range(self._place, len(self._order), size):
                ahead.append(
                    threads.submit(self._table.take, self._order[begin : begin + size], columns=self._workload.names)
                )
                if len(ahead) > _AHEAD:
                    yield self._next(ahead)
            while ahead:
                yield self._next(ahead)

    def _next(self, ahead: deque[Future[pa.Table]]) -> Batch:
        table = ahead.popleft().result()
        self._place += len(table)
        return dense_columns(table, self._workload)

    def state(self) -> bytes:
        """How many rows of the permutation were delivered."""
        return b"%d" % self._place


def open_take(job: Job) -> Taken:
    return Taken(job)
