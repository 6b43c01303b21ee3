"""The coordinator's state machine, event by event, with plans written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from o41td.coordinator.block_table import BlockTable, InvalidTransition
from o41td.coordinator.blocks import BlockPiece, PlannedBlock
from o41td.coordinator.events import (
    BadRows,
    BatchesWereGathered,
    BlockKey,
    BlockWasDecoded,
    BlockWasRefused,
    Burst,
    BurstRows,
    DecodeInto,
    KillWorker,
    PieceWasBegun,
    PlannedBatch,
    RankAttached,
    RankLeft,
    SendBatches,
    SendEnd,
    SendFailure,
    SlotsWereHeld,
    StartWorker,
    TimePassed,
    WorkerBecameReady,
    WorkerExited,
    WorkerWaited,
)
from o41td.coordinator.state import LoaderState
from o41td.error_records import error_from_record
from o41td.errors import MemoryBoundError

BLOCK_ROWS = 10


@dataclass
class ScriptedPlan:
    """Batches given as block letters; a letter's block is closed by the last batch that has it, unless kept."""

    table: BlockTable
    script: list[str]
    stage: int = 0
    keep: str = ""
    unit_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    told: bool = False

    def next_batches(self):
        if self.told:
            return []
        self.told = True
        handles = {letter: self.claim(letter) for letter in dict.fromkeys("".join(self.script))}
        self.kept = [handle for letter, handle in handles.items() if letter in self.keep]
        batches = []
        for number, letters in enumerate(self.script):
            rest = "".join(self.script[number + 1 :]) + self.keep
            own = np.array([handles[letter] for letter in letters], np.int64)
            closes = tuple(handles[letter] for letter in letters if letter not in rest)
            rows = np.full(len(letters), number, np.int64)
            burst = Burst(own, np.arange(len(own))[None], rows[None])
            in_burst = BurstRows(burst, 0)
            batches.append(PlannedBatch(number, 100 + number, len(rows), in_burst, tuple(own.tolist()), closes))
        return batches

    def claim(self, letter):
        x = BLOCK_ROWS * (ord(letter) - ord("a"))
        unit, row = self.unit_of.get(letter, (ord(letter), 0))
        planned = PlannedBlock(x, x + BLOCK_ROWS, (BlockPiece(unit, row, row + BLOCK_ROWS, 0),))
        return self.table.claim(BlockKey(self.stage, 0, 0, x), planned)

    def dropped_rows(self):
        return 7

    def open_handles(self):
        return self.kept if self.told else []


class Loader:
    """A state with its table; `tell` hands it an event, checks every invariant and returns what it asks for."""

    def __init__(self, *, slots=8, workers=1, lookahead=2, window=4, num_ranks=1):
        self.table = BlockTable(BLOCK_ROWS)
        self.state = LoaderState(
            table=self.table,
            num_slots=slots,
            workers=workers,
            lookahead=lookahead,
            window_batches=window,
            ahead_rows=0,
            stall_timeout_s=10.0,
            crash_error=lambda block, _piece, cause, code: {
                "crash": letter_of(block.key),
                "cause": cause,
                "code": code,
            },
            num_ranks=num_ranks,
        )

    def tell(self, event):
        instructions = self.state.handle(event)
        self.state.validate()
        return instructions

    def attach(self, *script, rank=0, generation=1, **options):
        return self.tell(RankAttached(rank, generation, ScriptedPlan(self.table, list(script), **options)))

    def decoded(self, letter, worker=0):
        return self.tell(BlockWasDecoded(worker, self.handle(letter)))

    def gathered(self, count, rank=0, generation=1):
        return self.tell(BatchesWereGathered(rank, generation, count))

    def handle(self, letter):
        return next(block.handle for block in self.table if letter_of(block.key) == letter)

    def held(self, letters):
        slots = (self.table[self.handle(letter)].slot for letter in letters)
        return self.tell(SlotsWereHeld(frozenset(slots)))

    def letters(self):
        return sorted(letter_of(block.key) for block in self.table)


def letter_of(key):
    """The letter that a block has in a script."""
    return chr(ord("a") + key.x_start // BLOCK_ROWS)


def told(instructions):
    """Instructions in short."""
    short = []
    for instruction in instructions:
        match instruction:
            case DecodeInto():
                short.append(f"decode {letter_of(instruction.key)} by {instruction.worker}")
            case SendBatches():
                short.append(f"send {[batch.number for batch in instruction.batches]} to {instruction.rank}")
            case SendEnd():
                short.append(f"end {instruction.rank}: {instruction.dropped_rows}")
            case SendFailure():
                short.append(f"fail {instruction.rank}: {instruction.error}")
            case StartWorker():
                short.append(f"start {instruction.worker}")
            case KillWorker():
                short.append(f"kill {instruction.worker}")
    return short


def test_blocks_are_decoded_in_order_and_batches_sent_when_whole():
    """From attach to end: blocks in order of first need, a batch once all its blocks are there, slots given back."""
    loader = Loader()
    assert told(loader.attach("ab", "bc", "d")) == []
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode a by 0", "decode b by 0"]
    assert told(loader.decoded("a")) == ["decode c by 0"]
    assert told(loader.decoded("b")) == ["send [0] to 0", "decode d by 0"]
    assert told(loader.decoded("c")) == ["send [1] to 0"]
    assert told(loader.gathered(1)) == []
    assert loader.letters() == ["b", "c", "d"]
    assert told(loader.decoded("d")) == ["send [2] to 0", "end 0: 7"]
    assert told(loader.gathered(3)) == []
    assert loader.letters() == []
    assert loader.state.slots.num_free == 8


def test_arena_rows_are_slot_times_block_rows_plus_row():
    """Slots 0 and 1 of 10 rows: row 1 of the block in slot 1 is arena row 11."""
    loader = Loader()
    loader.attach("a", "ab")
    decode_a, decode_b = loader.tell(WorkerBecameReady(0))
    assert (decode_a.slot, decode_b.slot) == (0, 1)
    loader.decoded("a")
    send, _ = loader.decoded("b")
    assert send.arena_rows.tolist() == [1, 11]
    assert send.batches[0].digest == 101


def test_many_batches_are_sent_by_several_messages_and_none_that_is_not_there():
    """A message tells of 64 at most; what follows those that are ready waits for its block."""
    loader = Loader(window=200)
    loader.attach(*["a"] * 100, *["b"] * 40)
    loader.tell(WorkerBecameReady(0))
    assert told(loader.decoded("a")) == [f"send {[*range(64)]} to 0", f"send {[*range(64, 100)]} to 0"]
    assert told(loader.decoded("b")) == [f"send {[*range(100, 140)]} to 0", "end 0: 7"]


def test_no_more_than_the_window_is_with_the_consumer():
    """With a window of two, the third batch is sent when one is gathered."""
    loader = Loader(window=2)
    loader.attach("a", "a", "a", "a")
    loader.tell(WorkerBecameReady(0))
    assert told(loader.decoded("a")) == ["send [0, 1] to 0"]
    assert told(loader.gathered(1)) == ["send [2] to 0"]
    assert told(loader.gathered(3)) == ["send [3] to 0", "end 0: 7"]


def test_a_worker_that_dies_loses_nothing():
    """Its blocks go to another, in the old order, and its number is started again."""
    loader = Loader(workers=2)
    loader.attach("abc")
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode a by 0", "decode b by 0"]
    assert told(loader.tell(WorkerBecameReady(1))) == ["decode c by 1"]
    assert told(loader.tell(WorkerExited(0, "SIGKILL", -9))) == ["start 0", "decode a by 1"]
    assert told(loader.decoded("c", 1)) == ["decode b by 1"]
    assert loader.state.workers[0].restarts == 1
    assert told(loader.decoded("a", 1)) == []
    assert told(loader.decoded("b", 1)) == ["send [0] to 0", "end 0: 7"]


def test_a_block_that_kills_three_workers_is_refused():
    """Only the block that was being decoded is to blame; the batches before it arrive, then its error."""
    loader = Loader()
    loader.attach("a", "bc")
    loader.tell(WorkerBecameReady(0))
    assert told(loader.decoded("a"))[0] == "send [0] to 0"
    for _ in range(2):
        assert told(loader.tell(WorkerExited(0, "SIGSEGV", -11))) == ["start 0"]
        assert told(loader.tell(WorkerBecameReady(0))) == ["decode b by 0", "decode c by 0"]
    assert told(loader.tell(WorkerExited(0, "SIGSEGV", -11))) == ["start 0"]
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode c by 0"]
    assert told(loader.decoded("c")) == ["fail 0: {'crash': 'b', 'cause': 'SIGSEGV', 'code': -11}"]


def test_the_error_is_that_of_the_first_bad_block_whichever_is_refused_first():
    """Two bad blocks in a batch: the rank hears of the first once both are known, and the same if it asks again."""
    loader = Loader(workers=2, lookahead=1)
    loader.attach("ab", "c")
    loader.tell(WorkerBecameReady(0))
    loader.tell(WorkerBecameReady(1))
    assert "fail" not in str(
        told(loader.tell(BlockWasRefused(1, loader.handle("b"), (BadRows(np.arange(10), {"bad": "b"}),))))
    )
    failed = told(loader.tell(BlockWasRefused(0, loader.handle("a"), (BadRows(np.arange(10), {"bad": "a"}),))))
    assert failed == ["fail 0: {'bad': 'a'}"]
    assert told(loader.attach("ab", "c", generation=2)) == ["fail 0: {'bad': 'a'}"]


def test_after_a_failure_nothing_more_is_decoded_for_the_rank():
    """What lies behind the bad block takes no worker's time, and its slots can be had by others."""
    loader = Loader(lookahead=1, slots=2)
    loader.attach("a", "b", "c")
    loader.tell(WorkerBecameReady(0))
    assert (
        told(loader.tell(BlockWasRefused(0, loader.handle("a"), (BadRows(np.arange(10), {"bad": "a"}),))))[0]
        == "fail 0: {'bad': 'a'}"
    )
    assert told(loader.tell(TimePassed(1.0))) == []
    loader.tell(RankLeft(0))
    assert len(loader.table) <= 1  # at most one that a worker is busy with


def test_a_stalled_worker_is_killed_once_and_gets_nothing_more():
    """After the timeout without an answer: one KillWorker; no block until it is dead and replaced."""
    loader = Loader(lookahead=2)
    loader.attach("abc")
    loader.tell(TimePassed(100.0))
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode a by 0", "decode b by 0"]
    assert told(loader.tell(TimePassed(109.0))) == []
    assert told(loader.tell(TimePassed(110.5))) == ["kill 0"]
    assert told(loader.tell(TimePassed(130.0))) == []
    assert told(loader.decoded("a")) == []  # it was only slow; it dies all the same
    assert told(loader.tell(WorkerExited(0, "killed", -9))) == ["start 0"]
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode b by 0", "decode c by 0"]


def test_each_answer_gives_a_worker_new_time():
    """The clock of a stall starts anew with every finished block, and does not run while there is nothing to do."""
    loader = Loader(lookahead=2)
    loader.attach("ab")
    loader.tell(TimePassed(0.0))
    loader.tell(WorkerBecameReady(0))
    loader.tell(TimePassed(9.0))
    loader.decoded("a")
    assert told(loader.tell(TimePassed(18.0))) == []
    loader.decoded("b")
    assert told(loader.tell(TimePassed(500.0))) == []


def test_a_worker_that_waits_for_its_store_is_given_time():
    """Each word that it waits puts the stall off, and how long it has had its block goes on counting."""
    loader = Loader(lookahead=1)
    loader.attach("a")
    loader.tell(TimePassed(0.0))
    loader.tell(WorkerBecameReady(0))
    for now_s in (9.0, 18.0, 27.0):
        assert told(loader.tell(TimePassed(now_s))) == []
        assert told(loader.tell(WorkerWaited(0))) == []
    assert [for_s for _worker, _block, for_s in loader.state.current_blocks()] == [27.0]
    assert told(loader.tell(TimePassed(36.9))) == []
    assert told(loader.tell(TimePassed(37.1))) == ["kill 0"]


def test_the_block_needed_last_is_evicted_for_a_starving_rank():
    """Two slots, batches ab, b, ca: with b done and a kept, c takes the place of what is needed latest."""
    loader = Loader(slots=2, lookahead=1)
    loader.attach("ab", "c", "a", "b")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    assert told(loader.decoded("b")) == ["send [0] to 0"]  # both slots are with the consumer
    assert told(loader.gathered(1)) == ["decode c by 0"]  # b, needed after a, has made room
    assert loader.state.blocks_evicted == 1
    assert told(loader.decoded("c")) == ["send [1, 2] to 0"]
    assert told(loader.gathered(3)) == ["decode b by 0"]
    assert told(loader.decoded("b")) == ["send [3] to 0", "end 0: 7"]


def test_a_slot_is_filled_anew_once_nothing_that_was_lent_lies_there():
    """Its block is dropped before that, and the slot kept; the word that it is free is enough, though one is sent."""
    loader = Loader(slots=2)
    loader.attach("a", "b", "c")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    assert told(loader.decoded("b")) == ["send [1] to 0"]
    assert told(loader.held("a")) == []
    assert told(loader.gathered(1)) == []
    assert loader.letters() == ["b", "c"]
    assert told(loader.held("")) == ["decode c by 0"]


def test_what_lies_where_batches_were_lent_is_evicted_once_it_is_not_held_any_more():
    """Both blocks are needed later than the next batch; that which was given back makes room, with no slot free."""
    loader = Loader(slots=2)
    loader.attach("a", "b", "c", "ab")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    loader.decoded("b")
    assert told(loader.held("ab")) == []
    assert told(loader.gathered(2)) == []
    assert loader.state.blocks_evicted == 0
    assert told(loader.held("a")) == ["decode c by 0"]
    assert loader.state.blocks_evicted == 1
    assert loader.table[loader.handle("b")].slot is None


def test_what_a_consumer_may_be_reading_is_not_evicted():
    """As long as one batch is not gathered its blocks stay, however much another block is wanted."""
    loader = Loader(slots=2, lookahead=1)
    loader.attach("ab", "c", keep="ab")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    loader.decoded("b")
    assert told(loader.tell(TimePassed(5.0))) == []
    assert told(loader.gathered(1)) == ["decode c by 0"]


def test_a_batch_larger_than_the_arena_is_an_error_not_a_wait():
    """Three blocks, two slots: the batch before it arrives, then an error that says so."""
    loader = Loader(slots=2)
    loader.attach("a", "bcd")
    loader.tell(WorkerBecameReady(0))
    send, failure, *_ = loader.decoded("a")
    assert told([send]) == ["send [0] to 0"]
    error = error_from_record(failure.error)
    assert isinstance(error, MemoryBoundError)
    assert "3 blocks" in str(error)


def test_a_rank_waiting_for_another_holds_no_more_than_its_share():
    """Two ranks in step, four slots: the first leaves the second, which comes late, what one batch needs."""
    loader = Loader(slots=4, lookahead=4, num_ranks=2)
    loader.attach("ab", "cd", "ef", rank=0)
    loader.tell(WorkerBecameReady(0))
    for letter in "abc":
        loader.decoded(letter)
    assert told(loader.decoded("d")) == []  # it has the first two; with these it would hold all four slots
    assert told(loader.attach("gh", rank=1)) == ["decode g by 0", "decode h by 0"]
    loader.decoded("g")
    assert told(loader.decoded("h")) == ["send [0] to 1", "end 1: 7"]
    assert loader.state.blocks_evicted == 2


def test_two_ranks_share_a_block_until_both_are_done():
    """A block that both need is decoded once and stays until the second has closed it."""
    loader = Loader(num_ranks=2)
    loader.attach("a", rank=0)
    loader.attach("a", "a", rank=1)
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode a by 0"]
    assert told(loader.decoded("a")) == ["send [0] to 0", "end 0: 7", "send [0, 1] to 1", "end 1: 7"]
    loader.gathered(1, rank=0)
    assert loader.letters() == ["a"]
    loader.gathered(2, rank=1)
    assert loader.letters() == []


def test_a_rank_that_moves_keeps_the_blocks_it_needs_again():
    """A seek claims anew before the old claims go: what is decoded is not decoded again."""
    loader = Loader()
    loader.attach("ab", "c")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    loader.decoded("b")
    loader.decoded("c")
    assert told(loader.attach("c", "b", generation=2)) == ["send [0, 1] to 0", "end 0: 7"]
    assert loader.letters() == ["b", "c"]


def test_a_block_nobody_needs_any_more_gives_its_slot_back_when_its_worker_answers():
    """Dropped while it is decoded: its slot is not given away before; claimed again meanwhile, it goes on."""
    loader = Loader(slots=1)
    loader.attach("a")
    assert told(loader.tell(WorkerBecameReady(0))) == ["decode a by 0"]
    loader.tell(RankLeft(0))
    assert loader.state.slots.num_free == 0
    assert told(loader.attach("b", generation=2)) == []
    assert told(loader.decoded("a")) == ["decode b by 0"]
    loader.tell(RankLeft(0))
    loader.attach("b", generation=3)
    assert told(loader.decoded("b")) == ["send [0] to 0", "end 0: 7"]


def test_what_a_consumer_says_twice_counts_once():
    """Word of a slot that came back carries the number of batches, which may be that of the last word."""
    loader = Loader()
    loader.attach("a", "b", "c")
    loader.tell(WorkerBecameReady(0))
    for letter in "abc":
        loader.decoded(letter)
    for count, left in ((1, ["b", "c"]), (1, ["b", "c"]), (2, ["c"]), (2, ["c"]), (3, [])):
        assert told(loader.gathered(count)) == []
        assert loader.letters() == left


def test_messages_of_an_earlier_generation_count_for_nothing():
    """A gather told of before a seek, or by a rank that has left, changes nothing."""
    loader = Loader()
    loader.attach("a", "a")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    loader.attach("a", "a", generation=2)
    assert told(loader.gathered(2, generation=1)) == []
    assert loader.state.ranks[0].num_gathered == 0
    loader.tell(RankLeft(0))
    assert told(loader.gathered(1, generation=2)) == []
    assert told(loader.tell(RankLeft(0))) == []


def test_slices_of_a_unit_go_to_one_worker():
    """The worker that had the slice before keeps its reader open, so the next slice is its until it opens another."""
    loader = Loader(workers=2, lookahead=2)
    unit_of = {"a": (5, 0), "b": (6, 0), "c": (5, 10), "d": (6, 10)}
    loader.attach("abcd", unit_of=unit_of)
    loader.tell(WorkerBecameReady(1))
    instructions = loader.tell(WorkerBecameReady(0))
    assert told(instructions) == ["decode c by 0"]  # worker 1 has left c's unit for d's
    loader = Loader(workers=2, lookahead=2)
    loader.tell(WorkerBecameReady(0))
    loader.tell(WorkerBecameReady(1))
    assert told(loader.attach("abcd", unit_of=unit_of)) == [
        "decode a by 0",
        "decode b by 1",
        "decode c by 0",
        "decode d by 1",
    ]


def test_slices_wait_for_the_worker_that_has_their_unit():
    """Another worker would decode the unit anew, so it takes what comes behind, and never the last free slot."""
    unit_of = {"a": (5, 0), "b": (5, 10), "c": (5, 20), "d": (6, 0), "e": (6, 10)}
    for slots, with_room in ((8, ["decode a by 0", "decode b by 0", "decode d by 1", "decode e by 1"]), (3, None)):
        loader = Loader(slots=slots, workers=2, lookahead=2)
        loader.tell(WorkerBecameReady(0))
        loader.tell(WorkerBecameReady(1))
        assert told(loader.attach(*"abcde", unit_of=unit_of)) == (with_room or ["decode a by 0", "decode b by 0"])
        assert "decode c by 0" in told(loader.decoded("a"))
    loader = Loader(workers=2, lookahead=1)
    loader.tell(WorkerBecameReady(0))
    loader.tell(WorkerBecameReady(1))
    assert told(loader.attach("abc", unit_of=unit_of)) == ["decode a by 0"]
    assert told(loader.tell(WorkerExited(0, "killed", None))) == ["start 0", "decode a by 1"]


def test_what_cannot_happen_is_refused_with_the_story():
    """A block is not decoded twice: the state machine says what happened to it before."""
    loader = Loader()
    loader.attach("a", keep="a")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    with pytest.raises(InvalidTransition, match=r"'issue' while decoded.*waiting -issue-> issued"):
        loader.table.move(loader.table[loader.handle("a")], "issue")
    with pytest.raises(AssertionError, match="worker 0 finished") as caught:
        loader.decoded("a")
    (note,) = caught.value.__notes__
    twice = "BlockWasDecoded (worker 0, block 0); BlockWasDecoded (worker 0, block 0)"
    assert note == f"the last events: RankAttached (rank 0, generation 1); WorkerBecameReady (worker 0); {twice}"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (WorkerBecameReady(0), "worker 0 is ready twice"),
        (PieceWasBegun(0, 5, 0), "worker 0 is not at 5"),
        (BlockWasRefused(0, 5, {}), "worker 0 finished 5"),
        (BatchesWereGathered(0, 1, 9), "gathered 9 of 0 sent"),
    ],
)
def test_an_event_that_cannot_come_now_is_refused_with_what_came_before(event, words):
    """A worker that says what it cannot, and a rank that has more than it was sent: told with the last events."""
    loader = Loader()
    loader.attach("a")
    loader.tell(WorkerBecameReady(0))
    with pytest.raises(AssertionError, match=words) as caught:
        loader.tell(event)
    assert f"WorkerBecameReady (worker 0); {type(event).__name__}" in caught.value.__notes__[0]


def test_what_has_gone_wrong_in_the_books_is_told_with_the_last_events():
    """validate() names the block, and the event behind which it does not hold."""
    loader = Loader()
    loader.attach("a", keep="a")
    loader.tell(WorkerBecameReady(0))
    loader.decoded("a")
    loader.table[loader.handle("a")].claims += 1
    with pytest.raises(AssertionError, match=r"2 claims, and 1 batches or plans.*issued -decoded->") as caught:
        loader.state.validate()
    assert caught.value.__notes__[0].endswith("BlockWasDecoded (worker 0, block 0)")
