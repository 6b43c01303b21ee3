"""The Python side of the golden frames, and the numbers that the C header repeats."""

from __future__ import annotations

import re
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

import o41td
from golden_frames import FRAMES, payload_of
from o41td.index import SourceIndex
from o41td.job import FREE_TO_CHANGE, StreamJob
from o41td.order import ORDER_VERSION
from o41td.shm.layout import ArenaLayout
from o41td.workers.channel import Channel
from o41td.workers.message_codec import decode_message, encode_message
from o41td.workers.messages import (
    CONSUMER_TYPES,
    MESSAGE_TYPES,
    PROTOCOL,
    BatchesGathered,
    BatchesReady,
    JoinLoader,
    LoaderFailed,
    LoaderJoined,
    LoaderNotice,
    LoaderOpened,
    OpenProgress,
    ServeFrom,
    StatsReply,
    StatsRequest,
    StreamEnded,
    StreamFailed,
)

HEADER = (Path(o41td.get_include()) / "o41td.h").read_text(encoding="ascii")
ROWS = b"".join(row.to_bytes(8, "little") for row in (7, 0))
CORRUPT = {
    "detail": "a page is damaged",
    "source": "web",
    "shard": "/g/a.parquet",
    "row_group": 0,
    "row": None,
    "column": "id",
    "advice": "Replace it",
}
TAKEN = {"detail": "rank 1 is taken by process 77", "where": None, "advice": "Ask for another"}
MESSAGES = [
    JoinLoader(1),
    OpenProgress(0, 1),
    LoaderNotice("hello", is_warning=False),
    ServeFrom(generation=1, rank=1, world_size=2, stage=0, position=0, global_batch=0),
    BatchesReady(1, 0, [1, 3], [2, 2], [2**64 - 2, 5], [False, True], [4, -1], ROWS),
    BatchesGathered(generation=1, gathered=2, delivered=2, batches=2, rows=4, wait_s=0.25, dropped_rows=0),
    StatsRequest(0),
    StatsReply(0, {"format": 1}),
    StreamEnded(1, 3),
    StreamFailed(1, {"kind": "CorruptDataError", "fields": CORRUPT, "notes": []}),
    LoaderFailed({"kind": "ConnectError", "fields": TAKEN, "notes": []}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_its_golden_frame(message):
    """What a channel sends is the golden frame to the byte, and what it reads of that is the message."""
    _sender, frame = FRAMES[type(message).__name__]
    ours, theirs = socket.socketpair()
    channel = Channel(ours, blocking=True)
    with theirs:
        channel.send(message)
        assert theirs.recv(4096) == frame
        theirs.sendall(frame)
        assert channel.receive(timeout_s=10) == message
    channel.close()


def test_the_golden_opening_is_a_loaders():
    """Both messages of an opening are whole, are framed by their length, and hold what their records are made into."""
    joined, opened = (decode_message(payload_of(name)) for name in ("LoaderJoined", "LoaderOpened"))
    assert isinstance(joined, LoaderJoined)
    assert isinstance(opened, LoaderOpened)
    job = StreamJob.from_record(joined.job)
    assert (job.lanes, job.stages[0].batch_size, job.stages[0].name, joined.world_size) == (2, 2, "stage0", 2)
    assert o41td.BatchStreamConfig.from_document(joined.config).stages[0].batch_size == 2
    layout = ArenaLayout.from_record(opened.layout)
    assert (layout.num_rows, layout.total_bytes, asdict(layout.fields[0])["name"]) == (8, 4096, "id")
    index = SourceIndex.from_record(opened.sources[0])
    assert (index.num_rows, index.shards[0].version, index.shards[0].size_bytes) == (7, "v1ab", 500)
    for name, (_sender, frame) in FRAMES.items():
        assert int.from_bytes(frame[:4], "little") == len(frame) - 4, name
        assert encode_message(decode_message(frame[4:])) == frame[4:], name


def test_every_message_between_a_consumer_and_a_served_loader_is_golden():
    """There is a frame of each message that either sends the other."""
    said = {kind.__name__: ">" if number < 4 else "<" for number, kind in enumerate(CONSUMER_TYPES)}
    assert {name: sender for name, (sender, _frame) in FRAMES.items()} == said


def test_the_header_speaks_this_version():
    """The C header repeats PROTOCOL, the version of the order and the tags of its messages: mend them in o41td.h."""
    assert re.findall(r'#define O41TD_PROTOCOL "(\w+)"', HEADER) == [PROTOCOL]
    assert re.findall(r"#define O41TD_ORDER_VERSION (\d+)", HEADER) == [str(ORDER_VERSION)]
    tags = {name: int(tag) for name, tag in re.findall(r"^    O41TD__([A-Z_]+) = (\d+)", HEADER, flags=re.MULTILINE)}
    spoken = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): name for name in FRAMES}
    assert tags == {name: MESSAGE_TYPES.index(getattr(o41td.workers.messages, spoken[name])) for name in spoken}


def test_the_header_compares_what_python_compares():
    """A server that came back may differ, for the C client as for Python, in the settings of FREE_TO_CHANGE alone."""
    listed = re.findall(r"is_free_to_change\(.*?names\[\] = \{(.*?)\}", HEADER, flags=re.DOTALL)
    assert [tuple(re.findall(r'"(\w+)"', names)) for names in listed] == [FREE_TO_CHANGE]


def test_the_protocols_page_has_these_messages():
    """The table of docs/protocol.md names each golden message with its sender, tag and fields."""
    page = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text()
    rows = re.findall(r"^\| ([<>]) \| (\d+) \| (\w+) \| (.*) \|$", page, flags=re.MULTILINE)
    told = {name: (sender, int(tag), tuple(re.findall(r"`(\w+)`", fields))) for sender, tag, name, fields in rows}
    kinds = {kind.__name__: (tag, kind._fields) for tag, kind in enumerate(MESSAGE_TYPES)}
    assert told == {name: (sender, *kinds[name]) for name, (sender, _frame) in FRAMES.items()}
