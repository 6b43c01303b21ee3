"""Where a field's rows go in a slot: side by side, or each to a place of its own.

A shuffled block's rows are laid down in the order in which they will leave, so they are scattered as they are written:
the decoded values are in the cache then, and nothing is copied once more. What has to be worked on in place (nulls
filled in, values checked one by one) is done beside the slot first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SlotRows", "order_of"]

_GATHERED_ITEM_BYTES = 4
"""Items up to this size are taken from where they are in half the time in which they are put where they go."""


def order_of(places: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Returns the row at each of the first places, where all of them are taken: int64 [rows]; else None."""
    num_rows = len(places)
    if not num_rows or places.max() != num_rows - 1:
        return None  # places are distinct, so those of n rows are the first n if none is beyond
    order = np.empty(num_rows, np.int64)
    order[places] = np.arange(num_rows)
    return order


@dataclass(frozen=True, slots=True)
class SlotRows:
    """So many rows of one field: row i is `array[places[i]]`, or `array[i]` where `places` is None.

    `array` is [n, *shape], C-contiguous, and of just these rows where `places` is None; `places` is int64 [rows].
    `order`, where it is given, says the same the other way round: `array[i]` is row `order[i]`, and no place is beyond.
    """

    array: NDArray[Any]
    places: NDArray[np.int64] | None = None
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.array) if self.places is None else len(self.places)

    @property
    def flat(self) -> SlotRows:
        """The same rows with one axis behind the first."""
        flat = self.array.reshape(len(self.array), -1)
        assert np.may_share_memory(flat, self.array), "a slot's rows are C-contiguous"
        return SlotRows(flat, self.places)

    def part(self, start: int, stop: int) -> SlotRows:
        """Rows [start, stop)."""
        if self.places is None:
            return SlotRows(self.array[start:stop])
        if start == 0 and stop == len(self.places):
            return self
        return SlotRows(self.array, self.places[start:stop])

    def columns(self, start: int, stop: int) -> SlotRows:
        """Columns [start, stop) of every row, where rows have one axis."""
        return SlotRows(self.array[:, start:stop], self.places)

    def put(self, values: Any) -> None:
        """Writes `values`, [rows, *shape] or one value for all, cast to the field's dtype as they come."""
        if self.places is None:
            np.copyto(self.array, values, casting="unsafe")
        elif self.order is not None and self._is_narrow(values):
            np.take(values, self.order, out=self.array[: len(self.order)], mode="clip")
        else:
            self.array[self.places] = values

    def _is_narrow(self, values: Any) -> bool:
        """Whether values are scalars of the field's own dtype, and small."""
        is_small = self.array.ndim == 1 and self.array.itemsize <= _GATHERED_ITEM_BYTES
        return is_small and isinstance(values, np.ndarray) and values.dtype == self.array.dtype

    @contextmanager
    def side_by_side(self) -> Iterator[NDArray[Any]]:
        """Lends an array [rows, *shape] to fill; its rows are then where they belong."""
        if self.places is None:
            yield self.array
        else:
            lent = np.empty((len(self.places), *self.array.shape[1:]), self.array.dtype)
            yield lent
            self.array[self.places] = lent
