"""Streams with excluded batches: every rank passes over them, in step, through resumes, moves and deaths."""

from __future__ import annotations

import pytest

from loader_processes import kill_coordinator
from o41td import CheckpointError, ConfigError, open_batch_stream, resume_batch_stream
from stream_reference import Reference, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

#  105 rows in two lanes and batches of 5: 22 batches, of which these are passed over; 13 are left.
EXCLUDED = [[3, 4], [9, 15], [17, 18], [19, 20]]
LEFT = [0, 1, 2, 4, 5, 6, 7, 8, 15, 16, 18, 20, 21]


@pytest.fixture(scope="module")
def config(module_shards):
    """A shuffled stage with exclusions that are no multiples of any world size."""
    shards = module_shards([60, 45], row_group_rows=11)
    return stream_config(stage_of(shards, batch_size=5, buffer_rows=24), exclude=EXCLUDED, lanes=2, block_rows=7)


@pytest.fixture(scope="module")
def reference(config) -> Reference:
    """What the config must give, exclusions aside."""
    return Reference(config)


@pytest.mark.parametrize("world_size", [1, 5])
def test_ranks_stay_in_step_and_rows_add_up(config, reference, world_size, open_stream):
    """Rank r takes the r-th, (r+W)-th, … batch that is left, with its own number; dropped rows are the last round's."""
    rounds = len(LEFT) // world_size
    for rank in (0, world_size - 1):
        stream = open_stream(config, rank=rank, world_size=world_size)
        assert stream.num_rounds() == rounds
        for number in LEFT[rank::world_size][:rounds]:
            reference.check(stream.next(), number=number, batch_index=number)
        assert stream.next() is None
        dropped = LEFT[rounds * world_size :]
        assert stream.dropped_rows == (len(reference.ids(dropped[rank])) if rank < len(dropped) else 0)
        checkpoint = stream.checkpoint()
        assert checkpoint.batches_yielded == rounds * world_size
        assert checkpoint.rows_yielded == sum(len(reference.ids(n)) for n in LEFT[: rounds * world_size])
        assert stream.stats()["excluded_batches"] == stream.excluded_batches
        stream.close()


def test_every_checkpoint_gives_the_rest_on_another_world_size(config, reference, open_stream):
    """After each batch of one rank, two ranks go on; coordinates() still names what was passed over."""
    stream = open_stream(config)
    other = open_stream(config, rank=1, world_size=2)
    for taken in range(len(LEFT) + 1):
        other.load_state_dict(stream.state_dict())
        assert other.excluded_batches == (0 if not taken else sum(n not in LEFT for n in range(LEFT[taken - 1])))
        expected = LEFT[taken:][1::2]
        for number in expected:
            reference.check(other.next(), number=number, batch_index=number)
        assert other.next() is None
        batch = stream.next()
        assert (batch is None) == (taken == len(LEFT))
    coordinates = stream.coordinates(10)
    assert list(zip(*(coordinates[name].tolist() for name in ("source", "shard", "row")), strict=True)) == (
        reference.coordinates(10)
    )


def test_seek_and_skip_pass_over_what_is_excluded(config, reference, open_stream):
    """A seek into a range goes on behind it; skip counts only batches that are left."""
    stream = open_stream(config)
    stream.seek(10)
    reference.check(stream.next(), number=15, batch_index=15)
    stream.seek(2)
    stream.skip(2)  # 2 and 4
    reference.check(stream.next(), number=5, batch_index=5)
    with pytest.raises(ConfigError, match="batches"):
        stream.skip(9)
    stream.skip(7)  # 6, 7, 8, 15, 16, 18, 20
    reference.check(stream.next(), number=21, batch_index=21)


def test_a_coordinator_killed_between_ranges_costs_no_batch(config, reference, open_stream):
    """Killed before a range, inside one, and behind one: the next batch is the next that is left."""
    stream = open_stream(config.model_copy(update={"prefetch_batches": 1}))
    for ordinal, number in enumerate(LEFT):
        if ordinal in (2, 7, 10):
            kill_coordinator(stream)
        reference.check(stream.next(), number=number, batch_index=number)
    assert stream.next() is None


def test_what_lies_ahead_may_be_excluded_on_a_resume(config, reference, open_stream):
    """A stream that met a bad stretch resumes before it, without it; history cannot be rewritten."""
    stream = open_stream(config)
    for _ in range(4):
        stream.next()
    checkpoint = stream.checkpoint()  # behind batch 4
    with resume_batch_stream(checkpoint, exclude=[(3, 4), (5, 19)]) as resumed:
        reference.check(resumed.next(), number=19, batch_index=19)
        again = resumed.checkpoint()
        assert again.config["exclude"] == [[3, 4], [5, 19]]
        assert again.batches_yielded == 5
    with pytest.raises(CheckpointError, match=r"exclude \(before batch 5\)"):
        resume_batch_stream(checkpoint, exclude=[(2, 4)])
    with pytest.raises(ConfigError, match="7 is not a list; give ranges"):
        resume_batch_stream(checkpoint, exclude=7)
    with pytest.raises(CheckpointError, match="exclude"):
        open_stream(config.model_copy(update={"exclude": ()})).load_state_dict(checkpoint.to_document())


def test_a_range_counts_through_stages(module_shards, open_stream):
    """Global batches go on through `advance`: what is excluded falls to the stage that is current then."""
    shards = module_shards([40], name="two")
    config = stream_config(
        stage_of(shards, batch_size=5, name="a"), stage_of(shards, batch_size=4, name="b"), exclude=[[1, 2], [4, 6]]
    )
    reference = Reference(config)
    stream = open_stream(config)
    for number in (0, 2):
        reference.check(stream.next(), number=number, batch_index=number)
    stream.advance("b")
    reference.check(stream.next(), number=0, stage=1, batch_index=3)
    reference.check(stream.next(), number=3, stage=1, batch_index=6)  # 4 and 5 would be its batches 1 and 2
    stream.advance("a")
    reference.check(stream.next(), number=3, stage=0, batch_index=7)
    assert stream.excluded_batches == 3


def test_a_stage_of_which_nothing_is_left_is_refused(module_shards):
    """At open, not as an empty stream."""
    config = stream_config(stage_of(module_shards([10], name="few"), batch_size=5), exclude=[[0, 9]])
    with pytest.raises(ConfigError, match="`exclude` leaves stage 'stage0' fewer batches"):
        open_batch_stream(config)


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        ("3-4", "is not a list"),
        ([3, 4], "3 is not a range"),
        ([[4, 4]], "excludes nothing"),
        ([[1, 2, 3]], "is not a range"),
        ([[-1, 2]], "out of range"),
        ([[1, 2.5]], "not an integer"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(module_shards, exclude, said):
    """Each with the value, before anything is opened."""
    with pytest.raises(ConfigError, match=said):
        stream_config(stage_of(["x.parquet"]), exclude=exclude)


def test_ranges_are_kept_in_one_form():
    """Sorted, and those that touch or overlap as one."""
    config = stream_config(stage_of(["x.parquet"]), exclude=[(7, 9), [1, 3], (3, 5), (8, 12)])
    assert config.exclude == ((1, 5), (7, 12))
    assert config.to_document()["exclude"] == [[1, 5], [7, 12]]
