"""What is known of Parquet shards: parsed footers and how their columns become fields, kept for the next reader."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from o41td.fields import FieldPlan
from o41td.memory_costs import FACTS_BYTES
from o41td.projection import PlanMemory, ProjectionPlan
from o41td.workers.flat_lists import FlatLists
from o41td.workers.footer import check_leaves
from o41td.workers.project import Projector
from o41td.workers.shard_file import ShardIdentity

__all__ = ["FactsShelf", "ShardFacts", "facts_of"]


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What a reader has learned of a shard: its identity, its parsed footer, and how its columns become fields.

    `flat_lists` knows which of its columns are decoded without their levels.
    """

    identity: ShardIdentity
    metadata: Any
    plan: ProjectionPlan
    projector: Projector
    flat_lists: FlatLists


def facts_of(
    identity: ShardIdentity,
    metadata: Any,
    schema: Any,
    fields: Sequence[FieldPlan],
    *,
    source: str | None,
    shard: str,
    plans: PlanMemory,
) -> ShardFacts:
    """Returns what a shard's footer says for some fields.

    Raises:
        SchemaError: Its columns do not give the fields.
        CorruptDataError: Its footer contradicts itself.
    """
    plan = plans.plan_of(schema, fields, source=source, shard=shard)
    check_leaves(plan, metadata, source=source, shard=shard)
    return ShardFacts(identity, metadata, plan, Projector(plan), FlatLists(metadata, schema, plan.column_indices))


class FactsShelf:
    """Facts of shards by (source, shard); footers of wide shards are large, so the oldest make room.

    Called by: any thread.
    """

    def __init__(self, limit_bytes: int = FACTS_BYTES) -> None:
        """`limit_bytes` is what footers may come to, by their size in the file; the last one is always kept."""
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._facts: OrderedDict[tuple[int, str], ShardFacts] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, str]) -> ShardFacts | None:
        """Returns what is known of a shard."""
        return self._facts.get(key)

    def put(self, key: tuple[int, str], facts: ShardFacts) -> None:
        """Keeps a shard's facts."""
        with self._lock:
            before = self._facts.pop(key, None)
            self._bytes += facts.metadata.serialized_size
            self._bytes -= 0 if before is None else before.metadata.serialized_size
            self._facts[key] = facts
            while self._bytes > self._limit_bytes and len(self._facts) > 1:
                self._bytes -= self._facts.popitem(last=False)[1].metadata.serialized_size
