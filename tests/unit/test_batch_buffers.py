"""A batch's memory comes back when nothing can reach it, and never before."""

import gc
import os
import pickle
import sys
import threading

import numpy as np
import pytest

from o41td.batch_buffers import BatchBuffers, StageBuffers
from o41td.job import job_of
from o41td.shm.layout import batch_bytes_of
from stream_reference import ID_ONLY, stage_of, stream_config

FIELDS = [("tokens", "<i4", (7,)), ("label", "<f8", ()), ("seen", "|b1", (2, 3))]


def buffers(limit: int = 4, batch_size: int = 5) -> BatchBuffers:
    """Make a pool of small batches."""
    return BatchBuffers(FIELDS, batch_size=batch_size, limit=limit)


def test_arrays_are_what_a_batch_needs():
    """Arrays have the fields' dtypes and shapes, are writable, contiguous, aligned, and do not overlap."""
    pool = buffers()
    batch = pool.acquire()
    assert {name: (array.shape, array.dtype.str) for name, array in batch.items()} == {
        "tokens": ((5, 7), "<i4"),
        "label": ((5,), "<f8"),
        "seen": ((5, 2, 3), "|b1"),
    }
    for value, array in enumerate(batch.values()):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0
        array[...] = value
    assert batch["tokens"].max() == 0
    assert batch["label"].min() == 1.0
    assert batch["seen"].all()
    # 5 rows: 140 -> 192, 40 -> 64, 30 -> 64 bytes.
    assert pool.buffer_bytes == 320 == batch_bytes_of([28, 8, 6], 5)


def test_dropped_memory_is_used_again():
    """A loop that drops each batch maps two buffers: the one in hand and the next."""
    pool = buffers()
    for _ in range(50):
        batch = pool.acquire()
    assert pool.num_mapped == 2
    del batch
    assert pool.num_free == 2


EXPORTS = {
    "field": lambda batch: batch["label"],
    "row": lambda batch: batch["tokens"][3],
    "slice of slice": lambda batch: batch["tokens"][1:][:, ::2][1:],
    "reshaped": lambda batch: batch["tokens"].reshape(-1)[4:],
    "other dtype": lambda batch: batch["tokens"].view(np.uint8),
    "transposed": lambda batch: batch["seen"].T,
    "memoryview": lambda batch: memoryview(batch["tokens"]),
    "memoryview of view": lambda batch: memoryview(batch["tokens"][2:])[1:],
    "frombuffer": lambda batch: np.frombuffer(batch["label"], dtype=np.uint8),
    "asarray": lambda batch: np.asarray(batch["tokens"][:2]),
    "subclass": lambda batch: batch["tokens"].view(np.matrix),
    "masked": lambda batch: np.ma.masked_array(batch["label"], copy=False),
    "broadcast": lambda batch: np.broadcast_to(batch["label"], (3, 5)),
    "stride tricks": lambda batch: np.lib.stride_tricks.sliding_window_view(batch["label"], 2),
    "dlpack": lambda batch: batch["label"].__dlpack__(),
    "from_dlpack": lambda batch: np.from_dlpack(batch["label"]),
    "pickle buffer": lambda batch: pickle.PickleBuffer(batch["label"]),
    "ctypes": lambda batch: batch["label"].ctypes.data_as(np.ctypeslib.ctypes.c_void_p),
    "flat iterator": lambda batch: batch["label"].flat,
    "base": lambda batch: batch["label"].base,
    "base of base": lambda batch: batch["label"].base.base,
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", EXPORTS)
def test_any_export_keeps_the_memory(kind):
    """Whatever still shows the memory keeps it from being used again, and lets go of it when dropped."""
    pool = buffers()
    kept = EXPORTS[kind](pool.acquire())
    assert pool.num_free == 0
    other = pool.acquire()
    assert pool.num_mapped == 2
    del kept
    gc.collect()
    assert pool.num_free == 1
    del other


def test_cycles_are_collected():
    """A batch in a reference cycle comes back with the cycle."""
    pool = buffers()
    cycle: list = [pool.acquire()]
    cycle.append(cycle)
    del cycle
    assert pool.num_free == 0
    gc.collect()
    assert pool.num_free == 1


def test_kept_batches_never_change():
    """2 000 kept batches hold what was put into them, use no descriptors, and are freed when dropped."""
    pool = buffers(limit=3)
    descriptors = len(os.listdir("/proc/self/fd"))
    kept = []
    for number in range(2000):
        batch = pool.acquire()
        for array in batch.values():
            array[...] = number % 251
        kept.append(batch["tokens"][:3])
        pool.acquire()["tokens"][...] = -1  # dropped at once: this one's memory is used again and again
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert all((view == number % 251).all() for number, view in enumerate(kept))
    assert pool.num_mapped == 2001
    del batch
    kept.clear()
    assert pool.num_free == 3


def test_no_python_runs_where_a_batch_is_dropped():
    """A KeyboardInterrupt raised in a `__del__` or a callback would be printed and lost, so there is none."""
    pool = buffers()
    batch, calls = pool.acquire(), []
    sys.setprofile(lambda frame, event, arg: calls.append((event, frame.f_code.co_name)) if event == "call" else None)
    try:
        del batch
    finally:
        sys.setprofile(None)
    assert calls == []
    assert pool.num_free == 1


def test_a_stage_that_is_over_keeps_no_memory():
    """Another stage's buffers take the place of the last one's; batches of both stay valid."""
    stages = [stage_of([f"{name}.parquet"], batch_size=3) for name in "ab"]
    of_stage = StageBuffers(job_of(stream_config(*stages, fields=ID_ONLY), lanes=1), [3, 3])
    first = of_stage(0)
    batch = first.acquire()["id"]
    first.acquire()
    assert (of_stage(0) is first, first.num_free) == (True, 1)
    second = of_stage(1)
    assert (first.num_free, second.num_free) == (0, 0)
    batch[...] = 7
    assert batch.tolist() == [7, 7, 7]
    del batch
    assert first.num_free == 0


def test_limit_of_zero_keeps_nothing():
    """With limit 0 every dropped buffer is unmapped."""
    pool = buffers(limit=0)
    for _ in range(3):
        pool.acquire()
    assert (pool.num_free, pool.num_mapped) == (0, 3)


def test_batches_outlive_the_pool():
    """Batches stay valid after the pool was closed, and after it is gone."""
    pool = buffers()
    spare, first, second = pool.acquire(), pool.acquire()["label"], pool.acquire()["label"]
    first[...], second[...] = 1.0, 2.0
    del spare
    assert pool.num_free == 1
    pool.close()
    pool.close()
    assert pool.num_free == 0
    assert first.sum() == 5.0
    del first
    assert pool.num_free == 0
    del pool
    assert second.sum() == 10.0
    del second


def test_threads_never_share_a_buffer():
    """While one thread acquires and fills, others check and drop: each sees only its own batch's values."""
    pool = buffers(limit=8, batch_size=64)
    handed: list = []
    wrong: list[int] = []
    done = threading.Event()
    lock = threading.Lock()

    def consume():
        while True:
            is_last_look = done.is_set()
            with lock:
                item = handed.pop() if handed else None
            if item is None:
                if is_last_look:
                    return
                continue
            number, view, export = item
            del item
            if not (view == number).all() or export[0, 0] != number:
                wrong.append(number)
            del export, view

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3000):
        batch = pool.acquire()
        batch["tokens"].fill(number)
        with lock:
            handed.append((number, batch["tokens"][10:], memoryview(batch["tokens"])))
        del batch
    done.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert wrong == []
    assert 1 <= pool.num_free <= 8
