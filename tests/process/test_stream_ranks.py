"""Several ranks: disjoint and complete, equal numbers of steps, exact dropped rows, a share of the decoding each."""

from __future__ import annotations

import pytest

from o41td import BatchStreamConfig, ConfigError, open_batch_stream
from o41td.order import add_digests
from stream_reference import Reference, file_source, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def _run_ranks(config: BatchStreamConfig, world_size: int) -> tuple[list[list[list[int]]], list[int], list[int]]:
    """(ids of each batch, dropped rows, order digest) of each rank."""
    batches, dropped, digests = [], [], []
    for rank in range(world_size):
        with open_batch_stream(config, rank=rank, world_size=world_size) as stream:
            batches.append([batch["id"].tolist() for batch in stream])
            dropped.append(stream.dropped_rows)
            digests.append(stream.order_digest)
    return batches, dropped, digests


@pytest.mark.parametrize(("drop_last", "lanes"), [(False, None), (True, 1)])
def test_ranks_end_together_and_every_row_is_delivered_or_counted(write_shards, drop_last, lanes):
    """D5: 101 rows, 2 ranks, batches of 10: the same steps, every row once or in one rank's dropped_rows."""
    config = stream_config(
        stage_of(write_shards([101]), batch_size=10, buffer_rows=16, drop_last=drop_last), lanes=lanes
    )
    reference = Reference(config, lanes=2)
    batches, dropped, digests = _run_ranks(config, 2)
    assert len(batches[0]) == len(batches[1]) == 5
    for rank, own in enumerate(batches):
        assert own == [reference.ids(2 * k + rank) for k in range(5)]
    ids = [row_id for own in batches for batch in own for row_id in batch]
    assert len(set(ids)) == len(ids)
    assert len(ids) + sum(dropped) == 101
    assert all(len(batch) == 10 for own in batches for batch in own)
    assert dropped == ([1, 0] if lanes == 1 else [0, 1])  # 101 = 10 + 1 batches of one lane; lanes of 50 and 51 rows
    assert add_digests(*digests) == add_digests(*[reference.digest(n, n) for n in range(10)])


def test_one_shard_serves_four_ranks(write_shards):
    """D1, B7: one shard of 64 rows, 4 ranks, batches of 4: four steps each, disjoint, complete."""
    batches, dropped, _ = _run_ranks(stream_config(stage_of(write_shards([64]), batch_size=4)), 4)
    assert [len(own) for own in batches] == [4, 4, 4, 4]
    assert sorted(row_id for own in batches for batch in own for row_id in batch) == list(range(64))
    assert dropped == [0, 0, 0, 0]


def test_batches_in_the_middle_are_full_whatever_the_row_groups(write_shards, open_stream):
    """D3: row groups of 30 and 10 rows, batches of 8, a buffer of 16: five batches of 8."""
    paths = write_shards([30, 10], row_group_rows=30)
    stream = open_stream(stream_config(stage_of(paths, batch_size=8, buffer_rows=16)))
    assert [batch.num_rows for batch in stream] == [8, 8, 8, 8, 8]


def test_a_partial_last_batch_is_kept_or_dropped_as_asked(write_shards, open_stream):
    """D5 on one rank: 21 rows in batches of 8 are 8, 8, 5; with drop_last 8, 8 and five rows dropped."""
    paths = write_shards([21])
    keeps = open_stream(stream_config(stage_of(paths, batch_size=8)))
    assert [batch["tokens"].shape for batch in keeps] == [(8, 8), (8, 8), (5, 8)]
    assert keeps.dropped_rows == 0
    drops = open_stream(stream_config(stage_of(paths, batch_size=8, drop_last=True)))
    assert drops.dropped_rows == 0
    assert [batch.num_rows for batch in drops] == [8, 8]
    assert drops.dropped_rows == 5


@pytest.mark.parametrize(
    ("rows", "world_size", "batch_size", "lanes"),
    [(21, 64, 1, None), (40, 6, 10, 1)],
    ids=["21 rows on 64 ranks", "4 batches on 6 ranks"],
)
def test_too_little_for_every_rank_is_refused_on_every_rank(write_shards, rows, world_size, batch_size, lanes):
    """D9, D11: the same refusal whichever rank asks, naming the stage's rows and the ranks."""
    config = stream_config(stage_of(write_shards([rows]), batch_size=batch_size, name="small"), lanes=lanes)
    told = set()
    for rank in (0, world_size - 1):
        with pytest.raises(ConfigError, match="small") as caught:
            open_batch_stream(config, rank=rank, world_size=world_size)
        told.add(str(caught.value))
    assert len(told) == 1
    assert str(rows) in told.pop()


def test_a_batch_larger_than_the_data_is_refused_with_drop_last(write_shards):
    """D7: 100 rows in batches of 101 with drop_last would be nothing: refused; without, it is one batch."""
    paths = write_shards([100])
    with pytest.raises(ConfigError, match="drop_last"):
        open_batch_stream(stream_config(stage_of(paths, batch_size=101, drop_last=True)))
    with open_batch_stream(stream_config(stage_of(paths, batch_size=101))) as stream:
        assert [batch.num_rows for batch in stream] == [100]


def test_sources_smaller_than_workers_and_ranks_work(write_shards, open_stream):
    """D10, F6: two sources of one row; three workers; an endless mix on two ranks, saved and loaded."""
    sources = write_shards([1], name="a"), write_shards([1], name="b", first_id=7)
    stream = open_stream(stream_config(stage_of(*sources, batch_size=1), threads=3))
    assert sorted(ids_of(list(stream))) == [0, 7]
    endless = stream_config(stage_of(*sources, batch_size=3, buffer_rows=4, infinite=True), lanes=2)
    reference = Reference(endless)
    for rank in range(2):
        stream = open_stream(endless, rank=rank, world_size=2)
        for k in range(5):
            reference.check(stream.next(), number=2 * k + rank)
        state = stream.state_dict()
        stream.seek(0)
        stream.load_state_dict(state)
        reference.check(stream.next(), number=10 + rank)


def test_a_rank_of_eight_decodes_an_eighth(write_shards, open_stream):
    """32 row groups of 50 rows on 8 lanes: a rank decodes its 200 rows and at most the row groups at its edges."""
    paths = write_shards([400] * 4, row_group_rows=50)
    config = stream_config(stage_of(paths, batch_size=10, buffer_rows=64), lanes=8, block_rows=50)
    decoded = []
    for rank, world_size in ((0, 8), (5, 8), (0, 1)):
        stream = open_stream(config, rank=rank, world_size=world_size)
        assert len(list(stream)) == 160 // world_size
        decoded.append(stream.stats()["decoded_rows"])
    assert 200 <= decoded[0] <= 300
    assert 200 <= decoded[1] <= 300
    assert 1600 <= decoded[2] <= 1600 + 7 * 50  # a row group on a lane's edge is decoded for both


def test_ranks_that_share_lanes_get_what_is_theirs(write_shards, open_stream):
    """Three lanes, which two ranks share, small slots, a mix: every batch is the order's."""
    web, code = write_shards([83], name="web"), write_shards([31], name="code", first_id=500, row_group_rows=5)
    stage = stage_of(file_source(web, weight=2), file_source(code), batch_size=5, buffer_rows=12)
    config = stream_config(stage, lanes=3, block_rows=7)
    reference = Reference(config)
    for rank in range(2):
        stream = open_stream(config, rank=rank, world_size=2)
        reference.check_rest(stream, position=0, rank=rank, world_size=2)
        stream.seek(3)
        reference.check_rest(stream, position=3, rank=rank, world_size=2)


@pytest.mark.parametrize(
    ("rank", "world_size", "name", "value"),
    [
        (-1, 1, "rank", "-1"),
        (2, 2, "rank", "2"),
        (0, 0, "world_size", "0"),
        (0, -2, "world_size", "-2"),
        (True, 2, "rank", "True"),
        (0, True, "world_size", "True"),
        (1.0, 2, "rank", "1.0"),
        ("0", 1, "rank", "'0'"),
        (None, 1, "rank", "None"),
    ],
)
def test_a_senseless_rank_is_refused_before_anything_starts(write_shards, rank, world_size, name, value):
    """D13: the wrong one of the two is named with its value."""
    config = stream_config(stage_of(write_shards([8])))
    with pytest.raises(ConfigError, match=f"`{name}`") as caught:
        open_batch_stream(config, rank=rank, world_size=world_size)
    assert value in str(caught.value)
    assert len(caught.value.problems) == 1


def test_ranks_that_leave_or_never_come_hold_up_no_other(write_shards, open_stream):
    """C4, M14: of four ranks one never starts and one leaves after three batches; the other two finish."""
    config = stream_config(stage_of(write_shards([60, 60]), batch_size=5, buffer_rows=16))
    reference = Reference(config, lanes=4)
    streams = {rank: open_stream(config, rank=rank, world_size=4) for rank in (0, 1, 3)}
    for k in range(3):
        reference.check(streams[1].next(), number=1 + 4 * k)
    streams[1].close()
    for rank in (0, 3):
        assert reference.check_rest(streams[rank], position=0, rank=rank, world_size=4) == 30
