"""One rank's flow of batches: planned, sent, gathered; and the blocks it waits for, in the order of its need.

How urgent a block is to a rank is the distance of the first unsent batch that needs it: 0 for the next batch of a rank
that has nothing in hand. Such a rank starves: its trainer waits, and with it, in step, perhaps those of all other
ranks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from operator import attrgetter, not_

from o41td.coordinator.block_table import Block, BlockState, BlockTable
from o41td.coordinator.events import BatchPlan, PlannedBatch

__all__ = ["RankState"]

_blocks_of = attrgetter("blocks")
_closed_by = attrgetter("closes")
_rows_in = attrgetter("num_rows")


@dataclass(slots=True)
class RankState:
    """`unsent` batches are planned, `sent` ones are with the consumer; counts are of this generation.

    `served_at` numbers the rank's last message with batches among those of all ranks: of two ranks that starve, the one
    served longer ago comes first. `told_failure`: the next batch cannot be had, nothing more is planned, decoded or
    sent.
    """

    rank: int
    generation: int
    plan: BatchPlan
    served_at: int
    unsent: deque[PlannedBatch] = field(default_factory=deque)
    sent: deque[PlannedBatch] = field(default_factory=deque)
    unsent_rows: int = 0
    num_planned: int = 0
    num_sent: int = 0
    num_gathered: int = 0
    plan_ended: bool = False
    told_end: bool = False
    told_failure: bool = False
    # Blocks that wait for a worker: a heap of (ordinal of the first batch that needs it, place in that batch,
    # tie-break, block). An entry is stale once the batch is sent or the block waits no more.
    _queue: list[tuple[int, int, int, Block]] = field(default_factory=list)
    _aside: list[tuple[int, int, int, Block]] = field(default_factory=list)
    _num_queued: int = 0
    _num_unasked: int = 0  # batches sent since the last of which the consumer is to say that it has it
    # Handles of blocks that were looked at since they came into the table or were evicted: what waits is in the queue.
    _known: set[int] = field(default_factory=set)

    @property
    def num_ungathered(self) -> int:
        """Batches that the consumer may still be reading in the arena."""
        return self.num_sent - self.num_gathered

    @property
    def num_wanted(self) -> int:
        """About how many blocks wait for a worker; never less than there are."""
        return len(self._queue)

    def expect(self, batches: Sequence[PlannedBatch], table: BlockTable) -> None:
        """Takes planned batches in, and queues the blocks that they are the first to need."""
        self._look_for_new_blocks(batches, table)
        self.unsent.extend(batches)
        self.unsent_rows += sum(map(_rows_in, batches))
        self.num_planned += len(batches)

    def _look_for_new_blocks(self, batches: Sequence[PlannedBatch], table: BlockTable) -> None:
        new = set(chain.from_iterable(map(_blocks_of, batches))) - self._known
        self._known |= new
        # It is asked of each batch as its turn comes, so of those behind the one that was the last to need a new block.
        is_needed = map(not_, map(new.isdisjoint, map(_blocks_of, batches)))
        for ordinal, batch in compress(enumerate(batches, start=self.num_planned), is_needed):
            for place, handle in enumerate(batch.blocks):
                if handle in new:
                    new.discard(handle)
                    if table[handle].state is BlockState.WAITING:
                        self._push(ordinal, place, table[handle])

    def asked_of(
        self, batches: Sequence[PlannedBatch], *, of_closing: bool, at_least_every: int, of_last: bool
    ) -> list[bool]:
        """Returns of which of the batches that are sent the consumer shall say that it has them.

        `of_closing`, of those that close blocks; of one in so many; and `of_last`, of the last of these.
        """
        num_batches = len(batches)
        asked = list(map(bool, map(_closed_by, batches))) if of_closing else [False] * num_batches
        last = -1 - self._num_unasked  # the place of the last that it was asked of
        for stop in [*compress(range(num_batches), asked), num_batches]:
            while (due := max(0, last + at_least_every)) < stop:
                asked[due], last = True, due
            last = stop if stop < num_batches else last
        if of_last and last < num_batches - 1:
            asked[-1], last = True, num_batches - 1
        self._num_unasked = num_batches - 1 - last
        return asked

    def send(self, num_batches: int) -> tuple[PlannedBatch, ...]:
        """Returns the next batches, which are with the consumer from now on."""
        batches = tuple(map(deque.popleft, repeat(self.unsent, num_batches)))
        self.sent.extend(batches)
        self.num_sent += num_batches
        self.unsent_rows -= sum(map(_rows_in, batches))
        return batches

    def gather(self, num_batches: int) -> list[int]:
        """Notes that the consumer has so many more; returns the handles of the blocks of which it needs no more."""
        gathered = list(map(deque.popleft, repeat(self.sent, num_batches)))
        self.num_gathered += num_batches
        return list(chain.from_iterable(map(_closed_by, gathered)))

    def want_again(self, block: Block) -> None:
        """Queues a block that has lost its worker or its slot, if an unsent batch needs it."""
        for ordinal, batch in enumerate(self.unsent, start=self.num_sent):
            if block.handle in batch.blocks:
                self._push(ordinal, batch.blocks.index(block.handle), block)
                return
        self.forget(block.handle)

    def forget(self, handle: int) -> None:
        """Looks at the handle anew when a batch needs it: it names another block now, or the block lost its slot."""
        self._known.discard(handle)

    def _push(self, ordinal: int, place: int, block: Block) -> None:
        self._num_queued += 1
        heapq.heappush(self._queue, (ordinal, place, self._num_queued, block))

    def first_wanted(self) -> tuple[int, Block] | None:
        """Returns the block that is most urgent of those that wait for a worker, and how far away its batch is."""
        if self.told_failure:
            return None
        while self._queue:
            ordinal, _, _, block = self._queue[0]
            if ordinal >= self.num_sent and block.state is BlockState.WAITING:
                return ordinal - self.num_sent + self._first_distance, block
            heapq.heappop(self._queue)
        return None

    def set_aside(self, block: Block) -> None:
        """Has what is wanted next come before this block, until `take_back`."""
        if self._queue and self._queue[0][3] is block:
            self._aside.append(heapq.heappop(self._queue))

    def take_back(self) -> None:
        """Queues what was set aside."""
        while self._aside:
            heapq.heappush(self._queue, self._aside.pop())

    def queued(self) -> set[Block]:
        """Returns the blocks in the queue with an entry that is not stale."""
        return {block for ordinal, _, _, block in self._queue if ordinal >= self.num_sent}

    def distances(self) -> Iterator[tuple[int, PlannedBatch]]:
        """Returns the unsent batches with their distances; none where a failure has ended it."""
        return iter(()) if self.told_failure else enumerate(self.unsent, start=self._first_distance)

    @property
    def _first_distance(self) -> int:
        return 1 if self.sent else 0

    def pinned(self) -> set[int]:
        """Returns the handles of the blocks that the consumer may still be reading."""
        return set().union(*[batch.blocks for batch in self.sent])
