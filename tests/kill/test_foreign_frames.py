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
from o41td.workers.messages import (
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    FooterFailed,
    Message,
    PieceBegun,
    StatsRequest,
    encode_message,
)
from stream_reference import Reference, stage_of, stream_config

ERROR = {"kind": "CorruptDataError", "fields": {"detail": "a lie"}, "notes": []}


def _frame(message: Message) -> str:
    payload = encode_message(message)
    return "write:" + (struct.pack("<I", len(payload)) + payload).hex()


TEXT = "write:" + b"Warning: something printed this".hex()
FOREIGN = {
    "a length of 4 GiB": ("start", "write:ffffffff"),
    "a footer that it was not asked for": ("start", _frame(FooterFailed(99, ERROR))),
    "text": ("shard", TEXT),
    "no message of a worker": ("shard", _frame(StatsRequest(1))),
    "a block that it was not given": ("shard", _frame(BlockDecoded(700, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, [], []))),
    "a failure of a block that it was not given": ("shard", _frame(BlockFailed(-1, [bytes(8)], [ERROR]))),
    "a piece that there is not": ("shard", _frame(PieceBegun(0, 900))),
}


@pytest.fixture
def config(write_shards):
    """Six shards in small slots, read by two workers."""
    return stream_config(stage_of(write_shards([40] * 6), batch_size=10, buffer_rows=50), threads=2, block_rows=16)


@pytest.mark.parametrize(("moment", "words"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_worker_that_says_what_it_should_not_is_replaced(config, faulty_host, caplog, moment, words):
    """At its start, or while it looks at a shard: the log says what it did, and the batches are right."""
    caplog.set_level(logging.INFO, "o41td")
    if moment == "shard":
        moment = Path(config.stages[0].sources[0].files[3]).name
    faulty_host.order(moment, words, times=1)
    with open_batch_stream(config) as stream:
        Reference(config).check_rest(stream, position=0)
        assert faulty_host.times_done(moment) >= 1
        wait_until(lambda: sum(worker["restarts"] for worker in stream.stats()["workers"]) == 1, "no replacement")
        assert stream.stats()["coordinator_restarts"] == 0
    assert " is replaced: it sent " in caplog.text


def test_a_coordinator_that_prints_to_its_socket_while_opening_is_an_error_at_once(config, faulty_host):
    """The error says what came, and does not wait for a timeout."""
    faulty_host.order("start", TEXT, module="o41td.coordinator")
    begun = time.monotonic()
    with pytest.raises(CoordinatorError, match="sent what is no message while opening"):
        open_batch_stream(config)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "words", [TEXT, _frame(BatchesReady(1, 0, [0], [1], [0], [False], b"")), _frame(StatsRequest(1))]
)
def test_a_coordinator_that_does_so_later_is_replaced(config, faulty_host, words):
    """A frame that is none, batches without their rows, another's message: a new one goes on with the same bytes."""
    reference = Reference(config)
    with open_batch_stream(config) as stream:
        reference.check(stream.next(), number=0)
        faulty_host.order("getuid", words, times=1, module="o41td.coordinator")
        list_loaders()  # it looks at who asks, and that is when it happens
        reference.check_rest(stream, position=1)
        wait_until(lambda: stream.stats()["coordinator_restarts"] == 1, "no replacement")
