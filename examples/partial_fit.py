"""scikit-learn on data that does not fit in memory: `partial_fit` takes a batch as it comes.

    python examples/partial_fit.py

What to see: accuracy on rows of another file rises with every pass. The stage has no end, so each pass has an order of
its own; memory stays what it is however many rows there are.
"""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import SGDClassifier

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage, open_batch_stream

NUM_ROWS = 2000


def write_rows(path: str, seed: int) -> None:
    """Points of 10 numbers, and on which side of a plane they lie."""
    points = np.random.default_rng(seed).standard_normal((NUM_ROWS, 10))
    sides = points @ np.arange(10) > 0
    pq.write_table(pa.table({"point": list(points), "side": sides}), path, row_group_size=200)


def config_of(path: str, **keys: object) -> BatchStreamConfig:
    """Batches of 100 rows."""
    return BatchStreamConfig(
        fields=[
            ProjectedField(name="point", source="point", dtype="f64", length=10),
            ProjectedField(name="side", source="side", dtype="bool"),
        ],
        stages=[Stage(sources=[FileSource(files=[path])], batch_size=100, **keys)],
    )


def main() -> None:
    """Fits for three passes."""
    with tempfile.TemporaryDirectory() as folder:
        write_rows(f"{folder}/train.parquet", seed=1)
        write_rows(f"{folder}/test.parquet", seed=2)
        with open_batch_stream(config_of(f"{folder}/test.parquet")) as stream:
            held_out = list(stream)
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.002, random_state=0)
        train = config_of(f"{folder}/train.parquet", infinite=True, shuffle=Shuffle(buffer_rows=500))
        with open_batch_stream(train) as stream:
            for number in range(3 * NUM_ROWS // 100):
                batch = next(stream)
                model.partial_fit(batch["point"], batch["side"], classes=[False, True])
                if (number + 1) % (NUM_ROWS // 100) == 0:
                    accuracy = np.mean([model.score(held["point"], held["side"]) for held in held_out])
                    print(f"after batch {number + 1}: {accuracy:.1%} right")


if __name__ == "__main__":
    main()
