"""Processes of the loader that send what they should not are replaced or refused, and nothing of it is believed."""

from __future__ import annotations

import logging
import struct
import time
from pathlib import Path

import pytest

from loader_processes import wait_until
from o41td import CoordinatorError, open_batch_stream
from o41td.runtime import list_loaders
from o41td.workers.message_codec import encode_message
from o41td.workers.messages import (
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    FooterFailed,
    Message,
    PieceBegun,
    StatsRequest,
)
from stream_reference import Reference, stage_of, stream_config

ERROR = {"kind": "CorruptDataError", "fields": {"detail": "a lie"}, "notes": []}


def _frame(message: Message) -> str:
    payload = encode_message(message)
    return "write:" + (struct.pack("<I", len(payload)) + payload).hex()


TEXT = "write:" + b"Warning: something printed this".hex()
AT_START = {
    "a length of 4 GiB": "write:ffffffff",
    "a footer that it was not asked for": _frame(FooterFailed(99, ERROR)),
}
AT_A_SHARD = {
    "text": TEXT,
    "no message of a worker": _frame(StatsRequest(1)),
    "a block that it was not given": _frame(BlockDecoded(700, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, [], [])),
    "a failure of a block that it was not given": _frame(BlockFailed(-1, [bytes(8)], [ERROR])),
    "a piece that there is not": _frame(PieceBegun(0, 900)),
}
OF_A_COORDINATOR = {
    "text": TEXT,
    "batches without their rows": _frame(BatchesReady(1, 0, [0], [1], [0], [False], [-1], b"")),
    "another's message": _frame(StatsRequest(1)),
}


@pytest.fixture
def config(write_shards):
    """Six shards in small slots, read by two workers."""
    return stream_config(stage_of(write_shards([40] * 6), batch_size=10, buffer_rows=50), threads=2, block_rows=16)


def _restarts_of_workers(stream) -> int:
    return sum(worker["restarts"] for worker in stream.stats()["workers"])


@pytest.mark.parametrize("words", AT_START.values(), ids=AT_START.keys())
@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_worker_that_says_at_its_start_what_it_should_not_is_replaced(config, faulty_host, caplog, words):
    """The log says what it did, and the batches are right."""
    caplog.set_level(logging.INFO, "o41td")
    faulty_host.order("start", words, times=1)
    with open_batch_stream(config) as stream:
        Reference(config).check_rest(stream, position=0)
        assert faulty_host.times_done("start") >= 1
        wait_until(lambda: _restarts_of_workers(stream) == 1, "no replacement")
        assert stream.stats()["coordinator_restarts"] == 0
    assert " is replaced: it sent " in caplog.text


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_worker_that_says_at_a_shard_what_it_should_not_is_replaced(config, faulty_host, caplog, open_stream):
    """Whatever it says, one after the other in one stream: the log says what it did, and the batches are right."""
    caplog.set_level(logging.INFO, "o41td")
    reference = Reference(config)
    stream = open_stream(config)
    reference.check_rest(stream, position=0)
    shard = Path(config.stages[0].sources[0].files[3]).name
    for number, (what, words) in enumerate(AT_A_SHARD.items(), start=1):
        print(what)
        faulty_host.order(shard, words, times=1)
        stream.seek(0)
        reference.check_rest(stream, position=0)
        assert faulty_host.times_done(shard) >= 1
        wait_until(lambda number=number: _restarts_of_workers(stream) == number, "no replacement")
        assert stream.stats()["coordinator_restarts"] == 0
        wait_until(lambda number=number: caplog.text.count(" is replaced: it sent ") == number, "the log says nothing")


def test_a_coordinator_that_prints_to_its_socket_while_opening_is_an_error_at_once(config, faulty_host):
    """The error says what came, and does not wait for a timeout."""
    faulty_host.order("start", TEXT, module="o41td.coordinator")
    begun = time.monotonic()
    with pytest.raises(CoordinatorError, match="sent what is no message while opening"):
        open_batch_stream(config)
    assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("forked_faulty_loaders")
def test_a_coordinator_that_does_so_later_is_replaced(config, faulty_host, open_stream):
    """A frame that is none, batches without their rows, another's message: a new one goes on with the same bytes."""
    reference = Reference(config)
    stream = open_stream(config)
    for number, (what, words) in enumerate(OF_A_COORDINATOR.items(), start=1):
        print(what)
        stream.seek(0)
        reference.check(stream.next(), number=0)
        faulty_host.order("getuid", words, times=1, module="o41td.coordinator")
        list_loaders()  # it looks at who asks, and that is when it happens
        reference.check_rest(stream, position=1)
        wait_until(lambda number=number: stream.stats()["coordinator_restarts"] == number, "no replacement")
