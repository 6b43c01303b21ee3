"""The memory that batches own, and its way back.

A batch handed to the user owns its memory: it may be written to, kept for ever, exported to torch, sliced. The memory
is used for a later batch only when nothing can reach it any more. Fresh pages cost many times more than reused ones.

How "nothing can reach it" is known: each `acquire` wraps the pooled mapping in a new `_Loan`, an object of ours that
NumPy takes as the owner of the memory through `__array_interface__`. One byte array is made over it, and every field
over that. NumPy collapses chains of `.base` among arrays (a view of a view refers to the first array), but never past
an object that is not an array, so whatever is made from a field (views, memoryviews, dlpack capsules, torch tensors,
pickle buffers) holds, directly or not, the byte array, and this the loan. When the last of them goes, in whichever
thread, the loan's `__del__` runs and puts the mapping back. Counting references (`sys.getrefcount`) instead would see
only views that hold the counted object itself, and its meaning changes between CPython 3.12, 3.14 and free-threaded
builds.

```
 field ──► byte array ──► _Loan ──► mapping          after the last reference: mapping ──► BatchBuffers
 view of field ──▲                                    (or unmapped, where enough are free, or the pool is gone)
```
"""

import weakref
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.fields import NUMPY_DTYPES
from o41td.job import StreamJob
from o41td.shm.layout import CACHE_LINE_BYTES, round_up
from o41td.shm.pages import address_of, map_private

__all__ = ["BatchBuffers", "StageBuffers"]


class BatchBuffers:
    """Recycled, writable memory for batches of one stage.

    `acquire` and the dropping of batches may happen in any threads at once. Nothing here locks: a garbage collection
    may drop a batch in the middle of any line of ours, and a lock held there would be waited for by its own thread.

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
        self._closed = False
        self._self_reference = weakref.ref(self)

    @property
    def num_free(self) -> int:
        """Buffers that wait to be used again."""
        return len(self._free)

    def acquire(self) -> dict[str, NDArray[Any]]:
        """Returns arrays for one batch: `[batch_size, *shape]` each, writable, C-contiguous, 64-byte aligned.

        What they hold is undefined: zeroes, or an earlier batch. A partial batch is a `[:n]` view of each. The memory
        is the caller's until every reference to every array and view is gone; there is nothing to release.

        Blocks:
            Not at all where a free buffer is there (2 µs, and 0.4 µs more a field); else on mapping and populating one.
        """
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _mapped(self.buffer_bytes)
            self.num_mapped += 1
        whole = np.asarray(_Loan(memory, self._self_reference))
        return {name: np.ndarray(shape, dtype, whole, offset) for name, shape, dtype, offset in self._plan}

    def close(self) -> None:
        """Unmaps what is free; batches still out are unmapped when dropped. Idempotent."""
        self._closed = True
        self._free.clear()

    def give_back(self, memory: "_Memory") -> None:
        """Puts a mapping back that nothing refers to. Called by a loan's end alone, in any thread."""
        if not self._closed:
            self._free.append(memory)


_Memory = tuple[NDArray[np.uint8], dict[str, Any]]
"""A mapping, and how it describes itself to NumPy (kept, as asking for it takes longer than all the rest)."""


def _mapped(num_bytes: int) -> _Memory:
    array = map_private(num_bytes)
    interface = {"version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (address_of(array), False)}
    return array, interface


class _Loan:
    """The owner of one batch's memory in NumPy's eyes; giving the memory back is its last act."""

    __slots__ = ("__array_interface__", "_lender", "_memory")

    def __init__(self, memory: _Memory, lender: "weakref.ref[BatchBuffers]") -> None:
        self._memory = memory
        self._lender = lender
        self.__array_interface__ = memory[1]

    def __del__(self) -> None:
        lender = self._lender()
        if lender is not None:
            lender.give_back(self._memory)


class StageBuffers:
    """The buffers of each stage of a job, made when the stage is first streamed."""

    def __init__(self, job: StreamJob) -> None:
        self._job = job
        self._of_stage: dict[int, BatchBuffers] = {}

    def __call__(self, stage: int) -> BatchBuffers:
        """Returns the buffers for batches of `stage`."""
        buffers = self._of_stage.get(stage)
        if buffers is None:
            job = self._job.stages[stage]
            fields = [(field.name, NUMPY_DTYPES[field.dtype].str, field.shape) for field in job.sources[0].fields]
            limit = self._job.prefetch_batches + _SPARE_BUFFERS
            buffers = self._of_stage[stage] = BatchBuffers(fields, batch_size=job.batch_size, limit=limit)
        return buffers


_SPARE_BUFFERS = 3
"""Free buffers kept beside the prefetched: the batch being gathered, and the two in the loop's hands."""
