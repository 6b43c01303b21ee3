"""The rows of a stream: each once, where the order's arithmetic puts it, with the values that pyarrow reads there."""

from __future__ import annotations

import numpy as np
import pytest

from o41td import BatchStreamConfig, open_batch_stream
from o41td.order import add_digests
from stream_reference import Reference, file_source, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


def _mixed(write_shards, **keys) -> BatchStreamConfig:
    """Two shuffled sources of shards of unequal sizes, 3 : 1."""
    web = write_shards([37, 1, 90], name="web", row_group_rows=11)
    code = write_shards([25, 40], name="code", first_id=1000, row_group_rows=7)
    sources = file_source(web, weight=3.0, name="web"), file_source(code, weight=1.0, name="code")
    return stream_config(stage_of(*sources, batch_size=9, buffer_rows=24), **keys)


def test_every_row_comes_once_in_the_order_of_the_arithmetic_with_the_values_of_pyarrow(write_shards, open_stream):
    """A shuffled mix of two sources equals the independent order and the independent read, row for row."""
    config = _mixed(write_shards)
    reference = Reference(config)
    stream = open_stream(config)
    batches = [reference.check(batch, number=number) for number, batch in enumerate(stream)]
    assert sorted(ids_of(batches)) == [*range(128), *range(1000, 1065)]
    assert len(batches) == reference.num_batches() == 22  # ceil(193 / 9)
    assert stream.order_digest == add_digests(*[reference.digest(n, n) for n in range(22)])
    assert stream.dropped_rows == 0
    assert stream.next() is None


def test_rows_keep_the_listed_order_without_a_shuffle(write_shards, open_stream):
    """B3: 50 row groups of 3 to 9 rows come in strictly ascending order from two workers."""
    rows = [3 + k % 7 for k in range(50)]
    paths = write_shards(rows, row_group_rows=1000)
    stream = open_stream(stream_config(stage_of(paths, batch_size=10), threads=2, lookahead=3, block_rows=8))
    assert ids_of(list(stream)) == list(range(sum(rows)))


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 4, "lookahead": 1},
        {"threads": 2, "block_rows": 1, "lookahead": 7, "prefetch_batches": 9},
        {"threads": 1, "block_rows": 100_000},
        {"threads": 1, "block_rows": 5, "lookahead": 1, "prefetch_batches": 1},
        {"threads": 1, "max_row_group_bytes": 1},
    ],
    ids=lambda settings: ",".join(f"{name}={value}" for name, value in settings.items()),
)
def test_the_sequence_does_not_depend_on_how_it_is_decoded(write_shards, settings):
    """B1, B6: workers, lookahead, prefetch, slot size and streamed row groups change no byte."""
    config = _mixed(write_shards, **settings)
    reference = Reference(config)
    with open_batch_stream(config) as stream:
        for number in range(reference.num_batches()):
            reference.check(stream.next(), number=number)
        assert stream.next() is None


def test_two_runs_of_an_infinite_mix_are_equal_and_epochs_differ(write_shards, open_stream):
    """B5, E3, F5: each pass has another order, and the same one in every run, whatever the number of workers."""
    small, large = write_shards([10, 3], name="small", row_group_rows=4), write_shards([60], name="large", first_id=100)
    stage = stage_of(small, large, batch_size=7, buffer_rows=16, infinite=True)
    runs = []
    for threads in (1, 3):
        stream = open_stream(stream_config(stage, threads=threads))
        runs.append([(batch.batch_index, batch["id"].tolist()) for batch in (stream.next() for _ in range(60))])
    assert runs[0] == runs[1]
    assert all(len(ids) == 7 for _, ids in runs[0])
    ids = [row_id for _, ids in runs[0] for row_id in ids if row_id < 100]
    passes = [ids[first : first + 13] for first in range(0, len(ids) - 12, 13)]
    assert len(passes) >= 8
    assert all(sorted(one) == list(range(13)) for one in passes)
    assert len({tuple(one) for one in passes}) == len(passes)


def test_another_seed_is_another_order_of_the_same_rows(write_shards, open_stream):
    """E1: seeds up to 2^64-1 work and differ."""
    paths = write_shards([64])
    orders = []
    for seed in (2**32 - 1, 2**64 - 1):
        config = stream_config(stage_of(paths, batch_size=16, buffer_rows=64), seed=seed)
        reference = Reference(config)
        stream = open_stream(config)
        orders.append(ids_of([reference.check(batch, number=n) for n, batch in enumerate(stream)]))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(64))


def test_a_mix_keeps_its_weights_at_every_prefix(write_shards, open_stream):
    """F3, F7: weights are shares of rows, to within one row at the end of every chunk of 256; sizes do not matter."""
    a, b = write_shards([4000], name="a", row_group_rows=500), write_shards([9000], name="b", first_id=10_000)
    stream = open_stream(stream_config(stage_of(file_source(a, weight=10), file_source(b, weight=20), batch_size=256)))
    from_a = np.cumsum([(stream.next()["id"] < 10_000).sum() for _ in range(40)])
    assert np.abs(from_a - np.arange(1, 41) * 256 / 3).max() <= 1


def test_a_source_that_runs_out_leaves_and_the_others_go_on(write_shards, open_stream):
    """F6, F7: a finite mix ends when all sources are empty; three rows in a mix of equal weights all come."""
    stage = stage_of(
        write_shards([50], name="a"), write_shards([3], name="b", first_id=900), batch_size=8, buffer_rows=8
    )
    stream = open_stream(stream_config(stage))
    ids = ids_of(list(stream))
    assert sorted(ids) == [*range(50), 900, 901, 902]


def test_shards_of_any_shape_in_one_line(write_shards, open_stream):
    """L17: shards of five, no and seven rows give twelve rows; single-row row groups and a large one mix."""
    paths = [*write_shards([5, 0, 7]), *write_shards([40], name="ones", first_id=12, row_group_rows=1)]
    paths += write_shards([300], name="big", first_id=52, row_group_rows=300)
    stream = open_stream(stream_config(stage_of(paths, batch_size=32), block_rows=16))
    assert ids_of(list(stream)) == list(range(352))


def test_one_shard_in_two_sources_is_read_for_each(write_shards, open_stream):
    """Two sources over one file are two sources: every row comes once from each."""
    paths = write_shards([20])
    stream = open_stream(stream_config(stage_of(file_source(paths, name="a"), file_source(paths, name="b"))))
    assert sorted(ids_of(list(stream))) == sorted([*range(20), *range(20)])
