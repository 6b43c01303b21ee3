"""What is true of a loader's state between events; checked after every one in tests and simulations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from o41td.coordinator.block_table import BlockState, BlockTable

if TYPE_CHECKING:
    from o41td.coordinator.rank_state import RankState
    from o41td.coordinator.state import LoaderState

__all__ = ["check_invariants"]


def check_invariants(state: LoaderState) -> None:
    """Checks slots, blocks, claims, queues and counts against each other.

    Raises:
        AssertionError: Something does not hold, with the stories of the blocks that it is about.
    """
    state.slots.validate()
    _check_blocks(state)
    _check_workers(state)
    for rank in state.ranks.values():
        _check_rank(rank, state.table)


def _check_blocks(state: LoaderState) -> None:
    """Each block's state, its slot, its claims, and the sets in which the table keeps it, say the same."""
    table = state.table
    of_state: dict[BlockState, set[int]] = {each: set() for each in BlockState}
    slots: dict[int, int] = {}
    claimed: dict[int, int] = {}
    bad = set()
    for block in table:
        of_state[block.state].add(block.handle)
        if block.slot is not None:
            slots[block.handle] = block.slot
        if block.claims:
            claimed[block.handle] = block.claims
        if block.bad and block.state is BlockState.DECODED:
            bad.add(block.handle)
    all_blocks = set().union(*of_state.values())
    decoded, refused, orphaned = (
        of_state[each] for each in (BlockState.DECODED, BlockState.REFUSED, BlockState.ORPHANED)
    )
    _agree(table, "in the table and dropped", of_state[BlockState.DROPPED], set())
    _agree(table, "that hold a slot", slots.keys(), decoded | orphaned | of_state[BlockState.ISSUED])
    _agree(table, "not decoded", table.undecoded, all_blocks - decoded)
    _agree(table, "refused", table.refused, refused)
    _agree(table, "decoded in part", table.tainted, bad)
    _agree(table, "that nobody claims", all_blocks - claimed.keys(), orphaned)
    bases = {handle: slot * table.block_rows for handle, slot in slots.items()}
    found = {handle: base for handle, base in enumerate(table.arena_bases.tolist()) if base >= 0}
    assert found == bases, f"arena rows {found} are not those of the slots, {bases}"
    assert len(set(slots.values())) == len(slots), f"two blocks in one slot: {slots}"
    in_use = len(slots) + state.slots.num_kept_back
    assert in_use + state.slots.num_free == state.slots.num_slots, f"slots are lost; in use are {slots}"
    written = {handle for handle in slots.keys() - decoded if state.slots.is_kept(slots[handle])}
    assert not written, f"a worker may write where a batch lies: {_told(table, written)}"
    lent = {block.handle for block in table if block.is_lent}
    assert lent <= decoded, f"lent, but not there: {_told(table, lent - decoded)}"
    claims = Counter(
        chain.from_iterable(
            chain(
                rank.plan.open_handles(),
                chain.from_iterable([batch.closes for batch in rank.sent]),
                chain.from_iterable([batch.closes for batch in rank.unsent]),
            )
            for rank in state.ranks.values()
        )
    )
    for handle in claims.keys() | claimed.keys():
        has, wanted = claimed.get(handle, 0), claims[handle]
        assert has == wanted, f"{has} claims, and {wanted} batches or plans that close them: {_told(table, {handle})}"


def _check_workers(state: LoaderState) -> None:
    """A block that is with a worker is in the queue of that one, which is no longer than it may be."""
    queued = {handle: worker.worker for worker in state.workers.values() for handle in worker.queue}
    given = (BlockState.ISSUED, BlockState.ORPHANED)
    issued = {block.handle: block.worker for block in state.table if block.state in given}
    assert queued == issued, f"queues {queued} != issued {issued}"
    for worker in state.workers.values():
        assert len(worker.queue) <= state.lookahead, f"worker {worker.worker} has {len(worker.queue)} blocks in hand"
        assert worker.ready or not worker.queue, f"worker {worker.worker} has blocks before it is ready"


def _check_rank(rank: RankState, table: BlockTable) -> None:
    """Counts are right, batches in order; what is sent is decoded, and what is lacked waits in the rank's queue."""
    assert rank.num_ungathered == len(rank.sent)
    assert rank.num_planned - rank.num_sent == len(rank.unsent)
    assert rank.unsent_rows == sum([batch.num_rows for batch in rank.unsent])
    batches = [*rank.sent, *rank.unsent]
    for one, next_one in pairwise(batches):
        assert one.number < next_one.number, f"batch {next_one.number} stands behind batch {one.number}"
    if not table.undecoded:
        return
    for batch in rank.sent:
        lacking = table.undecoded.intersection(batch.blocks)
        assert not lacking, f"batch {batch.number} was sent, but lacks {_told(table, lacking)}"
    if rank.told_failure:
        return
    lacked = table.undecoded.intersection(chain.from_iterable([batch.blocks for batch in rank.unsent]))
    queued = rank.queued()
    forgotten = {
        handle for handle in lacked if table[handle].state is BlockState.WAITING and table[handle] not in queued
    }
    assert not forgotten, f"rank {rank.rank} needs what nobody will decode: {_told(table, forgotten)}"


def _agree(table: BlockTable, what: str, one: AbstractSet[int], other: AbstractSet[int]) -> None:
    assert one == other, f"blocks {what}: {_told(table, one ^ other)}"


def _told(table: BlockTable, handles: AbstractSet[int]) -> str:
    known = {block.handle: block for block in table}
    return "; ".join(known[handle].told() if handle in known else f"{handle}, which is gone" for handle in handles)
