"""All rows in the order of their keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from o41td.order.hash import hash_range
from o41td.writing.row_shuffle import RowShuffle


@pytest.mark.parametrize("memory_bytes", [1 << 14, 1 << 28])
@pytest.mark.parametrize("batch_rows", [37, 5000])
def test_rows_leave_in_the_order_of_their_keys(tmp_path, memory_bytes, batch_rows):
    """Whatever fits in memory and however rows came, the order is that of a sort by key, and the folder ends empty."""
    num_rows = 20_000
    keys = hash_range(7, 0, num_rows)
    with RowShuffle(tmp_path, memory_bytes=memory_bytes) as shuffle:
        for start in range(0, num_rows, batch_rows):
            stop = min(num_rows, start + batch_rows)
            shuffle.add(pa.record_batch([pa.array(range(start, stop))], ["id"]), keys[start:stop])
        rows = [value for batch in shuffle.batches() for value in batch["id"].to_pylist()]
    assert rows == np.argsort(keys).tolist()
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_too_large_is_distributed_again(tmp_path):
    """Keys that all fall into one bucket are told apart by their further bits, and equal keys keep their order."""
    keys = np.repeat(np.arange(500, dtype=np.uint64), 20)
    order = np.random.default_rng(1).permutation(len(keys))
    with RowShuffle(tmp_path, memory_bytes=1 << 14) as shuffle:
        shuffle.add(pa.record_batch([pa.array(order)], ["place"]), keys[order])
        places = [value for batch in shuffle.batches() for value in batch["place"].to_pylist()]
    assert places == order[np.argsort(keys[order], kind="stable")].tolist()
