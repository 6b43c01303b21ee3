"""A computed column, the same in training and in serving.

python examples/add_column.py
"""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from o41td import BatchStreamConfig, Node, Parquet, ProjectedField, Stage, open_batch_stream


class Ratio(Node):
    """Adds a column: one column over another."""

    def __init__(self, name: str, above: str, below: str) -> None:
        self.name, self.above, self.below = name, above, below

    def forward(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Divides, in doubles."""
        above, below = (pc.cast(batch[name], pa.float64()) for name in (self.above, self.below))
        return batch.append_column(self.name, pc.divide(above, below))


def main() -> None:
    """Streams clicks per view, and asks for those of one record as a server would."""
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"clicks": range(100), "views": [number + 1 for number in range(100)]})
        pq.write_table(table, f"{folder}/shows.parquet")
        config = BatchStreamConfig(
            fields=[ProjectedField(name="rate", source="rate", dtype="f32")],
            stages=[
                Stage(sources=[Parquet(f"{folder}/shows.parquet") >> Ratio("rate", "clicks", "views")], batch_size=50)
            ],
        )
        with open_batch_stream(config) as stream:
            print([round(float(batch["rate"].mean()), 3) for batch in stream])
        record = pa.RecordBatch.from_pylist([{"clicks": 3, "views": 4}])
        print(config.project(record))


if __name__ == "__main__":
    main()
