"""The C client at a served loader: the batches, digests, dropped rows and checkpoints of Python, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from c_programs import CConsumer
from loader_processes import kill
from o41td import BatchStream, BatchStreamConfig, Checkpoint, connect, open_batch_stream
from served_loader import Served, serving
from stream_reference import stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")


@pytest.fixture(scope="module")
def config(module_shards) -> BatchStreamConfig:
    """A stage of 20 batches that drops rows, an endless one, an endless mix; batches 3 to 5 and 20 are excluded."""
    web = module_shards([60, 44], name="web")
    code = module_shards([30], name="code", first_id=1000)
    return stream_config(
        stage_of(web, batch_size=5, buffer_rows=24, drop_last=True, name="finite"),
        stage_of(web, batch_size=7, buffer_rows=16, infinite=True, name="endless"),
        stage_of(web, code, batch_size=6, buffer_rows=16, infinite=True, name="mixed"),
        exclude=[[3, 6], [20, 21]],
    )


@pytest.fixture(scope="module")
def served(config, tmp_path_factory) -> Iterator[Served]:
    """The loader of this file's tests."""
    with serving(tmp_path_factory.mktemp("served")) as serve:
        yield serve(config, "--ranks", "2")


@pytest.fixture(scope="module")
def opened(config) -> Iterator[BatchStream]:
    """Rank 1 of 2 of a private loader, with which each test's consumer is compared."""
    with open_batch_stream(config, rank=1, world_size=2) as stream:
        yield stream


@pytest.fixture
def python(opened) -> BatchStream:
    """The stream, at its beginning."""
    opened.load_state_dict(_beginning(opened).to_document())
    return opened


def _beginning(stream: BatchStream) -> Checkpoint:
    """Where a stream began."""
    return replace(stream.checkpoint(), cursor=((0, 0),), order_digest=0)


@pytest.fixture
def consumer(served, consume: Callable[..., CConsumer]) -> CConsumer:
    """Rank 1 in C."""
    started = consume(served.name, 1)
    assert started.line() == "ok"
    return started


def test_batches_digest_and_dropped_rows_are_those_of_python(consumer, python, tmp_path):
    """To the end of a stage, to the byte, and to it once more from a checkpoint on the way."""
    fields = "id:i64:8: tokens:i32:32:8 score:f64:8: flag:bool:1:"
    assert consumer.ask("fields") == f"fields {fields} max_rows=7 world_size=2 stages=finite,endless,mixed"
    consumer.take_from(python, 3)
    assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
    checkpoint = python.checkpoint()
    assert (tmp_path / "c.json").read_text() == checkpoint.to_json()
    consumer.take_from(python, 5)  # 17 batches are left of 20: eight rounds, and one that is not whole
    assert python.next() is None
    end = f"end {python.dropped_rows} {python.order_digest:016x}"
    assert python.dropped_rows > 0
    assert [consumer.ask("next 1"), consumer.ask("next 1")] == [end, end]
    assert consumer.ask(f"resume {tmp_path / 'c.json'}") == "ok"
    python.load_state_dict(checkpoint.to_document())
    consumer.take_from(python, 5)
    assert consumer.ask("next 1") == end
    consumer.end()


def test_either_language_goes_on_from_the_others_checkpoint(consumer, python, served, tmp_path):
    """After moves between stages both write the same text; a mix adds nothing to `epochs`, which nobody reads."""
    for stage, count in ((1, 5), (0, 2), (1, 6)):
        assert consumer.ask(f"advance {stage}") == "ok"
        python.advance(stage)
        consumer.take_from(python, count)
    assert consumer.ask("release") == "ok"
    assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
    assert (tmp_path / "c.json").read_text() == python.checkpoint().to_json()
    assert consumer.ask("advance 2") == "ok"
    python.advance(2)
    consumer.take_from(python, 11)
    assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
    of_c, of_python = Checkpoint.load(tmp_path / "c.json"), python.checkpoint()
    known = {name: epoch for name, epoch in of_python.epochs.items() if "mixed" not in name}
    assert of_c == replace(of_python, epochs=known)
    python.next()
    python.load_state_dict(of_c.to_document())
    consumer.take_from(python, 2)
    python.advance(0)
    python.next()
    python.checkpoint().save(tmp_path / "python.json")
    assert consumer.ask(f"resume {tmp_path / 'python.json'}") == "ok"
    consumer.take_from(python, 3)
    with connect(served.name, rank=0) as other_rank:
        other_rank.load_state_dict(of_c.to_document())
        assert consumer.ask(f"resume {tmp_path / 'c.json'}") == "ok"
        batch = other_rank.next()
        assert batch is not None
        assert consumer.take(1)[0].batch_index == batch.batch_index + 1
    consumer.end()


def test_a_checkpoint_that_does_not_fit_is_refused(consumer, python, tmp_path):
    """What differs is named, and the stream stays where it is; what lies ahead may be excluded anew."""
    consumer.take_from(python, 4)
    checkpoint = python.checkpoint()
    text = checkpoint.to_json()
    source, *others = checkpoint.sources
    fewer = replace(source, rows=(60, 43))

    def configured(**keys: object) -> str:
        return replace(checkpoint, config=checkpoint.config | keys).to_json()

    another = "the checkpoint is of another stream: "
    damaged = "this is no checkpoint, or one that is damaged or cut short"
    refused = {
        text[:-30]: damaged,
        text.replace('"rank":1', '"rank":0'): damaged,
        "": damaged,
        configured(seed=8): f"{another}`seed` of its config differs",
        configured(exclude=[[3, 7], [20, 21]]): f"{another}`exclude` of its config differs before batch 11",
        replace(checkpoint, sources=(fewer, *others)).to_json(): f"{another}its shards differ",
        replace(checkpoint, cursor=((0, 60),)).to_json(): "the checkpoint's cursor has 60 batches of stage 0, of 20",
        replace(
            checkpoint, cursor=((3, 1),)
        ).to_json(): "the checkpoint's cursor names stage 3, and there are 3 stages",
        replace(
            checkpoint, order_version=1
        ).to_json(): "the checkpoint was taken under another version of the order than 2",
    }
    said = {}
    for content in refused:
        (tmp_path / "bad.json").write_text(content)
        said[content] = consumer.ask(f"resume {tmp_path / 'bad.json'}").removeprefix("error ")
    assert said == refused
    assert consumer.ask("advance 3") == "error there is no stage 3: there are 3"
    consumer.take_from(python, 1)
    (tmp_path / "ahead.json").write_text(configured(exclude=[[3, 6], [99, 200]], threads=5))
    assert consumer.ask(f"resume {tmp_path / 'ahead.json'}") == "ok"
    python.load_state_dict(checkpoint.to_document())
    consumer.take_from(python, 2)
    consumer.end()


@pytest.mark.usefixtures("forked_programs")
def test_a_stream_outlives_its_coordinator(config, python, serve, consume):
    """It is killed in mid-stream, and the rest comes to the byte."""
    served = serve(config, "--ranks", "2")
    consumer = consume(served.name, 1)
    assert consumer.line() == "ok"
    consumer.take_from(python, 2)
    kill(served.coordinator_pid)
    consumer.take_from(python, 6)
    assert python.next() is None
    assert consumer.ask("next 1") == f"end {python.dropped_rows} {python.order_digest:016x}"
    consumer.end()
