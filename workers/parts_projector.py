"""Decoded rows that come in parts, into a slot: each part as `Projector` does it, refusals told as of one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from o41td.fields import FieldPlan
from o41td.projection import packed_dtypes_of, plan_projection
from o41td.workers.project import Projector, RefusedRows
from o41td.workers.slot_rows import Placement

__all__ = ["PartsProjector", "RowsInParts"]


class RowsInParts(Protocol):
    """Rows, of which a part may come to be only when its turn comes."""

    @property
    def parts(self) -> Iterable[tuple[int, Sequence[Any]]]:
        """Consecutive rows: how many, and a `pyarrow.Table` of them for each layer of fields."""
        ...


class PartsProjector:
    """Writes rows in parts into a slot; parts may differ in their schemas.

    Args:
        layers: The fields whose columns are in a part's first table, in its second, …
    """

    def __init__(self, layers: Sequence[Sequence[FieldPlan]]) -> None:
        self._layers = layers
        self._projectors: list[dict[Any, Projector]] = [{} for _ in layers]

    def write_fitting(
        self,
        rows: RowsInParts,
        out: Mapping[str, NDArray[Any]],
        *,
        places: NDArray[np.int64] | Placement | None = None,
        row_offset_in_shard: int = 0,
        row_group: int | None = None,
        shard: str | None = None,
        source: str | None = None,
    ) -> RefusedRows | None:
        """Writes all parts, as `Projector.write_fitting` writes one table.

        Raises:
            SchemaError: A part does not give the fields.
            Exception: What `rows.parts` raises.
        """
        first = 0
        refused: list[RefusedRows] = []
        for num_rows, tables in rows.parts:
            own = None if places is None else places[first : first + num_rows]
            regions = {name: region[first:] for name, region in out.items()} if own is None else out
            for layer, table, projectors in zip(self._layers, tables, self._projectors, strict=True):
                schema = table.schema, packed_dtypes_of(table.schema)
                projector = projectors.get(schema)
                if projector is None:
                    plan = plan_projection(table.schema, layer, source=source, shard=shard)
                    projector = projectors[schema] = Projector(plan)
                of_layer = projector.write_fitting(
                    table,
                    regions,
                    places=own,
                    row_offset_in_shard=row_offset_in_shard + first,
                    row_group=row_group,
                    shard=shard,
                    source=source,
                )
                if of_layer is not None:
                    refused.append(RefusedRows(of_layer.rows + first, of_layer.error))
            first += num_rows
        if not refused:
            return None
        earliest = min(refused, key=lambda each: int(each.rows[0]))
        return RefusedRows(np.unique(np.concatenate([each.rows for each in refused])), earliest.error)
