"""Writes shards, streams them, stops, resumes on another world size, and compares; in the folder that it is run in.

Run by scripts/smoke with an installed o41td. Says nothing where all is well.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import o41td


def main() -> None:
    """Raises where something is wrong."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for shard in range(3):
            lists = pa.array([list(range(row % 9)) for row in range(shard * 100, shard * 100 + 100)])
            pq.write_table(pa.table({"ids": lists}), Path(folder, f"{shard}.parquet"), row_group_size=30)
        config = o41td.BatchStreamConfig(
            fields=[o41td.ProjectedField(name="ids", dtype="i64", length=8, pad=-1)],
            stages=[
                o41td.Stage(
                    sources=[o41td.FileSource(files=[f"{folder}/*.parquet"])],
                    batch_size=10,
                    shuffle=o41td.Shuffle(buffer_rows=64),
                )
            ],
            seed=3,
            lanes=2,
        )
        with o41td.open_batch_stream(config) as stream:
            whole = [batch["ids"] for batch in stream]
            assert stream.dropped_rows == 0
        assert sum(map(len, whole)) == 300
        with o41td.open_batch_stream(config) as stream:
            for expected in whole[:11]:
                batch = stream.next()
                assert batch is not None
                assert np.array_equal(batch["ids"], expected)
            stream.checkpoint().save(Path(folder, "checkpoint.json"))
        for rank in range(2):
            with o41td.resume_batch_stream(Path(folder, "checkpoint.json"), rank=rank, world_size=2) as stream:
                rest = [batch["ids"] for batch in stream]
            expected_rest = whole[11 + rank :: 2][: len(rest)]
            assert len(rest) == (len(whole) - 11) // 2
            assert all(np.array_equal(one, other) for one, other in zip(rest, expected_rest, strict=True))


if __name__ == "__main__":
    main()
