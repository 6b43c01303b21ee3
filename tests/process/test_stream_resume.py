"""Checkpoints: taken at every batch, each resumed, the whole rest compared, also on another world size."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from loader_processes import run_python
from o41td import BatchStream, BatchStreamConfig, Checkpoint, open_batch_stream, resume_batch_stream
from o41td.order import add_digests
from stream_reference import Reference, file_source, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

WORLDS = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))


@pytest.fixture(scope="module")
def config(module_shards) -> BatchStreamConfig:
    """A shuffled mix, a listed order with drop_last, and an endless mix; two lanes whoever reads them."""
    web = module_shards([37, 1, 60], name="web", row_group_rows=11)
    code = module_shards([25, 16], name="code", first_id=1000, row_group_rows=7)
    mixed = file_source(web, weight=3.0, name="web"), file_source(code, weight=1.0, name="code")
    return stream_config(
        stage_of(*mixed, batch_size=9, buffer_rows=24, name="mixed"),
        stage_of(web, batch_size=5, drop_last=True, name="listed"),
        stage_of(*mixed, batch_size=4, buffer_rows=12, infinite=True, name="endless"),
        lanes=2,
    )


@pytest.fixture(scope="module")
def reference(config) -> Reference:
    """What the config must give."""
    return Reference(config)


@pytest.fixture(scope="module")
def streams(config) -> Iterator[dict[tuple[int, int], BatchStream]]:
    """An open stream for each rank of the worlds 1, 2 and 3, by (rank, world size)."""
    opened = {(r, w): open_batch_stream(config, rank=r, world_size=w) for r, w in WORLDS}
    yield opened
    for stream in opened.values():
        stream.close()


def _states(stream: BatchStream, *, stage: int, batches: int) -> list[dict]:
    """The state before each of the first batches of a stage, and behind the last; as JSON would bring it back."""
    stream.seek(0)
    stream.advance(stage)
    states = [stream.state_dict()]
    for _ in range(batches):
        assert stream.next() is not None
        states.append(stream.state_dict())
    return [json.loads(json.dumps(state)) for state in states]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_state_of_every_batch_gives_exactly_the_rest(streams, reference, stage):
    """A1, A3, A5: before the first batch, behind each, and behind the last, which gives a clean end."""
    stream = streams[0, 1]
    total = reference.num_batches(stage)
    for taken, state in enumerate(_states(stream, stage=stage, batches=total)):
        stream.load_state_dict(state)
        reference.check_rest(stream, position=taken, stage=stage)
        assert stream.checkpoint().batches_yielded == total


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_state_of_one_rank_gives_the_rest_on_more_ranks(streams, reference, stage, world_size):
    """G1: taken on one rank at every second batch, resumed on two or three: what they get and drop is the rest."""
    total = reference.num_batches(stage)
    rows = sum(len(reference.ids(number, stage)) for number in range(total))
    for taken, state in list(enumerate(_states(streams[0, 1], stage=stage, batches=total)))[::2]:
        before = sum(len(reference.ids(number, stage)) for number in range(taken))
        got = dropped = 0
        for rank in range(world_size):
            stream = streams[rank, world_size]
            stream.load_state_dict(state)
            got += reference.check_rest(stream, position=taken, rank=rank, world_size=world_size, stage=stage)
            dropped += stream.dropped_rows
        undeliverable = reference.orders[stage].total_rows - rows  # what drop_last takes anyway
        assert before + got + dropped == rows + undeliverable, f"behind batch {taken}"


def test_a_chain_of_world_sizes_joins_without_a_seam(streams, reference):
    """1, 2, 3 and again 1 ranks, over stage edges there and back: every batch is the next one of its stage."""
    state = streams[0, 1].state_dict()
    position, total = {0: 0, 1: 0, 2: 0}, 0
    state["cursor"] = [[0, 0]]
    for world_size, stage, rounds in (
        (1, 0, 3),
        (2, 0, 1),
        (3, 2, 5),
        (2, 2, 2),
        (3, 1, 1),
        (1, 0, 1),
        (1, 2, 4),
        (3, 0, 1),
    ):
        states = []
        for rank in range(world_size):
            stream = streams[rank, world_size]
            stream.load_state_dict(state)
            stream.advance(stage)
            for k in range(rounds):
                at = k * world_size + rank
                reference.check(stream.next(), number=position[stage] + at, stage=stage, batch_index=total + at)
            states.append(stream.state_dict())
        for own in states:
            del own["order_digest"]
        assert all(own == states[0] for own in states), "ranks differ in more than their own digest"
        state = streams[0, world_size].state_dict()
        position[stage] += rounds * world_size
        total += rounds * world_size
        assert state["batches_yielded"] == total
    counts = {stage: sum(len(reference.ids(n, stage)) for n in range(position[stage])) for stage in position}
    assert state["rows_yielded"] == sum(counts.values())
    assert [stage for stage, _ in state["cursor"]] == [0, 2, 1, 0, 2, 0]


def test_an_endless_mix_resumes_in_every_epoch(streams, reference):
    """A7, A10, F6: 139 rows an epoch of sources that start over on their own, resumed at every fifth batch."""
    stream = streams[0, 1]
    states = _states(stream, stage=2, batches=90)
    for taken in range(0, 90, 5):
        stream.load_state_dict(states[taken])
        for number in range(taken, min(taken + 8, 90)):
            reference.check(stream.next(), number=number, stage=2)
    assert states[90]["epochs"]["endless/code"] >= 1
    assert states[90]["epochs"]["endless/web"] >= 2
    assert states[0]["epochs"]["endless/web"] == 0


def test_a_position_beyond_two_to_the_32_and_40_is_as_near_as_any(streams, reference):
    """E1: an endless stage goes on at batch 2^33 and 2^40 as the order says."""
    stream = streams[0, 1]
    for position in (2**33, 2**40 + 1):
        state = stream.state_dict()
        state["cursor"] = [[2, position]]
        stream.load_state_dict(state)
        for number in range(position, position + 3):
            reference.check(stream.next(), number=number, stage=2)
        assert stream.checkpoint().batches_yielded == position + 3


def test_digests_go_on_for_the_same_rank_and_start_anew_for_another(streams, reference):
    """The sum over the ranks of a run is the same for any world size, and a resumed rank adds on to its own."""
    total = reference.num_batches(0) // 6 * 6
    whole = add_digests(*[reference.digest(number, number) for number in range(total)])
    for world_size in (1, 2, 3):
        digests = []
        for rank in range(world_size):
            stream = streams[rank, world_size]
            nothing_yet = {**stream.state_dict()["order_digest"], "value": "0" * 16}
            stream.load_state_dict({**stream.state_dict(), "cursor": [[0, 0]], "order_digest": nothing_yet})
            for _ in range(total // world_size // 2):
                stream.next()
            state = stream.state_dict()
            stream.seek(0)
            stream.load_state_dict(state)
            for _ in range(total // world_size - total // world_size // 2):
                stream.next()
            digests.append(stream.order_digest)
        assert add_digests(*digests) == whole, f"world size {world_size}"
    streams[1, 2].load_state_dict(state)
    assert streams[1, 2].order_digest == 0


def test_checkpoints_are_small_and_equal_on_every_rank(streams):
    """G7: below 8 KB, and the same document on all ranks but for its own digest."""
    texts = []
    for rank in range(3):
        stream = streams[rank, 3]
        stream.seek(0)
        stream.next()
        checkpoint = stream.checkpoint()
        assert len(checkpoint.to_json()) < 8192
        assert (checkpoint.rank, checkpoint.world_size, checkpoint.batches_yielded) == (rank, 3, 3)
        document = checkpoint.to_document()
        del document["order_digest"]
        texts.append(json.dumps(document))
    assert len(set(texts)) == 1


def test_a_saved_checkpoint_is_resumed_by_another_process_on_other_ranks(config, reference, tmp_path):
    """A1, A11: a script saves behind its fifth batch; new streams with other threads and ranks give the rest."""
    document, path = tmp_path / "config.json", tmp_path / "ckpt.json"
    document.write_text(json.dumps(config.to_document()))
    script = (
        "import sys; from o41td import *\n"
        "with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:\n"
        "    for _ in range(5): stream.next()\n"
        "    stream.checkpoint().save(sys.argv[2])\n"
    )
    ended = run_python("-c", script, str(document), str(path))
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    with resume_batch_stream(path, rank=1, world_size=2) as stream:
        reference.check_rest(stream, position=5, rank=1, world_size=2)
    document = Checkpoint.load(path).to_document()
    document["config"] |= {"threads": 2, "lookahead": 5, "prefetch_batches": 7, "block_rows": 13}
    with resume_batch_stream(Checkpoint.from_document(document)) as stream:
        assert reference.check_rest(stream, position=5) == 139 - 45
        assert stream.sources[1].shards[1].uri.endswith("part-00001.parquet")


@pytest.mark.parametrize("block_rows", [None, 5])
def test_a_small_shuffled_set_resumes_at_every_row(write_shards, open_stream, block_rows):
    """A3: 200 rows, a buffer of 64, batches of one, one slot or small ones: resumed at each of 201 positions."""
    config = stream_config(stage_of(write_shards([200]), batch_size=1, buffer_rows=64), block_rows=block_rows)
    stream = open_stream(config)
    straight = ids_of(list(stream))
    assert sorted(straight) == list(range(200))
    base = stream.state_dict()
    for taken in range(201):
        stream.load_state_dict({**base, "cursor": [[0, taken]]})
        few = 200 - taken if taken % 20 == 0 or taken > 190 else 3
        assert [stream.next()["id"][0] for _ in range(few)] == straight[taken : taken + few]
        if taken + few == 200:
            assert stream.next() is None
    assert stream.stats()["coordinator_restarts"] == 0


def test_resume_behind_the_last_batch_ends_at_once(write_shards):
    """A5, D: a checkpoint of a finished run resumes to its end, with the rows that every world size drops there."""
    config = stream_config(stage_of(write_shards([103]), batch_size=10, drop_last=True))
    with open_batch_stream(config) as stream:
        assert len(list(stream)) == 10
        assert stream.dropped_rows == 3
        checkpoint = stream.checkpoint()
    with resume_batch_stream(checkpoint) as stream:
        assert stream.dropped_rows == 0
        assert stream.next() is None
        assert stream.next() is None
        assert stream.dropped_rows == 3
        assert stream.checkpoint() == checkpoint
