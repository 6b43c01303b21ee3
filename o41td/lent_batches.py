"""Batches that lie in one piece in the arena, and are handed out as they lie there.

To copy a batch costs the training process most of what it pays for one. Where a batch's rows follow each other in one
slot (a stream that is not shuffled, or is within blocks larger than the shuffle's buffer), nobody but the one who gets
it will read or write them again, so the memory can be the batch's as well as a copy could: it is writable, and its
until nothing can reach it any more (see `loans`). Only then may the slot be filled anew: the coordinator is told which
slots are held, and keeps them out of use.

Somebody who keeps batches would so keep slots, of which there are few. Batches lie in at most so many slots at once as
the coordinator allows for, of those that it can do without; whatever comes while they are held is copied as ever. So
who keeps one batch for good keeps one slot, and who keeps all of them gets copies.

What a copy would do of itself is seen to here:

* A forked child has what its parent held at that moment, unchanged by what the parent does later: what is held is set
  aside before a fork, and in the child private pages with the same content take the arena's place.
* A batch that is kept when its loader is gone keeps its own pages, and not the arena: the others are given back.

Lent are batches of a loader with one consumer, which has no others' rows in its arena, and of sources that are not
resident: their rows are handed out again in each epoch, and a batch may be written to.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from o41td.loans import Loan, Loans, interface_of
from o41td.shm.layout import ArenaLayout
from o41td.shm.pages import address_of, make_private, remove_pages
from o41td.shm.segment import MappedArena

__all__ = ["LentBatches"]


class _Lent(NamedTuple):
    """Where a batch lies: its first arena row, and how many follow."""

    first_row: int
    num_rows: int


class LentBatches:
    """What a consumer's batches hold of its loader's arena.

    `lend` is called by whoever assembles, one at a time; all else from any thread.

    Attributes:
        most_slots: For each stage, in how many slots batches may lie at once; empty as long as nobody has said.
        told: The slots of which the coordinator was told at last that they are held.
    """

    def __init__(self, arena: MappedArena) -> None:
        """Lends what `arena` holds, which is mapped writable."""
        assert arena.writable, "batches are writable"
        self.most_slots: Sequence[int] = ()
        self.told: frozenset[int] = frozenset()
        self._layout: ArenaLayout = arena.layout
        self._bytes = arena.bytes()  # with it the mapping stays, for as long as this or a loan does
        self._interface = interface_of(address_of(self._bytes), len(self._bytes))
        self._shapes: list[tuple[str, tuple[int, ...], np.dtype[Any], int, int]] = []  # of a batch as the last was
        self._rows_of_shapes = -1
        self._of_slot: dict[int, Loans[_Lent]] = {}  # replaced, never changed: any thread may go through it
        self._newest_slot = -1
        self._copies: dict[tuple[int, int], bytes] = {}
        _EVERY[id(self)] = self

    def lend(self, stage: int, first_row: int, num_rows: int) -> dict[str, NDArray[Any]] | None:
        """Returns arena rows from `first_row` on as the arrays of a batch of `stage`, None where they must be copied.

        `[num_rows, *shape]` each, writable and C-contiguous.
        """
        slot = first_row // self._layout.block_rows
        most = self.most_slots[stage] if stage < len(self.most_slots) else 0
        if not most:
            return None
        if slot != self._newest_slot:
            held = self.held_slots()
            if slot not in held:
                if len(held) >= most:
                    return None
                self._of_slot = {each: self._of_slot[each] for each in held} | {slot: Loans()}
            self._newest_slot = slot
        loan = Loan(self, self._interface)
        self._of_slot[slot].note(loan, _Lent(first_row, num_rows))
        if num_rows != self._rows_of_shapes:
            self._shapes = [
                (field.name, (num_rows, *field.shape), np.dtype(field.dtype), field.offset, field.row_bytes)
                for field in self._layout.fields
            ]
            self._rows_of_shapes = num_rows
        whole, make = np.asarray(loan), np.ndarray
        return {
            name: make(shape, dtype, whole, offset + first_row * row_bytes)
            for name, shape, dtype, offset, row_bytes in self._shapes
        }

    def held_slots(self) -> frozenset[int]:
        """Returns the slots in which batches lie."""
        return frozenset([slot for slot, loans in self._of_slot.items() if loans.is_any_out])

    def _held(self) -> list[_Lent]:
        """Returns where batches lie, in the order of the arena."""
        return sorted([lent for loans in self._of_slot.values() for lent in loans.out()])

    @property
    def is_return_due(self) -> bool:
        """Whether a slot of which the coordinator was told that it is held is not any more.

        That in which the last batch lies is not looked at: the next one likely does too, and a look takes microseconds.
        """
        others = self.told - {self._newest_slot}
        return bool(others) and not others <= self.held_slots()

    def retire(self) -> None:
        """Gives back what of the arena no batch holds. Nobody else uses it by now, and nothing more is lent."""
        self.most_slots = ()
        self._newest_slot = -1
        held = self._held()
        if not held:
            return  # all of it goes with the mapping
        address, free_from = address_of(self._bytes), 0
        for lent in [*held, _Lent(self._layout.num_rows, 0)]:
            for field in self._layout.fields:
                start = address + field.offset + free_from * field.row_bytes
                remove_pages(start, (lent.first_row - free_from) * field.row_bytes)
            free_from = lent.first_row + lent.num_rows

    # ---- forks -------------------------------------------------------------------------------------------------------

    def set_aside(self) -> None:
        """Copies what is held: the parent's half, before a fork."""
        self._copies = {place: ctypes.string_at(*place) for place in self._held_places()}

    def forget_copies(self) -> None:
        """Drops what was set aside, in the parent."""
        self._copies = {}

    def make_private(self) -> None:
        """Makes what is held the child's own, behind a fork."""
        set_aside, self._copies = self._copies, {}
        self.most_slots = ()
        # What another thread was lent meanwhile, or an interrupt left out, is taken as it is now.
        copies = {place: set_aside.get(place) or ctypes.string_at(*place) for place in self._held_places()}
        if copies:
            make_private(address_of(self._bytes), len(self._bytes))
            for (address, num_bytes), content in copies.items():
                ctypes.memmove(address, content, num_bytes)

    def _held_places(self) -> list[tuple[int, int]]:
        """Returns where what is held lies, by address and length in bytes."""
        start = address_of(self._bytes)
        return [
            (start + field.offset + lent.first_row * field.row_bytes, lent.num_rows * field.row_bytes)
            for lent in self._held()
            for field in self._layout.fields
        ]


_EVERY: weakref.WeakValueDictionary[int, LentBatches] = weakref.WeakValueDictionary()


def _every() -> list[LentBatches]:
    """All there are, also while another thread makes one."""
    return [lent for reference in _EVERY.valuerefs() if (lent := reference()) is not None]


def _before_fork() -> None:
    for lent in _every():
        lent.set_aside()


def _after_fork_in_parent() -> None:
    for lent in _every():
        lent.forget_copies()


def _after_fork_in_child() -> None:
    for lent in _every():
        lent.make_private()
    _EVERY.clear()  # what they hold is private now, as everything in a fork of the child


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
