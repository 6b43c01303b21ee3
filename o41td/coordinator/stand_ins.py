"""Stand-ins: which rows take the place of those that cannot be had, where `on_bad_data` is "replace".

The k-th stand-in of row r of unit u, k = 1, 2, …, is row (r + shift) mod rows(v) of unit v of the same source, where v
and shift are drawn by hash from (seed, stage, source, u, k). The first of them that can be had is taken. So what stands
in for a row depends on the data alone, not on when it was decoded, by whom or beside what: every rank and every later
run gets the same. Neighbours have neighbouring stand-ins, so a bad row group costs about one other.

The order is left as it is: a row's coordinate names the row that was planned, and the quarantine file says which rows
could not be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.block_table import Block
from o41td.coordinator.blocks import BlockPiece
from o41td.coordinator.events import BadRows, FoundBadRows
from o41td.error_records import error_from_record, error_to_record
from o41td.errors import BadDataBudgetError
from o41td.index import SourceIndex
from o41td.order import Purpose, hash_counters, stream_key

__all__ = ["Replacement", "StandIns"]

_REPLACEABLE = ("CorruptDataError", "MissingShardError", "NodeError", "ValueRefusedError", "WorkerCrashError")
"""Kinds of error that a stand-in helps; a shard that changed, say, would be replaced by others of another data set."""

_MAX_TRIES = 32

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What becomes of a block's bad rows.

    `pieces` are what to decode for the whole block, None where its bad rows stay bad, for the reasons in `bad`. `found`
    are rows of the source not known to be bad before.
    """

    pieces: tuple[BlockPiece, ...] | None
    bad: tuple[BadRows, ...]
    found: tuple[FoundBadRows, ...]


class StandIns:
    """Finds stand-ins for the rows of any block, and counts the rows of each source that are bad."""

    def __init__(self, sources: Sequence[Sequence[SourceIndex]], *, seed: int, budget: float) -> None:
        """`sources[stage]` are those of a stage; `budget` is the share of a source's rows that may be bad."""
        self._sources = sources
        self._seed = seed
        self._budget = budget
        self._bad: dict[tuple[int, int], dict[int, NDArray[np.bool_]]] = {}
        self._num_bad: dict[tuple[int, int], int] = {}
        self._over_budget: dict[tuple[int, int], dict[str, Any]] = {}  # why, of each source that is

    @property
    def num_bad_rows(self) -> int:
        """Rows of all sources that were found bad, each once."""
        return sum(self._num_bad.values())

    def prepare(self, block: Block) -> None:
        """Gives a block that was never decoded stand-ins for its rows that are known to be bad already."""
        index = self._index_of(block)
        name = index.stage, index.source
        if name in self._bad and name not in self._over_budget:
            block.tries = np.zeros(block.planned.num_rows, np.int64)
            pieces = self._pieces(block, index)
            if pieces is not None:
                block.pieces = pieces

    def replace(self, block: Block, bad: Sequence[BadRows]) -> Replacement:
        """Returns what to decode in the place of a block's bad rows, whose earlier stand-ins count as tried."""
        if any(rows.error["kind"] not in _REPLACEABLE for rows in bad):
            return Replacement(None, tuple(bad), ())
        index = self._index_of(block)
        if block.tries is None:
            block.tries = np.zeros(block.planned.num_rows, np.int64)
        unit, row = self._places(block, index)
        found: list[FoundBadRows] = []
        for rows in bad:
            found.extend(self._note(index, unit[rows.rows], row[rows.rows], rows.error))
        why = self._over_budget.get((index.stage, index.source))
        if why is not None:
            return Replacement(None, tuple(BadRows(rows.rows, why) for rows in bad), tuple(found))
        pieces = self._pieces(block, index)
        return Replacement(pieces, () if pieces is not None else tuple(bad), tuple(found))

    def _index_of(self, block: Block) -> SourceIndex:
        return self._sources[block.key.stage][block.key.source]

    def _pieces(self, block: Block, index: SourceIndex) -> tuple[BlockPiece, ...] | None:
        """Returns pieces that give the block no row known to be bad; None where none of a row's stand-ins is good."""
        assert block.tries is not None
        while int(block.tries.max()) <= _MAX_TRIES:
            unit, row = self._places(block, index)
            is_bad = self._known_bad(index, unit, row)
            if not is_bad.any():
                return _pieces_of(unit, row)
            block.tries[is_bad] += 1
        return None

    def _known_bad(self, index: SourceIndex, unit: IntArray, row: IntArray) -> NDArray[np.bool_]:
        is_bad = np.zeros(len(unit), np.bool_)
        of_source = self._bad[index.stage, index.source]
        for own in np.unique(unit).tolist():
            if own in of_source:
                chosen = unit == own
                is_bad[chosen] = of_source[own][row[chosen]]
        return is_bad

    def _places(self, block: Block, index: SourceIndex) -> tuple[IntArray, IntArray]:
        """Returns the unit, and the row in it, that each row of the block is to be decoded from."""
        tries = block.tries
        assert tries is not None
        pieces = block.planned.pieces
        counts = [piece.row_stop - piece.row_start for piece in pieces]
        unit = np.repeat([piece.unit for piece in pieces], counts)
        row = np.concatenate([np.arange(piece.row_start, piece.row_stop) for piece in pieces])
        for own, number in set(zip(unit[tries > 0].tolist(), tries[tries > 0].tolist(), strict=True)):
            chosen = (unit == own) & (tries == number)
            unit[chosen], row[chosen] = self._stand_in(index, own, row[chosen], number)
        return unit, row

    def _stand_in(self, index: SourceIndex, unit: int, row: IntArray, number: int) -> tuple[int, IntArray]:
        """Returns the `number`-th stand-in of rows of a unit: a unit, and rows in it."""
        key = stream_key(self._seed, Purpose.STAND_IN, index.stage, index.source, unit)
        which, shift = hash_counters(key, np.array([2 * number, 2 * number + 1], np.uint64)).tolist()
        filled = np.flatnonzero(index.unit_rows)
        other = int(filled[which % len(filled)])
        num_rows = int(index.unit_rows[other])
        return other, (row + shift % num_rows) % num_rows

    def _note(self, index: SourceIndex, unit: IntArray, row: IntArray, error: dict[str, Any]) -> list[FoundBadRows]:
        """Notes bad rows of a source; returns those that are new."""
        name = index.stage, index.source
        of_source = self._bad.setdefault(name, {})
        found = []
        for own in np.unique(unit).tolist():
            rows = np.unique(row[unit == own])
            known = of_source.setdefault(own, np.zeros(int(index.unit_rows[own]), np.bool_))
            new = rows[~known[rows]]
            known[rows] = True
            self._num_bad[name] = self._num_bad.get(name, 0) + len(new)
            if len(new):
                found.append(FoundBadRows(index.stage, index.source, own, new, error))
            if self._num_bad[name] > self._budget * index.num_rows and name not in self._over_budget:
                self._over_budget[name] = self._budget_error(index, error)
        return found

    def _budget_error(self, index: SourceIndex, error: dict[str, Any]) -> dict[str, Any]:
        """Returns what ends the stream, `error` being the one with which the budget was exceeded."""
        num_bad, last = self._num_bad[index.stage, index.source], error_from_record(error)
        detail = (
            f"{num_bad} of the {index.num_rows} rows of this source cannot be had, more than the share of "
            f"{self._budget:g} that may be replaced; the last reason: {last}"
        )
        return error_to_record(BadDataBudgetError(detail, source=index.name))


def _pieces_of(unit: IntArray, row: IntArray) -> tuple[BlockPiece, ...]:
    """Returns the pieces that give a block these rows in this order."""
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(unit) != 0) | (np.diff(row) != 1)]))
    stops = [*starts[1:].tolist(), len(unit)]
    return tuple(
        BlockPiece(int(unit[start]), int(row[start]), int(row[stop - 1]) + 1, start)
        for start, stop in zip(starts.tolist(), stops, strict=True)
    )
