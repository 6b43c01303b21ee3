"""A `Batch`: fixed-shape arrays that belong to whoever holds them, and the answer to where each row came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from o41td.tensors import jax_arrays, torch_tensors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COORDINATE_DTYPE", "Batch"]

COORDINATE_DTYPE = np.dtype([("source", "<i4"), ("shard", "<i4"), ("row", "<i8")])
"""One record's place: the source's number in its stage, the shard's number in the source, the row within the shard."""


class Batch:
    """One batch of one rank. The arrays are writable, C-contiguous and yours for as long as you keep a reference."""

    __slots__ = ("_arrays", "_key_of", "_locate", "_number", "batch_index", "num_rows", "stage")

    def __init__(
        self,
        *,
        arrays: dict[str, NDArray[Any]],
        num_rows: int,
        stage: int,
        number: int,
        batch_index: int,
        locate: Callable[[int, int], NDArray[Any]],
        key_of: Callable[[int, int], str],
    ) -> None:
        """Called by the stream. `number` is the batch's number in its stage, `batch_index` in the whole stream."""
        self._arrays = arrays
        self.num_rows = num_rows
        self.stage = stage
        self.batch_index = batch_index
        self._number = number
        self._locate = locate
        self._key_of = key_of

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns a field's array, [num_rows, *shape].

        Raises:
            KeyError: There is no such field; the message names those there are.
        """
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"{name!r} is not a field of this batch; its fields are {', '.join(self._arrays)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._arrays.items())
        return f"Batch(batch_index={self.batch_index}, stage={self.stage}, num_rows={self.num_rows}, {fields})"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns a new dict of all fields' arrays, each [num_rows, *shape]."""
        return dict(self._arrays)

    @property
    def key(self) -> str:
        """A name for this batch's content: equal only for the same rows of the same data under the same projection."""
        return self._key_of(self.stage, self._number)

    def coordinates(self) -> NDArray[Any]:
        """Returns where each row came from, `COORDINATE_DTYPE` [num_rows]; computed when asked for, nothing is read."""
        return self._locate(self.stage, self._number)

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the batch as Arrow: scalars as columns, arrays as fixed-shape tensors. No copy but for bools."""
        from o41td.arrow_export import tensor_batch

        return tensor_batch(self._arrays)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Returns Arrow C structs of the batch: `pyarrow.record_batch(batch)`, and what else reads that interface.

        Each axis behind the first is a fixed size list. No copy but for bools: the structs share the arrays' memory and
        keep it, so what is written to the arrays later is seen through them.

        Args:
            requested_schema: A capsule of an ArrowSchema that the reader would rather have; pyarrow casts to it.
        """
        from o41td.arrow_export import nested_batch

        schema, array = nested_batch(self._arrays).__arrow_c_array__(requested_schema)
        return schema, array

    def to_torch(self, device: Any = None, non_blocking: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - torch's
        """Returns the fields as torch tensors: sharing this batch's memory on the CPU, copied to another device.

        Args:
            device: What `torch.device` takes; None is the CPU.
            non_blocking: Return before a CUDA device has the values: they are on their way, through page-locked memory,
                on the current stream.

        Raises:
            ImportError: PyTorch is not installed.
        """
        return torch_tensors(self._arrays, device, non_blocking=non_blocking)

    def to_jax(self, device: Any = None) -> dict[str, Any]:
        """Returns the fields as JAX arrays; on the CPU they may share this batch's memory, so write to it no more.

        Args:
            device: A `jax.Device`; or a `jax.sharding.Sharding`, of whose global arrays this batch is the process's
                part; or None for JAX's default device.

        Raises:
            ConfigError: A field has 64 bits, and `jax_enable_x64` is not set: JAX would cut its values.
            ImportError: JAX is not installed.
        """
        return jax_arrays(self._arrays, device)
