"""Decoded tables into the fixed-shape rows of a slot: convert, check, cut, pad, replace nulls.

Of everything that is refused in a table, the error names the earliest row, whatever column it is in, so it does not
depend on how rows were split into blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.errors import ValueRefusedError
from o41td.fields import field_bytes
from o41td.projection import ProjectionPlan
from o41td.workers.column_writer import ColumnWriter
from o41td.workers.refusals import Refusals
from o41td.workers.slot_rows import TAKEN_ROW_BYTES, Placement, SlotRows

__all__ = ["Projector", "RefusedRows"]

_MANY_SCALARS = 8
"""Scalar fields for which it is worth it to turn places round; one of small arrays is as well."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of a table that cannot be had: int64, ascending; and the error of the earliest."""

    rows: NDArray[np.int64]
    error: ValueRefusedError


class Projector:
    """Writes the rows of decoded tables into a slot.

    Args:
        plan: The plan of the shard that the tables come from.
    """

    def __init__(self, plan: ProjectionPlan) -> None:
        self._columns = tuple(ColumnWriter(item) for item in plan.fields)
        fields = [item.field for item in plan.fields]
        self._turns_round = sum(not field.shape for field in fields) >= _MANY_SCALARS or any(
            field.shape and field_bytes(field) <= TAKEN_ROW_BYTES for field in fields
        )
        self._schema: Any = None
        self._places: list[int] = []

    def write(self, table: Any, out: Mapping[str, NDArray[Any]], **options: Any) -> None:
        """Writes a table as `write_fitting` does, where every row has to fit.

        Raises:
            ValueRefusedError: A value does not fit; the earliest such row is named. The other rows are written.
            SchemaError: As for `write_fitting`.
        """
        refused = self.write_fitting(table, out, **options)
        if refused is not None:
            raise refused.error

    def write_fitting(
        self,
        table: Any,
        out: Mapping[str, NDArray[Any]],
        *,
        places: NDArray[np.int64] | Placement | None = None,
        row_offset_in_shard: int = 0,
        shard_rows: NDArray[np.int64] | None = None,
        row_group: int | None = None,
        shard: str | None = None,
        source: str | None = None,
    ) -> RefusedRows | None:
        """Writes row i of the table into row `places[i]`, by default row i, of every field's array.

        Args:
            table: A `pyarrow.Table` or `RecordBatch` with at least the planned columns.
            out: By field name an array [n, *shape] of the field's dtype, C-contiguous, with room for every place.
            places: Where each row goes: int64 [table.num_rows], distinct; or a `Placement` of as many rows.
            row_offset_in_shard: The row of the shard that is the table's first.
            shard_rows: The row of the shard that each of the table's is, where they do not follow each other.
            row_group: For errors.
            shard: For errors.
            source: For errors.

        Returns:
            The rows with a value that does not fit, of which `out` holds anything; None if there are none.

        Raises:
            SchemaError: The table lacks a column of the plan, or has it with another type.
        """
        if self._schema is None or not table.schema.equals(self._schema):
            self._places = [column.place_in(table.schema) for column in self._columns]
            self._schema = table.schema
        refusals = Refusals()
        num_rows = table.num_rows
        placement = Placement(places=places) if isinstance(places, np.ndarray) else places
        if placement is not None and self._turns_round:
            placement.turn_round()
        for column, place in zip(self._columns, self._places, strict=True):
            region = out[column.name]
            rows = SlotRows(region[:num_rows] if placement is None else region, placement)
            column.write(table.column(place), rows, refusals)
        if refusals.row is None:
            return None
        error = ValueRefusedError(
            refusals.why,
            source=source,
            shard=shard,
            row_group=row_group,
            row=row_offset_in_shard + refusals.row if shard_rows is None else int(shard_rows[refusals.row]),
            column=refusals.column,
            value=refusals.value,
            advice=refusals.advice,
        )
        return RefusedRows(np.unique(np.concatenate(refusals.rows)), error)
