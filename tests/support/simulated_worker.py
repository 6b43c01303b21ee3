"""A worker that is not there: it takes orders, writes records into a list for an arena, answers late, and dies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from o41td.coordinator.events import (
    BadRows,
    BlockWasDecoded,
    BlockWasRefused,
    DecodeInto,
    Event,
    PieceWasBegun,
    WorkerExited,
)
from simulated_case import SimulatedCase

__all__ = ["FakeWorker"]


@dataclass
class FakeWorker:
    """A worker process.

    `orders` are those that it has not finished, `outbox` the messages on their way to the coordinator, which hears all
    of a dead worker's before it reaps it. `dead` says that it does nothing more.
    """

    number: int
    case: SimulatedCase
    arena: list[Any]
    ready: bool = False
    dead: bool = False
    orders: deque[DecodeInto] = field(default_factory=deque)
    outbox: deque[Event] = field(default_factory=deque)

    def take(self, order: DecodeInto) -> None:
        """Gets an order; from now on the slot holds nothing of worth."""
        self.orders.append(order)
        self._spoil(order)

    def work(self) -> None:
        """Finishes the oldest order, or dies of it."""
        order = self.orders[0]
        bad: list[BadRows] = []
        records: list[Any] = [None] * order.block.num_rows
        sources = self.case.stages[order.key.stage].unit_records[order.key.source]
        units: set[tuple[int, int, int]] = set()
        for number, piece in enumerate(order.pieces):
            if number in order.without:
                continue
            if order.careful:
                self.outbox.append(PieceWasBegun(self.number, order.handle, number))
            unit = (order.key.stage, order.key.source, piece.unit)
            if unit in self.case.deadly_units:
                self.dead = True
                return
            units.add(unit)
            stop = piece.block_row + piece.row_stop - piece.row_start
            if unit in self.case.bad_units:
                bad.append(BadRows(np.arange(piece.block_row, stop), self._error({unit})))
            else:
                records[piece.block_row : stop] = sources[piece.unit][piece.row_start : piece.row_stop]
        self.orders.popleft()
        if units & self.case.refused_units:  # the whole block cannot be had then
            whole = BadRows(np.arange(order.block.num_rows), self._error(units))
            self.outbox.append(BlockWasRefused(self.number, order.handle, (whole,)))
            return
        first = order.slot * self.case.block_rows
        in_slot = [records[row] for row in order.block.rows_in_slot().tolist()]
        self.arena[first : first + len(in_slot)] = in_slot
        self.outbox.append(BlockWasDecoded(self.number, order.handle, tuple(bad)))

    def _error(self, units: set[tuple[int, int, int]]) -> dict[str, Any]:
        return {"kind": "CorruptDataError", "fields": {"detail": "as told"}, "units": units}

    def die(self, luck: Random) -> None:
        """Stops at any point of its work: a careful one may have begun a piece."""
        self.dead = True
        order = self.orders[0] if self.orders else None
        if order is not None and order.careful and luck.random() < 0.7:
            begun = [number for number in range(len(order.pieces)) if number not in order.without]
            self.outbox.append(PieceWasBegun(self.number, order.handle, luck.choice(begun)))

    def last_breath(self, luck: Random) -> WorkerExited:
        """It is reaped; until now it may have written to any slot that it had."""
        for order in self.orders:
            self._spoil(order)
        cause, code = luck.choice([("SIGKILL", -9), ("SIGSEGV", -11), ("it exited", 0), ("it exited", 1)])
        return WorkerExited(self.number, cause, code)

    def _spoil(self, order: DecodeInto) -> None:
        first = order.slot * self.case.block_rows
        self.arena[first : first + self.case.block_rows] = [f"spoilt by {order.key}"] * self.case.block_rows
