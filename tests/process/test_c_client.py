"""The C client: the batches, digests, dropped rows and checkpoints of Python, whatever happens to the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from c_programs import SUPPORT, CConsumer, watched
from o41td import BatchStreamConfig, Checkpoint, open_batch_stream
from stream_reference import stage_of, stream_config


@pytest.fixture(scope="module")
def consumer_command(tmp_path_factory) -> list[str]:
    """How to run the consumer."""
    return watched(SUPPORT / "c_consumer.c", tmp_path_factory.mktemp("c"))


@pytest.fixture
def consume(serve, consumer_command) -> Iterator[Callable[..., CConsumer]]:
    """Starts consumers, which have ended behind the test, before the loaders do."""
    with ExitStack() as stack:

        def started(name: str, rank: int, **keys: float) -> CConsumer:
            consumer = CConsumer(consumer_command, name, rank, **keys)
            stack.callback(consumer.kill)
            return consumer

        yield started


def test_batches_digest_and_dropped_rows_are_those_of_python(write_shards, serve, consume, tmp_path):
    """Rank 1 of 2 to a stage's end, 24 batches of 122 rows, and back to a checkpoint; what does not fit is refused."""
    config = stream_config(stage_of(write_shards([101, 60, 83]), batch_size=5, buffer_rows=24, drop_last=True))
    served = serve(config, "--ranks", "2")
    consumer = consume(served.name, 1)
    with open_batch_stream(config, rank=1, world_size=2) as stream:
        assert consumer.line() == "ok"
        fields = "id:i64:8: tokens:i32:32:8 score:f64:8: flag:bool:1:"
        assert consumer.ask("fields") == f"fields {fields} max_rows=5 world_size=2 stages=stage0"
        consumer.take_from(stream, 7)
        assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
        text = stream.checkpoint().to_json()
        assert (tmp_path / "c.json").read_text() == text
        consumer.take_from(stream, 17)
        assert stream.next() is None
        assert stream.dropped_rows == 2
        end = f"end 2 {stream.order_digest:016x}"
        assert [consumer.ask("next 1"), consumer.ask("next 1")] == [end, end]
        assert consumer.ask(f"resume {tmp_path / 'c.json'}") == "ok"
        stream.load_state_dict(Checkpoint.from_json(text).to_document())
        consumer.take_from(stream, 17)
        assert consumer.ask("next 1") == end

    texts = {"short": text[:-30], "changed": text.replace('"rank":1', '"rank":0'), "empty": ""}
    texts["seed"] = open_checkpoint(config.model_copy(update={"seed": 8}))
    write_shards([101, 60, 82])  # under the same names
    texts["sources"] = open_checkpoint(config)
    said = {}
    for name, content in texts.items():
        (tmp_path / "bad.json").write_text(content)
        said[name] = consumer.ask(f"resume {tmp_path / 'bad.json'}")
    assert said == dict.fromkeys(
        ("short", "changed", "empty"), "error this is no checkpoint, or one that is damaged or cut short"
    ) | {
        "seed": "error the checkpoint is of another stream: `seed` of its config differs",
        "sources": "error the checkpoint is of another stream: its shards differ",
    }
    assert consumer.ask("next 1") == end  # it stayed where it was
    for rank, expected in ((1, f"rank 1 is taken by process {consumer.process.pid}"), (7, "rank 7 is not served here")):
        refused = consume(served.name, rank)
        assert expected in refused.line()
        refused.end()
    consumer.end()


def open_checkpoint(config: BatchStreamConfig) -> str:
    """The text of a checkpoint at the beginning of rank 1 of 2."""
    with open_batch_stream(config, rank=1, world_size=2) as stream:
        return stream.checkpoint().to_json()


def test_stages_exclusions_and_checkpoints_of_either_language(write_shards, serve, consume, join, tmp_path):
    """Two stages, one without end, batches 3 to 5 excluded: the same checkpoint text, from which the other goes on."""
    paths = write_shards([60, 44])
    config = stream_config(
        stage_of(paths, batch_size=4, name="listed"),
        stage_of(paths, batch_size=7, buffer_rows=16, infinite=True, name="endless"),
        exclude=[[3, 6], [20, 21]],
    )
    served = serve(config, "--ranks", "2")
    consumer = consume(served.name, 0)
    assert consumer.line() == "ok"
    with open_batch_stream(config, world_size=2) as stream:
        for stage, count in ((0, 3), (1, 5), (0, 2), (1, 6)):
            assert consumer.ask(f"advance {stage}") == "ok"
            stream.advance(stage)
            consumer.take_from(stream, count)
        assert consumer.ask("release") == "ok"
        assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
        checkpoint = stream.checkpoint()
        assert (tmp_path / "c.json").read_text() == checkpoint.to_json()
        assert checkpoint.rows_yielded == 2 * (5 * 4 + 11 * 7)
        stream.next()
        stream.advance(0)
        stream.next()
        stream.checkpoint().save(tmp_path / "python.json")
        assert consumer.ask(f"resume {tmp_path / 'python.json'}") == "ok"
        consumer.take_from(stream, 3)
        assert consumer.ask("advance 2") == "error there is no stage 2: there are 2"
    python = join(served.name, 1)
    python.load_state_dict(Checkpoint.load(tmp_path / "c.json").to_document())
    consumer.ask(f"resume {tmp_path / 'c.json'}")
    batches = [(consumer.take(1)[0].batch_index, python.next().batch_index) for _ in range(3)]
    assert batches == [(first, first + 1) for first in range(36, 42, 2)]  # 16 rounds of two, and four excluded
    consumer.end()


def test_mixed_sources_are_resumed_from_too(write_shards, serve, consume, tmp_path):
    """Of a mix the C checkpoint leaves `epochs` out, and Python goes on from it all the same."""
    sources = write_shards([60, 44], name="web"), write_shards([30], name="code", first_id=1000)
    config = stream_config(stage_of(*sources, batch_size=6, buffer_rows=16, infinite=True), lanes=3)
    served = serve(config, "--ranks", "1")
    consumer = consume(served.name, 0)
    assert consumer.line() == "ok"
    with open_batch_stream(config) as stream:
        consumer.take_from(stream, 11)
        assert consumer.ask(f"checkpoint {tmp_path / 'c.json'}") == "ok"
        checkpoint = Checkpoint.load(tmp_path / "c.json")
        assert checkpoint == replace(stream.checkpoint(), epochs={})
        stream.seek(0)
        stream.load_state_dict(checkpoint.to_document())
        consumer.take_from(stream, 3)
    consumer.end()


def test_a_stream_outlives_its_server(write_shards, serve, consume):
    """A killed coordinator and a server started anew cost nothing; SIGTERM ends a wait; another stream is refused."""
    config = stream_config(stage_of(write_shards([101, 60, 83]), batch_size=5, buffer_rows=24))
    served = serve(config, "--ranks", "2")
    consumer = consume(served.name, 1)
    with open_batch_stream(config, rank=1, world_size=2) as stream:
        assert consumer.line() == "ok"
        consumer.take_from(stream, 3)
        os.kill(served.coordinator_pid, signal.SIGKILL)
        consumer.take_from(stream, 5)
        assert served.end()[0] == 0
        consumer.tell("next 2")
        consumer.take_notice(
            f"notice 1 the loader '{served.name}' is gone; rank 1 waits up to 20 s for it to come back"
        )
        consumer.process.send_signal(signal.SIGTERM)
        assert consumer.line() == "stopped stopped while it waited"
        assert consumer.ask("resume_flag") == "ok"
        again = serve(config.model_copy(update={"threads": 2, "block_rows": 16}), "--ranks", "2", name=served.name)
        consumer.take_from(stream, 5)
    assert again.end()[0] == 0
    serve(config.model_copy(update={"seed": 8}), "--ranks", "2", name=served.name)
    consumer.tell("next 30")
    lines = [consumer.line()]
    while lines[-1].startswith("batch"):
        lines.append(consumer.line())
    assert lines[-1] == (
        f"error the loader '{served.name}' came back as another stream: its settings or its world size differ. "
        "Serve the config that this stream began with, or connect anew."
    )
    consumer.end()


def test_nobody_serves_under_a_name(serve, consume):
    """The error names what is not there, at once, and what starts one."""
    consumer = consume("no-such-loader", 0)
    assert consumer.line().startswith("error no loader is served under the name 'no-such-loader'. ")
    assert consumer.ask("next 1") == "error this stream was not opened"
    consumer.end()
