"""Moving in a stream: seek, skip, advance; and asking it where things come from, without moving."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from o41td import BatchStream, BatchStreamConfig, CheckpointError, ConfigError
from stream_reference import file_source, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture(scope="module")
def config(module_shards) -> BatchStreamConfig:
    """A shuffled mix in tiny slots, a listed order, and an endless mix."""
    web = module_shards([37, 1, 60], name="web", row_group_rows=11)
    code = module_shards([25, 16], name="code", first_id=1000, row_group_rows=7)
    mixed = file_source(web, weight=3.0, name="web"), file_source(code, weight=1.0, name="code")
    return stream_config(
        stage_of(*mixed, batch_size=9, buffer_rows=24, name="mixed"),
        stage_of(web, batch_size=5, name="listed"),
        stage_of(*mixed, batch_size=4, buffer_rows=12, infinite=True, name="endless"),
        block_rows=6,
    )


@pytest.fixture
def stream(opened) -> BatchStream:
    """The stream, at its beginning."""
    opened.seek(0)
    opened.advance(0)
    return opened


def test_seek_goes_to_any_batch(stream, reference):
    """160 jumps to and fro, some while batches are on their way: each goes on with the right batches."""
    jumps = random.Random(3)
    total = reference.num_batches(0)
    for _ in range(160):
        position = jumps.randrange(total + 1)
        stream.seek(position)
        for number in range(position, min(total, position + jumps.choice((0, 0, 1, 1, 2, 5, total)))):
            reference.check(stream.next(), number=number)
    stream.seek(total)
    assert stream.next() is None
    assert stream.stats()["coordinator_restarts"] == 0


def test_skip_passes_over_rounds(stream, reference):
    """skip(3) behind batch 1 goes on with batch 5; skip(0) stays."""
    reference.check(stream.next(), number=0)
    reference.check(stream.next(), number=1)
    stream.skip(3)
    reference.check(stream.next(), number=5)
    stream.skip(0)
    reference.check(stream.next(), number=6)
    stream.skip(stream.num_rounds())
    assert stream.next() is None


@pytest.mark.parametrize("value", [-1, 1.0, True, "3", None, 16, 2**70], ids=repr)
def test_senseless_positions_are_refused_and_change_nothing(stream, reference, value):
    """Negative, fractional, boolean, text, beyond the end: refused with the value; the stream goes on."""
    reference.check(stream.next(), number=0)
    for move in (stream.seek, stream.skip):
        if value == 16 and move == stream.seek:
            continue  # 16 is the end itself, where seek may go; skip(16) behind batch 0 is beyond it
        told = value + 1 if move == stream.skip and value in (16, 2**70) else value
        with pytest.raises(ConfigError, match=str(told)):
            move(value)
    reference.check(stream.next(), number=1)


def test_advance_goes_to_and_fro_by_number_and_name(stream, reference):
    """Each stage goes on where it was left; batch_index counts through all of them; the current stage is a no-op."""
    position, index = [0, 0, 0], 0
    for stage, name, batches in (
        (0, "mixed", 3),
        (2, 2, 4),
        (1, "listed", 2),
        (0, 0, 5),
        (0, "mixed", 1),
        (2, "endless", 3),
    ):
        stream.advance(name)
        assert stream.stage == stage
        for _ in range(batches):
            reference.check(stream.next(), number=position[stage], stage=stage, batch_index=index)
            position[stage] += 1
            index += 1
    stream.advance(1)
    stream.advance(np.int64(0))
    reference.check(stream.next(), number=9, stage=0, batch_index=18)
    assert stream.checkpoint().cursor == ((0, 3), (2, 4), (1, 2), (0, 6), (2, 3), (0, 1))


def test_find_is_coordinates_the_other_way_round(stream):
    """Behind three stages each row is found in just the batches that hold it, those ahead in the current stage too."""
    taken = ((0, 3), (2, 4), (0, 1))
    for stage, batches in taken:
        stream.advance(stage)
        for _ in range(batches):
            stream.next()
    stages = [stage for stage, batches in taken for _ in range(batches)] + [0] * stream.num_rounds()
    comes = {}
    for number, stage in enumerate(stages):
        sources = stream.sources_of(stage)
        for source, shard, row in stream.coordinates(number).tolist():
            comes.setdefault((sources[source].shards[shard].uri, row), set()).add(number)
    assert len(comes) > 50
    for (uri, row), batches in comes.items():
        assert stream.find(uri, row, epochs=4) == sorted(batches)
    for shard, row, wrong in (("gone.parquet", 0, "gone.parquet"), (uri, 10**6, "1000000"), (uri, -1, "-1")):
        with pytest.raises(ConfigError, match=wrong):
            stream.find(shard, row)
    with pytest.raises(ConfigError, match="give 1 or more"):
        stream.find(uri, 0, epochs=0)


def test_seek_goes_anywhere_in_the_history(stream, reference):
    """After 3 batches of stage 0 and 4 of stage 2, seek(2) forgets what came later."""
    for stage, batches in ((0, 3), (2, 4)):
        stream.advance(stage)
        for _ in range(batches):
            stream.next()
    stream.seek(9)  # on in the last stage
    reference.check(stream.next(), number=6, stage=2, batch_index=9)
    stream.seek(4)
    reference.check(stream.next(), number=1, stage=2, batch_index=4)
    stream.seek(2)
    reference.check(stream.next(), number=2, stage=0, batch_index=2)
    reference.check(stream.next(), number=3, stage=0, batch_index=3)


@pytest.mark.parametrize("stage", [3, -1, "none", True, 1.0, None], ids=repr)
def test_an_unknown_stage_is_refused_with_the_known_ones(stream, reference, stage):
    """The error names the value and the stages there are; `num_rounds(None)` alone has a meaning."""
    for take in (stream.advance, stream.sources_of, stream.num_rounds):
        if stage is None and take == stream.num_rounds:
            continue
        with pytest.raises(ConfigError, match="mixed, listed, endless") as caught:
            take(stage)
        assert repr(stage) in str(caught.value)
    assert stream.sources_of("listed") is stream.sources_of(1)
    reference.check(stream.next(), number=0)


def test_a_finite_stage_ends_the_stream_and_advance_goes_on(stream, reference):
    """None at the end, again None, and then the other stage when the user says so."""
    reference.check_rest(stream, position=0)
    assert stream.next() is None
    assert list(stream) == []
    stream.advance("listed")
    reference.check_rest(stream, position=0, stage=1, base=reference.num_batches(0))


def test_num_rounds_is_what_is_left(stream, reference):
    """16 batches of stage 0, 20 of stage 1, no end of stage 2."""
    assert (reference.num_batches(0), reference.num_batches(1)) == (16, 20)
    assert [stream.num_rounds(stage) for stage in (None, 0, 1, 2)] == [16, 16, 20, None]
    stream.next()
    assert [stream.num_rounds(), stream.num_rounds(1)] == [15, 20]
    stream.seek(16)
    assert stream.num_rounds() == 0


def test_coordinates_name_every_row(stream, reference):
    """A batch's coordinates, and the stream's of any global batch, are the order's, and lead to the rows' ids."""
    stream.next()
    stream.advance(1)
    batch = stream.next()
    coordinates = batch.coordinates()
    assert coordinates.dtype.names == ("source", "shard", "row")
    assert coordinates.tolist() == reference.coordinates(0, 1)
    first_id = {"part-00000": 0, "part-00001": 37, "part-00002": 38}
    shards = [stream.sources[0].shards[shard].uri[-18:-8] for shard in coordinates["shard"].tolist()]
    assert [first_id[shard] + row for shard, row in zip(shards, coordinates["row"], strict=True)] == batch[
        "id"
    ].tolist()
    assert stream.coordinates(0).tolist() == reference.coordinates(0, 0)
    assert stream.coordinates(1).tolist() == reference.coordinates(0, 1)
    assert stream.coordinates(5).tolist() == reference.coordinates(4, 1)


def test_keys_name_contents(stream):
    """The same batch has the same key in another pass; no two batches share one."""
    keys = [stream.next().key for _ in range(10)]
    assert len(set(keys)) == 10
    stream.seek(0)
    assert [stream.next().key for _ in range(10)] == keys


def test_a_batch_of_an_earlier_place_still_tells_where_it_came_from(stream, reference):
    """coordinates() and key of a kept batch do not follow the stream to another stage."""
    batch = stream.next()
    key = batch.key
    stream.advance(2)
    stream.next()
    assert batch.coordinates().tolist() == reference.coordinates(0, 0)
    assert batch.key == key


def test_a_batch_is_arrow(stream, reference):
    """to_arrow: scalars as plain columns, lists as fixed-shape tensors, equal values."""
    batch = stream.next()
    arrow = batch.to_arrow()
    expected = reference.arrays(0)
    assert arrow.num_rows == 9
    assert arrow.schema.field("id").type == pa.int64()
    assert arrow.schema.field("tokens").type == pa.fixed_shape_tensor(pa.int32(), (8,))
    assert arrow["flag"].to_pylist() == expected["flag"].tolist()
    assert arrow["score"].to_pylist() == expected["score"].tolist()
    assert arrow["tokens"].to_numpy_ndarray().tolist() == expected["tokens"].tolist()
    partial = list(stream)[-1]
    assert partial.num_rows == 4  # 139 = 15 * 9 + 4
    assert partial.to_arrow()["tokens"].to_numpy_ndarray().tolist() == reference.arrays(15)["tokens"].tolist()


def test_a_batch_is_a_mapping_of_its_fields(stream):
    """Names, an unknown name, lengths and the text form."""
    batch = stream.next()
    assert list(batch.arrays()) == list(batch) == ["id", "tokens", "score", "flag"]
    assert ("id" in batch, "di" in batch, len(batch)) == (True, False, 9)
    with pytest.raises(KeyError, match="id, tokens, score, flag"):
        batch["di"]
    assert "tokens: int32[9, 8]" in repr(batch)


def test_a_state_of_another_stream_is_refused_with_what_differs(stream, reference):
    """G3: another seed, batch size, field, shard size: named with both values; the stream goes on where it was."""
    reference.check(stream.next(), number=0)

    def changed(*path, value):
        document = stream.state_dict()
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return document

    for other, name in (
        (changed("config", "seed", value=8), "seed"),
        (changed("config", "lanes", value=2), "lanes"),
        (changed("config", "stages", 0, "batch_size", value=10), "batch_size"),
        (changed("config", "fields", 0, "dtype", value="f64"), "fields"),
        (changed("sources", 0, "size_bytes", 1, value=12), "part-00001"),
        (changed("sources", 1, "rows", 0, value=12), "part-00000"),
        (changed("sources", 1, "versions", 0, value="0" * 16), "part-00000"),
        (changed("order_version", value=999), "order_version"),
    ):
        with pytest.raises(CheckpointError) as caught:
            stream.load_state_dict(other)
        assert name in str(caught.value)
        assert caught.value.differences, name
    reference.check(stream.next(), number=1)


def test_a_state_of_the_same_shards_by_other_paths_is_taken(stream, reference):
    """Rows, sizes and versions tell shards; without any of the last two, only the path does."""
    reference.check(stream.next(), number=0)
    state = stream.state_dict()
    state["config"]["stages"][0]["sources"][0]["files"] = ["/elsewhere/*.parquet"]
    state["sources"][0]["prefix"] = "/elsewhere/" + state["sources"][0]["prefix"]
    stream.load_state_dict(state)
    reference.check(stream.next(), number=1)
    for column in ("size_bytes", "versions"):
        state["sources"][0][column] = [None for _ in state["sources"][0][column]]
    with pytest.raises(CheckpointError, match="/elsewhere/"):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"cursor": []},
        {"cursor": [[9, 1]]},
        {"cursor": [[0, 17]]},
        {"cursor": [[0, -1]]},
        {"cursor": "0"},
        {"format": "?"},
    ],
    ids=str,
)
def test_a_state_that_names_no_place_is_refused_and_the_stream_goes_on(config, stream, reference, change):
    """No run, a stage that is not there, a batch beyond the end, negative: CheckpointError, and nothing has moved."""
    reference.check(stream.next(), number=0)
    state = stream.state_dict() | change
    with pytest.raises(CheckpointError):
        stream.load_state_dict(state)
    reference.check(stream.next(), number=1)
