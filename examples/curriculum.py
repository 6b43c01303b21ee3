"""A curriculum that advances when the loss says so, not after a number of steps.

    python examples/curriculum.py

Two stages: short sums, and short and long ones mixed. When the mean loss of the last ten batches falls below a
threshold, `advance` moves the stream to the next stage; a checkpoint knows where in each stage it is. On several ranks
the loss has to be the one averaged over all, so that all advance after the same batch. What to see: the stage changes
when the first one is learnt, and the loss jumps and falls again.
"""

from __future__ import annotations

import tempfile
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage, open_batch_stream

LONGEST = 8
LEARNT = 0.01


def write_sums(path: str, longest: int, seed: int) -> None:
    """Rows of up to `longest` numbers, and their sum, in which later places count for more."""
    rng = np.random.default_rng(seed)
    terms = [rng.standard_normal(rng.integers(1, longest + 1)) for _row in range(4000)]
    sums = [float(row @ np.arange(1, len(row) + 1)) for row in terms]
    pq.write_table(pa.table({"terms": terms, "sum": sums}), path, row_group_size=500)


def main() -> None:
    """Trains on the easy stage until it is learnt, then on the hard one."""
    with tempfile.TemporaryDirectory() as folder:
        write_sums(f"{folder}/short.parquet", longest=2, seed=1)
        write_sums(f"{folder}/long.parquet", longest=LONGEST, seed=2)
        short, long = (FileSource(files=[f"{folder}/{name}.parquet"], name=name) for name in ("short", "long"))
        window = Shuffle(buffer_rows=1000)
        config = BatchStreamConfig(
            fields=[
                ProjectedField(name="terms", source="terms", dtype="f64", length=LONGEST, pad=0),
                ProjectedField(name="sum", source="sum", dtype="f64"),
            ],
            stages=[
                Stage(name="easy", sources=[short], batch_size=40, shuffle=window, infinite=True),
                Stage(name="hard", sources=[short, long], batch_size=40, shuffle=window, infinite=True),
            ],
        )
        weights = np.zeros(LONGEST)
        losses: deque[float] = deque(maxlen=10)
        with open_batch_stream(config) as stream:
            for batch in stream:
                error = batch["terms"] @ weights - batch["sum"]
                weights -= 0.2 * batch["terms"].T @ error / batch.num_rows
                losses.append(float(np.mean(error**2)))
                if len(losses) < 10 or np.mean(losses) > LEARNT:
                    continue
                print(f"{config.stages[batch.stage].name}: learnt after batch {batch.batch_index}")
                if batch.stage + 1 == len(config.stages):
                    break
                stream.advance(batch.stage + 1)
                losses.clear()
        print(np.round(weights, 1).tolist())


if __name__ == "__main__":
    main()
