"""A loss spike, hunted down: which batch, which shard, which rows; and the run resumed without them.

    python examples/loss_spike.py

One shard of the data holds labels that were written in other units. The loop saves a checkpoint every ten batches and
stops when the loss jumps. `coordinates` says of each row where it came from, without reading anything (on the command
line: `o41td trace CHECKPOINT --batch 31 --show label`). The run goes on from the last checkpoint with the bad batches
in `exclude`, which every rank passes over in step. What to see: the spike names one shard, and the second run has none.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td import (
    BatchStream,
    BatchStreamConfig,
    FileSource,
    ProjectedField,
    Stage,
    open_batch_stream,
    resume_batch_stream,
)

SPIKE = 10.0  # times the usual loss


def write_shards(folder: str) -> None:
    """Six shards of 200 rows; the labels of 60 rows of the fourth are a thousand times too large."""
    rng = np.random.default_rng(5)
    for number in range(6):
        points = rng.standard_normal((200, 3))
        labels = points @ [1.0, 2.0, 3.0] + 0.1 * rng.standard_normal(200)
        if number == 3:
            labels[20:80] *= 1000
        table = pa.table({"point": list(points), "label": labels})
        pq.write_table(table, f"{folder}/part-{number}.parquet", row_group_size=50)


class Model:
    """Least squares by descent."""

    def __init__(self) -> None:
        self.weights = np.zeros(3)
        self.saved = self.weights.copy()
        self.usual: float | None = None

    def is_spike(self, points: np.ndarray, labels: np.ndarray) -> bool:
        """Trains on a batch, unless its loss is far from the usual."""
        error = points @ self.weights - labels
        loss = float(np.mean(error**2))
        if self.usual is not None and loss > SPIKE * self.usual:
            return True
        self.usual = loss if self.usual is None else 0.9 * self.usual + 0.1 * loss
        self.weights -= 0.1 * points.T @ error / len(labels)
        return False


def train(stream: BatchStream, model: Model, folder: str) -> list[int]:
    """Trains to the end or to a spike; returns the batches of the spike."""
    spike = []
    for batch in stream:
        if model.is_spike(batch["point"], batch["label"]):
            where = batch.coordinates()
            shards = Counter(Path(stream.sources[at["source"]].shards[at["shard"]].uri).name for at in where)
            print(f"batch {batch.batch_index}: rows {where['row'].min()} to {where['row'].max()} of {dict(shards)}")
            spike.append(batch.batch_index)
        elif spike:
            return spike
        elif batch.batch_index % 10 == 0:
            stream.checkpoint().save(f"{folder}/good.json")
            model.saved = model.weights.copy()
    return spike


def main() -> None:
    """Trains into the spike, then past it."""
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder)
        config = BatchStreamConfig(
            fields=[
                ProjectedField(name="point", source="point", dtype="f64", length=3),
                ProjectedField(name="label", source="label", dtype="f64"),
            ],
            stages=[Stage(sources=[FileSource(files=[f"{folder}/part-*.parquet"])], batch_size=20)],
        )
        model = Model()
        with open_batch_stream(config) as stream:
            spike = train(stream, model, folder)
        model.weights = model.saved
        with resume_batch_stream(f"{folder}/good.json", exclude=[(spike[0], spike[-1] + 1)]) as stream:
            print("spikes of the second run:", train(stream, model, folder))
            print("batches passed over:", stream.excluded_batches)
        print(np.round(model.weights, 1).tolist())


if __name__ == "__main__":
    main()
