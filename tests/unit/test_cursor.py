"""The cursor: histories, seeking, records."""

import pickle

import pytest

from o41td.cursor import Cursor


def test_a_new_cursor_is_at_the_start_of_stage_0():
    """Nothing taken, stage 0 next."""
    cursor = Cursor()
    assert (cursor.batches, cursor.stage, cursor.stage_position(0), cursor.stage_position(3)) == (0, 0, 0, 0)
    assert cursor.locate(0) == (0, 0)


def test_coming_back_to_a_stage_continues_it():
    """Each stage keeps its own position; global batches go through all stages in the order taken."""
    cursor = Cursor().moved(5).advanced(1).moved(3).advanced(0).moved(2)
    assert cursor.history == ((0, 5), (1, 3), (0, 2))
    assert cursor.batches == 10
    assert (cursor.stage_position(0), cursor.stage_position(1)) == (7, 3)
    places = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (0, 5), (0, 6), (0, 7), (0, 8)]
    assert [cursor.locate(g) for g in range(12)] == places


def test_advancing_to_the_current_stage_changes_nothing():
    """Advance is a no-op for the current stage."""
    cursor = Cursor().moved(4)
    assert cursor.advanced(0) == cursor


def test_runs_merge_and_empty_runs_vanish():
    """Equal histories have one form: neighbours merge, empty runs go, the last run names the current stage."""
    assert Cursor(((0, 0), (2, 0))).history == ((2, 0),)
    assert Cursor().advanced(1).advanced(2).advanced(0).history == ((0, 0),)
    assert Cursor().moved(5).advanced(1).advanced(0).moved(1).history == ((0, 6),)
    assert Cursor(((0, 5), (1, 0), (1, 0), (0, 0))).history == ((0, 5),)
    assert Cursor(((0, 5), (0, 2), (1, 0))).history == ((0, 7), (1, 0))
    assert Cursor().moved(0) == Cursor()


def test_seeking_back_forgets_what_came_after():
    """Seeking into the history keeps the stage of that batch; seeking beyond goes on in the last stage."""
    cursor = Cursor(((0, 5), (1, 3), (0, 2)))
    assert cursor.sought(0).history == ((0, 0),)
    assert cursor.sought(3).history == ((0, 3),)
    assert cursor.sought(5).history == ((0, 5), (1, 0))
    assert cursor.sought(8).history == ((0, 5), (1, 3), (0, 0))
    assert cursor.sought(10) == cursor
    assert cursor.sought(2**40).history == ((0, 5), (1, 3), (0, 2**40 - 8))
    for batch in range(15):
        there = cursor.sought(batch)
        assert there.batches == batch
        assert cursor.locate(batch) == (there.stage, there.stage_position(there.stage))


def test_negative_moves_are_refused():
    """Batches and stages are never negative; a cursor has a stage."""
    for bad in (
        lambda: Cursor().moved(-1),
        lambda: Cursor().sought(-1),
        lambda: Cursor().advanced(-1),
        lambda: Cursor(()),
    ):
        with pytest.raises(ValueError, match=" / "):
            bad()


def test_records_round_trip():
    """A cursor comes back equal from its record and from a pickle."""
    cursor = Cursor(((0, 5), (1, 2**40), (0, 0)))
    assert cursor.to_record() == [[0, 5], [1, 2**40], [0, 0]]
    assert Cursor.from_record(cursor.to_record()) == cursor
    assert pickle.loads(pickle.dumps(cursor)) == cursor
    assert len({cursor, Cursor.from_record(cursor.to_record())}) == 1


@pytest.mark.parametrize(
    "record", [[], None, "ab", {}, [1], [[0]], [[0, 1, 2]], [[0, "1"]], [[0, 1.0]], [[True, 1]], [[-1, 0]]]
)
def test_bad_records_are_refused(record):
    """A record that is not a list of pairs of non-negative integers is refused."""
    with pytest.raises(ValueError, match="cursor"):
        Cursor.from_record(record)
