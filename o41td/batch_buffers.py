"""The memory that batches own, and its way back.

A batch handed to the user owns its memory: it may be written to, kept for ever, exported to torch, sliced. The memory
is used for a later batch only when nothing can reach it any more. Fresh pages cost many times more than reused ones.

What tells that nothing can reach it is a `Loan`: the last reference to it gives the mapping back to its pool, or
unmaps it where enough are free, or the pool is closed.
"""

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.fields import DTYPES
from o41td.job import StreamJob
from o41td.loans import Interface, Loan, Loans, interface_of
from o41td.shm.layout import CACHE_LINE_BYTES, round_up
from o41td.shm.pages import address_of, map_private

__all__ = ["BatchBuffers", "StageBuffers"]


class BatchBuffers:
    """Recycled, writable memory for batches of one stage.

    `acquire` and the dropping of batches may happen in any threads at once.

    Args:
        fields: (name, NumPy dtype, shape of one row) of each field, as for `plan_arena`.
        batch_size: Rows in a batch.
        limit: At most so many free buffers are kept; more are unmapped.
    """

    def __init__(self, fields: Sequence[tuple[str, str, tuple[int, ...]]], *, batch_size: int, limit: int) -> None:
        assert batch_size >= 1, f"batches of {batch_size} rows"
        assert limit >= 0, f"{limit} free buffers"
        self.batch_size = batch_size
        self.limit = limit
        self._plan: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        offset = 0
        for name, dtype, shape in fields:
            self._plan.append((name, (batch_size, *shape), np.dtype(dtype), offset))
            offset = round_up(offset + batch_size * prod(shape) * np.dtype(dtype).itemsize, CACHE_LINE_BYTES)
        assert offset > 0, "a batch of nothing"
        self.buffer_bytes = offset
        self.num_mapped = 0
        # A deque that is full drops its oldest item, the coldest: the limit holds without a lock.
        self._free: deque[_Memory] = deque(maxlen=limit)
        self._loans: Loans[_Memory] = Loans()

    @property
    def num_free(self) -> int:
        """Buffers that wait to be used again."""
        self._take_back()
        return len(self._free)

    def acquire(self) -> dict[str, NDArray[Any]]:
        """Returns arrays for one batch: `[batch_size, *shape]` each, writable, C-contiguous, 64-byte aligned.

        What they hold is undefined: zeroes, or an earlier batch. A partial batch is a `[:n]` view of each. The memory
        is the caller's until every reference to every array and view is gone; there is nothing to release.

        Blocks:
            Not at all where a free buffer is there (2 µs, and 0.4 µs more a field); else on mapping and populating one.
        """
        self._take_back()
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _mapped(self.buffer_bytes)
            self.num_mapped += 1
        loan = Loan(*memory)
        self._loans.note(loan, memory)
        whole = np.asarray(loan)
        return {name: np.ndarray(shape, dtype, whole, offset) for name, shape, dtype, offset in self._plan}

    def close(self) -> None:
        """Unmaps what is free; batches still out are unmapped when dropped. Idempotent."""
        self._loans.forget()
        self._free.clear()

    def _take_back(self) -> None:
        """Frees the buffers whose loans have ended."""
        self._free.extend(self._loans.returned())


_Memory = tuple[NDArray[np.uint8], Interface]
"""A mapping, and how it describes itself to NumPy."""


def _mapped(num_bytes: int) -> _Memory:
    array = map_private(num_bytes)
    return array, interface_of(address_of(array), num_bytes)


class StageBuffers:
    """The buffers of the stage that is streamed; those of the stage before it are let go."""

    def __init__(self, job: StreamJob, batch_rows: Sequence[int]) -> None:
        """`batch_rows[stage]` is the room that a batch of a stage needs."""
        self._job = job
        self._batch_rows = batch_rows
        self._stage = -1
        self._buffers: BatchBuffers | None = None

    def __call__(self, stage: int) -> BatchBuffers:
        """Returns the buffers for batches of `stage`."""
        if self._buffers is None or stage != self._stage:
            self.close()
            plans = self._job.stages[stage].sources[0].fields
            fields = [(field.name, DTYPES[field.dtype], field.shape) for field in plans]
            limit = self._job.prefetch_batches + _SPARE_BUFFERS
            self._buffers = BatchBuffers(fields, batch_size=self._batch_rows[stage], limit=limit)
            self._stage = stage
        return self._buffers

    def close(self) -> None:
        """Lets the buffers go."""
        if self._buffers is not None:
            self._buffers.close()


_SPARE_BUFFERS = 3
"""Free buffers kept beside the prefetched: the batch being gathered, and the two in the loop's hands."""
