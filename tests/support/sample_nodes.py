"""Nodes for tests: small, and each with something to see from outside."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from o41td.nodes import Node, Span


class Counting(Node):
    """A source of the numbers from 0 on, in the column `id`; it notes what it was asked for in `asked`."""

    def __init__(self, num_rows: int = 100, version: str | None = "v1") -> None:
        self.num_rows = num_rows
        self.stated = version

    @cached_property
    def asked(self) -> list[Span]:
        return []

    @property
    def version(self) -> str | None:
        return self.stated

    def forward(self, batch: Span) -> pa.Table:
        self.asked.append(batch)
        return pa.table({"id": pa.array(range(batch.at, batch.stop), pa.int64())})


class Scale(Node):
    """Adds the column `scaled`: `id` times a factor."""

    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def forward(self, batch: pa.RecordBatch) -> Any:
        return batch.append_column("scaled", pc.multiply(batch["id"], self.factor))


class Watched(Node):
    """Adds `seen`, the text of `id`, and notes in `calls` how many rows each call had."""

    @cached_property
    def calls(self) -> list[int]:
        return []

    def forward(self, batch: pa.RecordBatch) -> Any:
        self.calls.append(batch.num_rows)
        return pa.table({"id": batch["id"], "seen": pc.cast(batch["id"], pa.string())})


class Leaving(Node):
    """Ends the process that runs it, as a crash in somebody's native code does."""

    def forward(self, batch: Any) -> Any:
        os._exit(9)


class Dropping(Node):
    """Loses the last row."""

    def forward(self, batch: pa.RecordBatch) -> Any:
        return batch.slice(0, max(0, batch.num_rows - 1))


class NodeTrouble(Exception):
    """What `Failing` raises."""


class Failing(Node):
    """Raises for rows with an `id` of `bad` or more."""

    def __init__(self, bad: int = 0) -> None:
        self.bad = bad

    def forward(self, batch: pa.RecordBatch) -> Any:
        worst = pc.max(batch["id"]).as_py()
        if worst is not None and worst >= self.bad:
            raise NodeTrouble(f"id {worst} is too large")
        return batch
