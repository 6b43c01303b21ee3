"""A batch's arrays as tensors of PyTorch and arrays of JAX: shared where the device is this process's memory.

What shares a batch's memory keeps it: the loan that every array refers to (`batch_buffers`) ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from o41td.errors import ConfigError

__all__ = ["jax_arrays", "torch_tensors"]


def torch_tensors(arrays: Mapping[str, NDArray[Any]], device: Any, *, non_blocking: bool) -> dict[str, Any]:
    """Returns arrays as tensors on `device`.

    Args:
        arrays: Writable arrays by name.
        device: What `torch.device` takes, or None for the CPU, where the tensors share the arrays' memory.
        non_blocking: Return before a CUDA device has the values. They are copied to page-locked memory first, out of
            which the device fetches them by itself. PyTorch's host allocator keeps that memory, and gives it out again
            when the fetch is over; the arrays may be dropped at once.

    Raises:
        ImportError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("to_torch needs PyTorch; install the package torch") from error

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device is None:
        return tensors
    device = torch.device(device)
    if non_blocking and device.type == "cuda":
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()}


def jax_arrays(arrays: Mapping[str, NDArray[Any]], device: Any) -> dict[str, Any]:
    """Returns arrays as arrays of JAX.

    Args:
        arrays: Arrays by name.
        device: A `jax.Device`; or a `jax.sharding.Sharding`, of which the arrays are this process's part; or None for
            JAX's default device.

    Raises:
        ConfigError: A field has 64 bits, which JAX would cut to 32 as it is set.
        ImportError: JAX is not installed.
    """
    try:
        import jax
    except ImportError as error:
        raise ImportError("to_jax needs JAX; install the package jax") from error

    wide = [name for name, array in arrays.items() if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype]
    if wide:
        raise ConfigError(
            f"JAX is set to 32 bits and would cut the values of {', '.join(wide)}",
            advice='Give these fields 32 bits ("i32", "f32"), or set jax.config.update("jax_enable_x64", True)',
        )
    if isinstance(device, jax.sharding.Sharding):
        return {name: jax.make_array_from_process_local_data(device, array) for name, array in arrays.items()}
    return {name: jax.device_put(array, device) for name, array in arrays.items()}
