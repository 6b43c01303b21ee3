"""Where a field's rows go in a slot: side by side, or each to a place of its own.

A shuffled block's rows are laid down in the order in which they will leave, so they are moved as they are written: the
decoded values are in the cache then, and nothing is copied once more. What has to be worked on in place (nulls filled
in, values checked one by one) is done beside the slot first.

Rows are moved in one of two ways: each put where it goes, or the row of each place taken from where it is. Taking is
faster for what is small (measured here, in ns: a 4-byte value 1.1 for 2.4, 16 floats 4 to 6 for 15 to 49, 2 KiB 290 to
570 for 430 to 700), but not for single values of 8 bytes (9 for 6, as other fields go through the cache as well), nor
for rows of 8 KiB. It must be known which row goes to a place, and places must be taken one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TAKEN_ROW_BYTES", "Placement", "SlotRows"]

TAKEN_ROW_BYTES = 2048
"""Rows of several values up to this size are taken rather than put."""
_TAKEN_ITEM_BYTES = 4
"""And so are single values up to this one."""

IntArray = NDArray[np.int64]


class Placement:
    """To which place each of some rows goes, said one way round or the other.

    Not safe for use by several threads at once.
    """

    __slots__ = ("_order", "_places")

    def __init__(self, *, places: IntArray | None = None, order: IntArray | None = None) -> None:
        """Row i goes to `places[i]` (distinct); or, the other way round, row `order[p]` goes to place p of as many."""
        assert places is not None or order is not None
        self._places = places
        self._order = order

    def __len__(self) -> int:
        rows = self._places if self._order is None else self._order
        assert rows is not None
        return len(rows)

    def __getitem__(self, rows: slice | IntArray) -> Placement:
        """Where some of the rows go: a stretch of them, or those of these numbers in this order."""
        if isinstance(rows, slice) and rows.indices(len(self)) == (0, len(self), 1):
            return self
        return Placement(places=self.places[rows])

    @property
    def places(self) -> IntArray:
        """The place of each row: int64 [rows]."""
        if self._places is None:
            assert self._order is not None
            self._places = _inverse_of(self._order)
        return self._places

    @property
    def order(self) -> IntArray | None:
        """The row of each place, where that is known and the places are the first ones: int64 [rows]."""
        return self._order

    def turn_round(self) -> None:
        """Works `order` out, where the places are the first ones."""
        if self._order is None and len(self.places) and self.places.max() == len(self.places) - 1:
            self._order = _inverse_of(self.places)  # places are distinct: those of n rows are the first n


def _inverse_of(permutation: IntArray) -> IntArray:
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


@dataclass(frozen=True, slots=True)
class SlotRows:
    """So many rows of one field: row i is that of place i in `array`, or of the place that `placement` says.

    `array` is [n, *shape], C-contiguous, and of just these rows where `placement` is None.
    """

    array: NDArray[Any]
    placement: Placement | None = None

    def __len__(self) -> int:
        return len(self.array) if self.placement is None else len(self.placement)

    @property
    def places(self) -> IntArray:
        """The place of each row in `array`: int64 [rows]."""
        return np.arange(len(self), dtype=np.int64) if self.placement is None else self.placement.places

    @property
    def flat(self) -> SlotRows:
        """The same rows with one axis behind the first."""
        flat = self.array.reshape(len(self.array), -1)
        assert np.may_share_memory(flat, self.array), "a slot's rows are C-contiguous"
        return SlotRows(flat, self.placement)

    def part(self, start: int, stop: int) -> SlotRows:
        """Rows [start, stop)."""
        if self.placement is None:
            return SlotRows(self.array[start:stop])
        return SlotRows(self.array, self.placement[start:stop])

    def columns(self, start: int, stop: int) -> SlotRows:
        """Columns [start, stop) of every row, where rows have one axis."""
        return SlotRows(self.array[:, start:stop], self.placement)

    def put(self, values: Any) -> None:
        """Writes `values`, [rows, *shape] or one value for all, cast to the field's dtype as they come."""
        if self.placement is None:
            np.copyto(self.array, values, casting="unsafe")
            return
        order = self.placement.order
        if order is not None and self._can_take(values):
            np.take(values, order, axis=0, out=self.array[: len(order)], mode="clip")
        else:
            self.array[self.placement.places] = values

    def _can_take(self, values: Any) -> bool:
        """Whether values are rows of the field's own dtype and shape, and better taken than put."""
        array = self.array
        if not (isinstance(values, np.ndarray) and values.dtype == array.dtype and values.shape[1:] == array.shape[1:]):
            return False
        if array.ndim == 1:
            return array.itemsize <= _TAKEN_ITEM_BYTES
        return array.itemsize * prod(array.shape[1:]) <= TAKEN_ROW_BYTES and array.flags.c_contiguous

    @contextmanager
    def side_by_side(self) -> Iterator[NDArray[Any]]:
        """Lends an array [rows, *shape] to fill; its rows are then where they belong."""
        if self.placement is None:
            yield self.array
        else:
            lent = np.empty((len(self), *self.array.shape[1:]), self.array.dtype)
            yield lent
            self.put(lent)
