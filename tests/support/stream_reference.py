"""What a stream must give, worked out without a loader: positions by `o41td.order`, values by pyarrow.

Tests build a config with `stream_config`, and compare batches with a `Reference` over the same config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from o41td import Batch, BatchStreamConfig, FileSource, ManifestSource, ProjectedField, Shuffle, Stage
from o41td.order import StageOrder, row_digests, total_digest

TOKENS = 8
FIELDS = (
    ProjectedField(name="id", dtype="i64"),
    ProjectedField(name="tokens", dtype="i32", length=TOKENS, pad=-1),
    ProjectedField(name="score", dtype="f64"),
    ProjectedField(name="flag", dtype="bool"),
)
ID_ONLY = (ProjectedField(name="id", dtype="i64"),)


def file_source(paths: Sequence[Path | str], *, weight: float = 1.0, name: str | None = None) -> FileSource:
    """A source of these shards in this order."""
    return FileSource(files=[str(path) for path in paths], weight=weight, name=name)


def stage_of(
    *sources: Sequence[Path | str] | FileSource | ManifestSource,
    batch_size: int = 8,
    buffer_rows: int | None = None,
    **keys: Any,
) -> Stage:
    """A stage of sources, each given as its shards or as a source."""
    made = [source if isinstance(source, FileSource | ManifestSource) else file_source(source) for source in sources]
    shuffle = None if buffer_rows is None else Shuffle(buffer_rows=buffer_rows)
    return Stage(sources=made, batch_size=batch_size, shuffle=shuffle, **keys)


def stream_config(*stages: Stage, fields: Sequence[ProjectedField] = FIELDS, **keys: Any) -> BatchStreamConfig:
    """A config; one worker unless `threads` says otherwise."""
    return BatchStreamConfig(stages=list(stages), fields=list(fields), **{"seed": 7, "threads": 1, **keys})


class Reference:
    """The batches of a config whose fields are `FIELDS` or `ID_ONLY`, by stage and number in the stage."""

    def __init__(self, config: BatchStreamConfig, *, lanes: int = 1) -> None:
        """Reads every shard whole; `lanes` counts where the config does not say."""
        self.config = config
        self.orders: list[StageOrder] = []
        self._units: list[list[list[tuple[int, int]]]] = []
        self._tables: list[list[list[dict[str, NDArray[Any]]]]] = []
        for number, stage in enumerate(config.stages):
            footers = [[pq.read_metadata(path) for path in source.files] for source in stage.sources]
            units = [[_units_of(footer) for footer in source] for source in footers]
            self._units.append(
                [[(s, first) for s, shard in enumerate(source) for first, _ in shard] for source in units]
            )
            self._tables.append([[_columns_of(Path(path)) for path in source.files] for source in stage.sources])
            self.orders.append(
                StageOrder(
                    seed=config.seed,
                    stage_index=number,
                    unit_rows=[[rows for shard in source for _, rows in shard] for source in units],
                    weights=[source.weight for source in stage.sources],
                    batch_size=stage.batch_size,
                    buffer_rows=stage.shuffle.buffer_rows if stage.shuffle else None,
                    infinite=stage.infinite,
                    drop_last=stage.drop_last,
                    lanes=config.lanes or lanes,
                )
            )

    def num_batches(self, stage: int = 0) -> int:
        """Batches of a finite stage."""
        count = self.orders[stage].num_batches
        assert count is not None
        return count

    def coordinates(self, number: int, stage: int = 0) -> list[tuple[int, int, int]]:
        """(source, shard, row in shard) of each row of a batch."""
        source, unit, row = self.orders[stage].coordinates(number)
        places = [self._units[stage][s][u] for s, u in zip(source.tolist(), unit.tolist(), strict=True)]
        return [
            (s, shard, first + r) for s, (shard, first), r in zip(source.tolist(), places, row.tolist(), strict=True)
        ]

    def arrays(self, number: int, stage: int = 0) -> dict[str, NDArray[Any]]:
        """What the arrays of a batch hold."""
        places = self.coordinates(number, stage)
        return {
            field.name: np.stack([self._tables[stage][s][shard][field.name][row] for s, shard, row in places])
            for field in self.config.fields
        }

    def ids(self, number: int, stage: int = 0) -> list[int]:
        """The ids in a batch."""
        ids: list[int] = self.arrays(number, stage)["id"].tolist()
        return ids

    def digest(self, batch_index: int, number: int, stage: int = 0) -> int:
        """A batch's share of the order digest, where it is batch `batch_index` of the stream."""
        source, shard, row = zip(*self.coordinates(number, stage), strict=True)
        return total_digest(row_digests(batch_index, np.arange(len(row)), source, shard, row))

    def check(self, batch: Batch | None, *, number: int, stage: int = 0, batch_index: int | None = None) -> Batch:
        """Compare a whole batch: place, dtype, shape, every value; returns it."""
        where = f"batch {number} of stage {stage}"
        assert batch is not None, f"{where}: the stream ended"
        expected = self.arrays(number, stage)
        assert (batch.stage, batch.num_rows) == (stage, len(expected["id"])), where
        assert batch.batch_index == (number if batch_index is None else batch_index), where
        assert list(batch.arrays()) == list(expected), where
        for name, values in expected.items():
            assert batch[name].dtype == values.dtype, f"{where}, {name}"
            np.testing.assert_array_equal(batch[name], values, err_msg=f"{where}, {name}")
        return batch

    def check_rest(
        self, stream: Any, *, position: int, rank: int = 0, world_size: int = 1, stage: int = 0, base: int = 0
    ) -> int:
        """Compare all batches that `rank` gets from stage position `position` on; returns their rows.

        `base` is the global batch at which the stage's batch 0 would be.
        """
        rows = 0
        rounds = max(0, self.num_batches(stage) - position) // world_size
        for k in range(rounds):
            number = position + rank + k * world_size
            rows += self.check(stream.next(), number=number, stage=stage, batch_index=base + number).num_rows
        assert stream.next() is None, "the stream goes on behind its end"
        return rows


def ids_of(batches: Iterator[Batch] | Sequence[Batch]) -> list[int]:
    """The ids of batches, end to end."""
    return [row_id for batch in batches for row_id in batch["id"].tolist()]


def contents_of(stream: Any) -> list[tuple[int, dict[str, bytes]]]:
    """The rest of a stream as (batch index, bytes of each field)."""
    return [(batch.batch_index, {name: array.tobytes() for name, array in batch.arrays().items()}) for batch in stream]


def _units_of(footer: Any) -> list[tuple[int, int]]:
    """(first row, rows) of each row group."""
    units, first = [], 0
    for group in range(footer.num_row_groups):
        units.append((first, footer.row_group(group).num_rows))
        first += footer.row_group(group).num_rows
    return units


def _columns_of(path: Path) -> dict[str, NDArray[Any]]:
    table = pq.ParquetFile(path).read()
    tokens = [(row + [-1] * TOKENS)[:TOKENS] for row in table["tokens"].to_pylist()]
    return {
        "id": np.array(table["id"].to_pylist(), np.int64),
        "tokens": np.array(tokens, np.int32).reshape(-1, TOKENS),
        "score": np.array(table["score"].to_pylist(), np.float64),
        "flag": np.array(table["flag"].to_pylist(), np.bool_),
    }
