"""JAX: batches as arrays of JAX, spread over devices where there are several.

    python examples/train_jax.py
    XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/train_jax.py      # four devices on the CPU

The rows of a batch are spread over all devices: `to_jax` takes a sharding, and with several processes each gives its
own rows of the global array. JAX keeps 32 bits unless told otherwise, so the fields are f32; a field of 64 would be
refused instead of cut. What to see: the loss falls, and is the same on any number of devices.
"""

from __future__ import annotations

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage, open_batch_stream


def loss_of(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean square error."""
    return jnp.mean((batch["point"] @ weights - batch["value"]) ** 2)


@jax.jit
def step(weights: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """One step of descent; returns the new weights, and the loss of the old."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    return weights - 0.1 * gradient, loss


def main() -> None:
    """Trains for 20 steps."""
    with tempfile.TemporaryDirectory() as folder:
        points = np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32)
        values = points @ np.float32([1, -2, 3, 0.5])
        pq.write_table(pa.table({"point": list(points), "value": values}), f"{folder}/points.parquet")
        config = BatchStreamConfig(
            fields=[
                ProjectedField(name="point", source="point", dtype="f32", length=4),
                ProjectedField(name="value", source="value", dtype="f32"),
            ],
            stages=[
                Stage(
                    sources=[FileSource(files=[f"{folder}/points.parquet"])],
                    batch_size=100,
                    shuffle=Shuffle(buffer_rows=500),
                )
            ],
        )
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
        weights = jnp.zeros(4)
        with open_batch_stream(config) as stream:
            for batch in stream:
                weights, loss = step(weights, batch.to_jax(rows))
                if batch.batch_index % 5 == 4:
                    print(f"batch {batch.batch_index:2}  loss {loss:.4f}")


if __name__ == "__main__":
    main()
