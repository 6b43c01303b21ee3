"""Which slots of the arena are free: bookkeeping only.

Called by the coordinator, from its one thread. A slot is acquired when a block is issued and released when no rank
needs a row of that block any more. The most recently released slot goes out first: its pages are populated in every
process and still in the caches. Slots that were never used go out in ascending order, behind the thread that populates
them. A slot that is kept, since somebody still reads in it, stays out of use after its release until it is not.
"""

from collections import deque

__all__ = ["SlotPool"]

_STORY_LENGTH = 256


class SlotPool:
    """The free slots of an arena.

    Args:
        num_slots: Slots in the arena, at least 1.
    """

    __slots__ = ("_free", "_holders", "_kept", "_num_events", "_released", "_story", "num_slots")

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1, f"an arena of {num_slots} slots"
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._holders: dict[int, object] = {}
        self._kept: frozenset[int] = frozenset()
        self._released: set[int] = set()  # but kept
        self._story: deque[tuple[int, str, int, object]] = deque(maxlen=_STORY_LENGTH)
        self._num_events = 0

    @property
    def num_free(self) -> int:
        """How many slots can be acquired now."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """How many slots are acquired and not released, or kept."""
        return len(self._holders) + len(self._released)

    @property
    def num_kept_back(self) -> int:
        """How many slots are released, but kept."""
        return len(self._released)

    def is_kept(self, slot_index: int) -> bool:
        """Whether a slot stays out of use when it is released."""
        return slot_index in self._kept

    def keep(self, slot_indices: frozenset[int]) -> None:
        """Keeps these slots, which are held or kept already, and no others any more."""
        strange = [slot for slot in slot_indices if slot not in self._holders and slot not in self._released]
        assert not strange, f"slots {strange} are kept but not held: {self._story_of(strange[0])}"
        self._kept = slot_indices
        for slot_index in sorted(self._released - slot_indices):
            self._released.discard(slot_index)
            self._note("freed", slot_index, None)
            self._free.append(slot_index)

    def holder_of(self, slot_index: int) -> object:
        """Returns what was given to `acquire` for a held slot; KeyError where the slot is free."""
        return self._holders[slot_index]

    def acquire(self, holder: object = None) -> int | None:
        """Takes a free slot: the one released last, else the lowest never used.

        Args:
            holder: What the slot is for, such as a block's id; named in the story of a later mistake.

        Returns:
            The slot's index, or None where all slots are held.
        """
        if not self._free:
            return None
        slot_index = self._free.pop()
        self._holders[slot_index] = holder
        self._note("acquired", slot_index, holder)
        return slot_index

    def release(self, slot_index: int) -> None:
        """Gives a slot back: for use, or where it is kept, once it is not.

        Raises:
            AssertionError: The slot is not held (released twice, or never acquired), with the slot's last events. It is
                raised under `python -O` too, as going on would put two blocks into one slot.
        """
        if slot_index not in self._holders:
            raise AssertionError(f"slot {slot_index} is released but not held: {self._story_of(slot_index)}")
        self._note("released", slot_index, self._holders.pop(slot_index))
        if slot_index in self._kept:
            self._released.add(slot_index)
        else:
            self._free.append(slot_index)

    def validate(self) -> None:
        """Checks that each slot is either free or held or kept back, once.

        Raises:
            AssertionError: It is not; a bug of ours.
        """
        free = set(self._free)
        assert len(free) == len(self._free), f"slots are free twice: {sorted(self._free)}"
        assert self._released <= self._kept, f"slots {sorted(self._released - self._kept)} are kept back for nobody"
        mixed = self._released & (free | self._holders.keys())
        assert not mixed, f"slots {sorted(mixed)} are kept back and in use: {self._story_of(min(mixed))}"
        both = free & self._holders.keys()
        assert not both, f"slots {sorted(both)} are free and held: {self._story_of(min(both))}"
        lost = set(range(self.num_slots)) - free - self._holders.keys() - self._released
        assert not lost, f"slots {sorted(lost)} are neither free nor held: {self._story_of(min(lost))}"
        assert len(free) + self.num_held == self.num_slots, f"slots outside [0, {self.num_slots})"

    def _note(self, what: str, slot_index: int, holder: object) -> None:
        self._story.append((self._num_events, what, slot_index, holder))
        self._num_events += 1

    def _story_of(self, slot_index: int) -> str:
        """The last events of one slot, oldest first, as text."""
        if not 0 <= slot_index < self.num_slots:
            return f"there are slots 0 to {self.num_slots - 1} only"
        told = [
            f"event {number}: {what} {'by' if what == 'acquired' else 'from'} {holder!r}"
            for number, what, slot, holder in self._story
            if slot == slot_index
        ]
        return "; ".join(told) or f"nothing about it in the last {_STORY_LENGTH} of {self._num_events} events"
