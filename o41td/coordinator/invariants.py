"""What is true of a loader's state between events; checked after every one in tests and simulations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from o41td.coordinator.block_table import BlockState

if TYPE_CHECKING:
    from o41td.coordinator.state import LoaderState

__all__ = ["check_invariants"]


def check_invariants(state: LoaderState) -> None:
    """Checks slots, blocks, claims, queues and counts against each other.

    Raises:
        AssertionError: Something does not hold, with the story of the block it is about.
    """
    state.slots.validate()
    _check_blocks(state)
    for rank in state.ranks.values():
        assert rank.num_ungathered == len(rank.sent)
        assert rank.num_planned - rank.num_sent == len(rank.unsent)
        assert rank.unsent_rows == sum(len(batch.rows) for batch in rank.unsent)
        for batch in rank.sent:
            assert state.table.undecoded.isdisjoint(batch.blocks), f"batch {batch.number} was sent, but lacks a block"
        queued = rank.queued()
        for _, batch in rank.distances():
            for handle in state.table.undecoded.intersection(batch.blocks):
                block = state.table[handle]
                if block.state is BlockState.WAITING:
                    assert block in queued, f"batch {batch.number} lacks a block that is not queued: {block.told()}"


def _check_blocks(state: LoaderState) -> None:
    closes: list[int] = []
    for rank in state.ranks.values():
        for batch in (*rank.sent, *rank.unsent):
            closes.extend(batch.closes)
        closes.extend(rank.plan.open_handles())
    claims = Counter(closes)
    held: dict[int, int] = {}
    issued: dict[int, int | None] = {}
    for block in state.table:
        told = block.told
        has_slot = block.state in (BlockState.ISSUED, BlockState.ORPHANED, BlockState.DECODED)
        assert (block.slot is not None) == has_slot == (state.table.arena_bases[block.handle] >= 0), told()
        if block.slot is not None:
            assert held.setdefault(block.slot, block.handle) == block.handle, f"slot {block.slot} twice; {told()}"
        assert (block.claims > 0) == (block.state is not BlockState.ORPHANED), told()
        assert block.claims == claims[block.handle], f"{block.claims} claims, not {claims[block.handle]}; {told()}"
        if block.state in (BlockState.ISSUED, BlockState.ORPHANED):
            issued[block.handle] = block.worker
        assert (block.handle in state.table.undecoded) == (block.state is not BlockState.DECODED), told()
        assert (block.handle in state.table.refused) == (block.state is BlockState.REFUSED), told()
    assert claims.keys() <= {block.handle for block in state.table}, "claims on blocks that are gone"
    assert len(held) + state.slots.num_free == state.slots.num_slots, "slots are lost"
    queued = {handle: w.worker for w in state.workers.values() for handle in w.queue}
    assert queued == issued, f"queues {queued} != issued {issued}"
