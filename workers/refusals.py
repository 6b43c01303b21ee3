"""What is refused of a table while it is written: which rows, and of the earliest why."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Refusals", "ValuePlace"]


class Refusals:
    """All rows that were refused, and of the earliest why; of equal rows, the first field's."""

    __slots__ = ("advice", "column", "row", "rows", "value", "why")

    def __init__(self) -> None:
        self.row: int | None = None
        self.rows: list[NDArray[np.int64]] = []
        self.column = self.value = self.why = ""
        self.advice: str | None = None

    def add(self, rows: NDArray[np.int64], column: str, value: object, why: str, advice: str | None = None) -> None:
        """Notes refused rows, ascending; what else is said is of the first of them."""
        self.rows.append(rows)
        row = int(rows[0])
        if self.row is None or row < self.row:
            self.row, self.column, self.value, self.why, self.advice = row, column, str(value), why, advice


class ValuePlace:
    """Where values are in the table: turns their places into its rows.

    `owners` says which row of the chunk each value belongs to; None where values are rows.
    """

    __slots__ = ("_column", "_first_row", "_owners", "_refusals")

    def __init__(
        self, refusals: Refusals, column: str, first_row: int, *, owners: NDArray[np.int64] | None = None
    ) -> None:
        self._refusals = refusals
        self._column = column
        self._first_row = first_row
        self._owners = owners

    def of_rows(self, start: int, stop: int) -> ValuePlace:
        """The place of a part of this place's values."""
        if self._owners is None:
            return ValuePlace(self._refusals, self._column, self._first_row + start)
        return ValuePlace(self._refusals, self._column, self._first_row, owners=self._owners[start:stop])

    def of_items(self, counts: NDArray[np.int64]) -> ValuePlace:
        """The place of items, so many for each value of this place."""
        owners = np.arange(len(counts), dtype=np.int64) if self._owners is None else self._owners
        return ValuePlace(self._refusals, self._column, self._first_row, owners=np.repeat(owners, counts))

    def add(self, refused: NDArray[np.bool_], value: object, why: str, advice: str | None = None) -> None:
        """Notes that the values at some places are refused; what else is said is of the first of them."""
        rows = np.flatnonzero(refused)
        if self._owners is not None:
            rows = self._owners[rows]
        self._refusals.add(self._first_row + rows, self._column, value, why, advice)
