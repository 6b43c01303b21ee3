"""The projection without a stream: the arrays that training sees, of rows that come from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.counted import kind_text
from o41td.errors import ConfigError
from o41td.fields import DTYPES, FieldPlan
from o41td.projection import ProjectionPlan, plan_projection
from o41td.workers.project import Projector

if TYPE_CHECKING:
    from o41td.config import BatchStreamConfig

__all__ = ["project"]


def project(config: BatchStreamConfig, rows: Any, *, stage: int = 0, source: int = 0) -> dict[str, NDArray[Any]]:
    """Returns rows as the arrays that a stream of this config gives for them.

    Args:
        config: The config.
        rows: A `pyarrow.RecordBatch` or `Table`, as the source's shards hold them; where the source is a chain of
            nodes, these are run first.
        stage: The number of the stage whose source the rows might be of.
        source: The source's number in that stage: its own fields apply.

    Returns:
        By field name a new array [rows, *shape].

    Raises:
        ConfigError: Rows are not Arrow's, there is no such source, or its nodes are not there: it was read from a
            document.
        SchemaError: The rows lack a column, or have it with a type that the field cannot take.
        ValueRefusedError: A value does not fit; the row is that of `rows`.
    """
    if not (0 <= stage < len(config.stages) and 0 <= source < len(config.stages[stage].sources)):
        raise ConfigError(f"the config has no source {source} in stage {stage}")
    name = config.source_key(stage, source)
    chosen: Any = config.stages[stage].sources[source]
    if hasattr(chosen, "nodes"):
        if chosen.chain is None:
            raise ConfigError(f"source {name!r} is a chain of nodes, and a document holds no code")
        rows = chosen.chain.forward(rows)
    elif not isinstance(rows, pa.RecordBatch | pa.Table):
        raise ConfigError(
            f"rows to project are a pyarrow.RecordBatch or Table, not {kind_text(rows)}",
            advice="pyarrow.RecordBatch.from_pylist makes one of records, from_pydict one of columns",
        )
    fields = config.field_plans(stage, source)
    arrays = {field.name: np.empty((rows.num_rows, *field.shape), DTYPES[field.dtype]) for field in fields}
    Projector(_plan_of(rows.schema, fields, name)).write(rows, arrays, source=name)
    return arrays


@lru_cache(maxsize=64)
def _plan_of(schema: Any, fields: Sequence[FieldPlan], source: str) -> ProjectionPlan:
    return plan_projection(schema, fields, source=source)
