"""The block table: every block that some rank still needs, its state, and the slot that holds it.

Handles are small integers, used again once a block is dropped, so `arena_bases` stays a small array through which a
batch's (handle, row) pairs become arena rows in one vectorised look-up.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.coordinator.blocks import BlockPiece, PlannedBlock
from o41td.coordinator.events import BadRows, BlockKey, PlannedBatch

__all__ = ["Block", "BlockState", "BlockTable", "InvalidTransition"]

_NO_ROWS = np.empty(0, np.int64)
_rows_of = attrgetter("rows")
_burst_of = attrgetter("burst")
_place_of = attrgetter("place")


class InvalidTransition(AssertionError):
    """An event that cannot happen in a block's state: a bug, told with the block's story."""


class BlockState(enum.Enum):
    """Where a block stands; `_TRANSITIONS` has every way from one state to another, and there is no other.

              ┌────── worker lost, evict ──────┐
              ▼                                │
    claim ─► WAITING ── issue ─► ISSUED ── decoded ─► DECODED
              │                   │  ▲                   │
            refuse ◄── refuse ────┘  │ claim             │
              ▼                 drop │                   │
           REFUSED                ▼  │                   │
              │                ORPHANED ── done, lost    │
              └── drop ──► DROPPED ◄──────┴──── drop ────┘
    """

    WAITING = "waiting"
    ISSUED = "issued"
    DECODED = "decoded"
    REFUSED = "refused"
    ORPHANED = "orphaned"  # issued, but nobody needs it any more; its slot is free once the worker is done with it
    DROPPED = "dropped"


_TRANSITIONS: dict[tuple[BlockState, str], BlockState] = {
    (BlockState.WAITING, "issue"): BlockState.ISSUED,
    (BlockState.WAITING, "drop"): BlockState.DROPPED,
    (BlockState.WAITING, "refuse"): BlockState.REFUSED,
    (BlockState.ISSUED, "decoded"): BlockState.DECODED,
    (BlockState.ISSUED, "refuse"): BlockState.REFUSED,
    (BlockState.ISSUED, "decode anew"): BlockState.WAITING,
    (BlockState.ISSUED, "worker lost"): BlockState.WAITING,
    (BlockState.ISSUED, "drop"): BlockState.ORPHANED,
    (BlockState.ORPHANED, "claim"): BlockState.ISSUED,
    (BlockState.ORPHANED, "decoded"): BlockState.DROPPED,
    (BlockState.ORPHANED, "refuse"): BlockState.DROPPED,
    (BlockState.ORPHANED, "worker lost"): BlockState.DROPPED,
    (BlockState.DECODED, "evict"): BlockState.WAITING,
    (BlockState.DECODED, "drop"): BlockState.DROPPED,
    (BlockState.REFUSED, "drop"): BlockState.DROPPED,
}


@dataclass(eq=False)
class Block:
    """One block's entry.

    `claims` counts the plans that may still need rows of it, `kills` the workers that died on it. A refused block has
    an `error`; a decoded one may have `bad` rows. `pieces` are what is decoded: the planned ones, or with stand-ins for
    rows that cannot be had, of which `tries` counts how many each row has had. `lost` holds the errors of pieces that
    kill whoever decodes them. `is_lent`: a batch may have been written to where it lies in the slot.
    """

    handle: int
    key: BlockKey
    planned: PlannedBlock
    state: BlockState = BlockState.WAITING
    slot: int | None = None
    worker: int | None = None
    kills: int = 0
    claims: int = 0
    error: dict[str, Any] | None = None
    bad: tuple[BadRows, ...] = ()
    pieces: tuple[BlockPiece, ...] = ()
    tries: NDArray[np.int64] | None = None
    current_piece: int | None = None
    is_lent: bool = False
    lost: dict[int, dict[str, Any]] = field(default_factory=dict)
    story: deque[tuple[BlockState, str, BlockState, int | None, int | None]] = field(
        default_factory=lambda: deque(maxlen=12)
    )

    def __post_init__(self) -> None:
        self.pieces = self.planned.pieces

    @cached_property
    def rows_in_slot(self) -> NDArray[np.int64]:
        """Which row of the block each row of its slot is; worked out where a bad row must be found."""
        return self.planned.rows_in_slot()

    def told(self) -> str:
        """Returns the block's last transitions, for people."""
        told = [
            f"{a.value} -{event}-> {b.value} (slot {slot}, worker {worker})" for a, event, b, slot, worker in self.story
        ]
        return f"block {self.handle} {self.key}: {'; '.join(told)}"


class BlockTable:
    """All blocks by handle and by key; handles of those not decoded, of those that never will be, of those in part."""

    def __init__(self, block_rows: int) -> None:
        """`block_rows` is the number of arena rows of a slot."""
        self.block_rows = block_rows
        self._blocks: dict[int, Block] = {}
        self._by_key: dict[BlockKey, Block] = {}
        self._free_handles: list[int] = []
        self.undecoded: set[int] = set()
        self.refused: set[int] = set()
        self.tainted: set[int] = set()  # decoded, but for bad rows
        self.arena_bases: NDArray[np.int64] = np.full(64, -1, np.int64)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def __getitem__(self, handle: int) -> Block:
        return self._blocks[handle]

    def claim(self, key: BlockKey, planned: PlannedBlock) -> int:
        """Returns the handle of the block, which stays valid until every claim is released."""
        block = self._by_key.get(key)
        if block is None:
            handle = self._free_handles.pop() if self._free_handles else len(self._blocks)
            if handle >= len(self.arena_bases):
                self.arena_bases = np.concatenate([self.arena_bases, np.full(len(self.arena_bases), -1, np.int64)])
            block = Block(handle=handle, key=key, planned=planned)
            self._blocks[handle] = self._by_key[key] = block
            self.undecoded.add(handle)
        elif block.state is BlockState.ORPHANED:
            self.move(block, "claim")
        block.claims += 1
        return block.handle

    def move(self, block: Block, event: str) -> None:
        """Makes the transition that `event` means in the block's state; a dropped block's handle will name another.

        Raises:
            InvalidTransition: The event is impossible in this state.
        """
        target = _TRANSITIONS.get((block.state, event))
        if target is None:
            raise InvalidTransition(f"{event!r} while {block.state.value}: {block.told()}")
        block.story.append((block.state, event, target, block.slot, block.worker))
        block.state = target
        if target is BlockState.DECODED:
            self.undecoded.discard(block.handle)
            if block.bad:
                self.tainted.add(block.handle)
        elif target is BlockState.REFUSED:
            self.refused.add(block.handle)
        elif target is BlockState.DROPPED:
            del self._blocks[block.handle], self._by_key[block.key]
            self._free_handles.append(block.handle)
            self.undecoded.discard(block.handle)
            self.refused.discard(block.handle)
            self.tainted.discard(block.handle)
        else:
            self.undecoded.add(block.handle)
            self.tainted.discard(block.handle)

    def error_in(self, batch: PlannedBatch) -> dict[str, Any] | None:
        """Returns the error of the first row of a batch that cannot be had, None where every row can, or may yet."""
        first: tuple[int, dict[str, Any]] | None = None
        for handle in batch.blocks:
            if handle not in self.refused and handle not in self.tainted:
                continue
            block = self._blocks[handle]
            places = batch.places()
            at = np.flatnonzero(places.handles == handle)
            if block.error is not None:
                hits = [(at, block.error)]
            else:
                rows = block.rows_in_slot[places.rows[at]]
                hits = [(at[np.isin(rows, bad.rows)], bad.error) for bad in block.bad]
            for hit, error in hits:
                if len(hit) and (first is None or int(hit[0]) < first[0]):
                    first = int(hit[0]), error
        return None if first is None else first[1]

    def arena_rows(self, batches: Sequence[PlannedBatch]) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the arena rows of batches, all of whose blocks are decoded.

        Of each batch the first, where the others follow it, else -1; and all rows of the latter end to end: int64.
        """
        bases = self.arena_bases
        first_rows: list[int] = []
        parts: list[NDArray[np.int64]] = []
        for burst, of_burst in groupby(map(_rows_of, batches), _burst_of):
            if burst is None:
                first_rows.extend([int(bases[handle]) + first for handle, first in of_burst])
                continue
            places = list(map(_place_of, of_burst))
            first_rows.extend([-1] * len(places))
            start, stop = places[0], places[-1] + 1
            at = slice(start, stop) if stop - start == len(places) else places
            parts.append((bases[burst.handles][burst.block[at]] + burst.rows[at]).ravel())
        if not parts:
            return first_rows, _NO_ROWS
        return first_rows, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def note_lent(self, batches: Sequence[PlannedBatch]) -> None:
        """Notes of which blocks the consumer of these batches may hold, and write to, some that lie in one piece."""
        for burst, of_burst in groupby(map(_rows_of, batches), _burst_of):
            for run in of_burst if burst is None else ():
                self._blocks[run.handle].is_lent = True

    def hold(self, block: Block, slot: int) -> None:
        """Notes that `slot` is this block's."""
        block.slot = slot
        self.arena_bases[block.handle] = slot * self.block_rows

    def vacate(self, block: Block) -> int:
        """Returns the slot that the block no longer holds; to be called before the transition that takes it away."""
        assert block.slot is not None, f"no slot to give back: {block.told()}"
        slot, block.slot, block.is_lent = block.slot, None, False
        self.arena_bases[block.handle] = -1
        return slot
