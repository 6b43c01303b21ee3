"""A batch's fields as tensors of PyTorch, arrays of JAX, and through DLPack."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from o41td import Batch
from o41td.batch_buffers import BatchBuffers

ROWS = 6
FIELDS = [("tokens", "<i4", (3,)), ("score", "<f4", ()), ("flag", "|b1", (2, 2))]
WIDE = [("id", "<i8", ()), ("exact", "<f8", ())]


def pool_of(fields: list[tuple[str, str, tuple[int, ...]]] = FIELDS, limit: int = 4) -> BatchBuffers:
    """The memory of small batches."""
    return BatchBuffers(fields, batch_size=ROWS, limit=limit)


def batch_out_of(pool: BatchBuffers, value: int = 0) -> Batch:
    """A batch whose every field counts up from `value`."""
    arrays = pool.acquire()
    for array in arrays.values():
        array[...] = (np.arange(array.size) + value).reshape(array.shape)

    def nowhere(stage: int, number: int) -> Any:
        raise AssertionError((stage, number))

    return Batch(arrays=arrays, num_rows=ROWS, stage=0, number=0, batch_index=0, locate=nowhere, key_of=nowhere)


@pytest.mark.parametrize(("method", "library"), [("to_torch", "torch"), ("to_jax", "jax")])
def test_a_library_that_is_absent_is_named(method: str, library: str) -> None:
    """Where PyTorch or JAX is not installed, asking for its tensors says which package to install."""
    if find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    with pytest.raises(ImportError, match=f"install the package {library}"):
        getattr(batch_out_of(pool_of()), method)()


def test_fields_are_exported_by_dlpack() -> None:
    """What speaks DLPack takes a field without a copy, and keeps its memory."""
    pool = pool_of()
    batch = batch_out_of(pool)
    taken = np.from_dlpack(batch["tokens"])
    assert taken.ctypes.data == batch["tokens"].ctypes.data
    del batch
    assert pool.num_free == 0
    assert taken.tolist() == np.arange(ROWS * 3).reshape(ROWS, 3).tolist()
    del taken
    assert pool.num_free == 1


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, "cpu"])
def test_torch_tensors_share_the_batchs_memory(torch: Any, device: str | None) -> None:
    """On the CPU tensors have the fields' values, dtypes and addresses; the memory comes back with the last of them."""
    pool = pool_of(FIELDS + WIDE)
    batch = batch_out_of(pool)
    tensors = batch.to_torch(device, non_blocking=True)
    assert list(tensors) == list(batch)
    for name, tensor in tensors.items():
        assert tensor.data_ptr() == batch[name].ctypes.data
        assert np.array_equal(tensor.numpy(), batch[name])
    assert [tensors[name].dtype for name in ("tokens", "score", "flag", "id", "exact")] == [
        torch.int32,
        torch.float32,
        torch.bool,
        torch.int64,
        torch.float64,
    ]
    kept = tensors["score"][2:]
    del batch, tensors, tensor
    assert pool.num_free == 0
    assert kept.tolist() == [2.0, 3.0, 4.0, 5.0]
    del kept
    assert pool.num_free == 1


def test_torch_tensors_of_fields_keep_the_memory(torch: Any) -> None:
    """A tensor that torch makes of a field, by NumPy or by DLPack, or a view of it, keeps the memory."""
    pool = pool_of()
    tensor = torch.from_numpy(pool.acquire()["tokens"])[1:].view(-1)
    shared = torch.from_dlpack(pool.acquire()["score"])
    assert pool.num_free == 0
    del tensor, shared
    assert pool.num_free == 2


def test_torch_tensors_of_another_device_are_asked_of_torch(torch: Any) -> None:
    """Any device that torch knows is taken, and an unknown one is torch's own error."""
    tensors = batch_out_of(pool_of()).to_torch("meta")
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}
    with pytest.raises(RuntimeError, match="nowhere"):
        batch_out_of(pool_of()).to_torch("nowhere")


def test_torch_tensors_on_their_way_outlive_their_batch(torch: Any) -> None:
    """Batches that are dropped while a CUDA device still fetches them arrive with their own values."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    pool = pool_of([("tokens", "<i4", (1 << 20,))], limit=1)
    sent = [batch_out_of(pool, value).to_torch("cuda", non_blocking=True)["tokens"] for value in range(20)]
    assert pool.num_mapped <= 2
    for value, tensor in enumerate(sent):
        assert torch.equal(tensor.flatten().cpu(), torch.arange(ROWS << 20, dtype=torch.int32) + value)


# ---- JAX: in a process of its own, since JAX warns of every later fork of the one it is in ---------------------------

IN_JAX = """
import gc, json, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from o41td import ConfigError
from test_tensors import FIELDS, WIDE, batch_out_of, pool_of

found = {}
pool = pool_of()
batch = batch_out_of(pool)
arrays = batch.to_jax()
found["equal"] = [
    isinstance(arrays[name], jax.Array) and arrays[name].dtype == batch[name].dtype
    and bool((np.asarray(arrays[name]) == batch[name]).all()) for name in batch
]
found["shared"] = arrays["tokens"].unsafe_buffer_pointer() == batch["tokens"].ctypes.data
del batch
found["free while held"] = pool.num_free
del arrays
gc.collect()
deadline = time.monotonic() + 30
while not pool.num_free and time.monotonic() < deadline:
    gc.collect()
found["free when dropped"] = pool.num_free

rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
tokens = batch_out_of(pool_of()).to_jax(rows)["tokens"]
found["shards"] = [shard.data.tolist() for shard in tokens.addressable_shards]

wide = batch_out_of(pool_of(FIELDS + WIDE), 1 << 40)
try:
    wide.to_jax()
except ConfigError as error:
    found["refused"] = str(error)
jax.config.update("jax_enable_x64", True)
found["wide"] = wide.to_jax()["id"].tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def in_jax() -> dict[str, Any]:
    """What a process with JAX and three devices on the CPU found."""
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", IN_JAX],
        cwd=os.path.dirname(__file__),
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_jax_arrays_have_the_fields_values(in_jax: dict[str, Any]) -> None:
    """Arrays have the fields' values and dtypes; what shares a batch's memory keeps it."""
    assert in_jax["equal"] == [True] * len(FIELDS)
    assert in_jax["shared"]
    assert (in_jax["free while held"], in_jax["free when dropped"]) == (0, 1)


def test_jax_would_cut_64_bits_and_is_not_let(in_jax: dict[str, Any]) -> None:
    """Fields of 64 bits are refused by name where JAX holds 32, and taken whole where it holds 64."""
    assert re.search(r"would cut the values of id, exact.*jax_enable_x64", in_jax["refused"])
    assert in_jax["wide"] == [(1 << 40) + row for row in range(ROWS)]


def test_jax_spreads_a_batch_over_devices(in_jax: dict[str, Any]) -> None:
    """Given a sharding, each of three devices holds its rows."""
    rows = np.arange(ROWS * 3).reshape(ROWS, 3).tolist()
    assert in_jax["shards"] == [rows[:2], rows[2:4], rows[4:]]
