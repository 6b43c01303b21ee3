"""Plans that read columns as they are: what nodes get of a shard, which come before any field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from o41td.errors import SchemaError
from o41td.fields import FieldPlan
from o41td.projection import PlanMemory, ProjectionPlan, leaf_count

__all__ = ["WholeColumns"]


class WholeColumns(PlanMemory):
    """Plans of all leaves of some columns, whatever the fields.

    Args:
        names: The columns; all if None.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self._names = names

    def plan_of(
        self,
        schema: Any,
        fields: Sequence[FieldPlan],  # noqa: ARG002 - nodes come before fields
        *,
        source: str | None = None,
        shard: str | None = None,
    ) -> ProjectionPlan:
        """Returns the plan of all leaves of the columns."""
        missing = [name for name in self._names or () if name not in schema.names]
        if missing:
            why = f"column {missing[0]!r} is missing; there are {', '.join(schema.names)}"
            raise SchemaError(why, source=source, shard=shard, column=missing[0])
        leaves: list[int] = []
        first = 0
        for column in schema:
            count = leaf_count(column.type)
            if self._names is None or column.name in self._names:
                leaves.extend(range(first, first + count))
            first += count
        return ProjectionPlan(fields=(), column_indices=tuple(leaves), num_leaves=first)
