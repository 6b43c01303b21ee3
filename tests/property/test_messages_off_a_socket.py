"""Whatever comes off a socket: a message of the right types, or one clear error; never anything else."""

from __future__ import annotations

import os
import socket
import struct
import tracemalloc
from contextlib import closing
from functools import cache
from math import inf, nan
from typing import Any, get_type_hints

import msgpack
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_samples import MESSAGES, spoilt, wire_values
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.message_codec import decode_message, encode_message
from o41td.workers.messages import (
    MESSAGE_TYPES,
    AttachArena,
    BatchesGathered,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    FooterRead,
    LoaderFailed,
    LoaderNotice,
    Message,
    OpenLoader,
    ReadFooter,
    StatsReply,
    StatsRequest,
)


@cache
def _strict_readers(kind: type[Message]) -> dict[str, pydantic.TypeAdapter[Any]]:
    hints = get_type_hints(kind).items()
    return {name: pydantic.TypeAdapter(pydantic.FiniteFloat if hint is float else hint) for name, hint in hints}


def _is_as_annotated(message: Message) -> bool:
    """Whether pydantic, which had no part in the decoding, finds each field as its annotation says."""
    try:
        for name, reader in _strict_readers(type(message)).items():
            reader.validate_python(_as_text(getattr(message, name)), strict=True)
    except pydantic.ValidationError:
        return False
    return True


def _as_text(value: object) -> object:
    """File names that are no text come as lone surrogates, which pydantic refuses."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


def _decoded(payload: bytes) -> Message | None:
    try:
        return decode_message(payload)
    except ValueError:
        return None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_passes_whole_and_never_in_part(message: Message) -> None:
    """What we send comes out equal; each proper beginning of it, and anything behind it, is refused."""
    payload = encode_message(message)
    assert decode_message(payload) == message
    assert _is_as_annotated(message)
    assert not [size for size in range(len(payload)) if _decoded(payload[:size]) is not None]
    assert _decoded(payload + b"\xc0") is None


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_are_refused(payload: bytes) -> None:
    """Bytes that nobody meant as a message are an error, or by chance a message with fields of the right types."""
    message = _decoded(payload)
    assert message is None or _is_as_annotated(message)


@given(st.sampled_from(MESSAGES).flatmap(lambda message: spoilt(encode_message(message))))
@settings(max_examples=150, deadline=None)
def test_spoilt_messages_are_refused_or_right(payload: bytes) -> None:
    """A damaged message is an error, or still one that its annotations allow and that survives the way once more."""
    message = _decoded(payload)
    if message is not None:
        assert _is_as_annotated(message)
        assert _decoded(encode_message(message)) is not None


@given(st.integers(0, len(MESSAGES) - 1), st.data())
@settings(max_examples=150, deadline=None)
def test_a_field_of_the_wrong_type_is_refused(tag: int, data: st.DataObject) -> None:
    """With any one field replaced by anything, decoding agrees with pydantic's strict reading of the annotation."""
    values = list(MESSAGES[tag])
    if values:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(wire_values())
    message = _decoded(bytes(msgpack.packb([tag, *values], unicode_errors="surrogateescape")))
    told = MESSAGE_TYPES[tag](*values)
    if message is not None:
        assert _is_as_annotated(message)
    else:
        has_columns = isinstance(told, BatchesReady | FooterRead | BlockDecoded | BlockFailed)  # columns must fit
        assert has_columns or not _is_as_annotated(told) or _has_foreign_keys(told)


def _has_foreign_keys(value: object) -> bool:
    """Whether a map somewhere inside has a key that is no text, which the wire does not carry."""
    if isinstance(value, dict):
        return any(not isinstance(key, str) for key in value) or any(map(_has_foreign_keys, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_foreign_keys, value))


def _payload(kind: type[Message], **raw: bytes) -> bytes:
    """A message with the bytes of some fields given."""
    parts = [bytes([0x90 + 1 + len(kind._fields), MESSAGE_TYPES.index(kind)])]
    for name, value in zip(kind._fields, MESSAGES[MESSAGE_TYPES.index(kind)], strict=True):
        parts.append(raw.get(name) or bytes(msgpack.packb(value, unicode_errors="surrogateescape")))
    return b"".join(parts)


@pytest.mark.parametrize(
    "payload",
    [
        _payload(LoaderFailed, error=b"\x91" * 100_000),
        b"".join(b"\xdd" + struct.pack(">I", 60_000) for _ in range(900)) + bytes(60_000),
        _payload(StatsReply, stats=b"\xdf\xff\xff\xff\xff"),
        _payload(StatsReply, stats=b"\xdf" + struct.pack(">I", 60_000) + b"\x01" * 60_000),
        _payload(LoaderNotice, text=b"\xdb\xff\xff\xff\xff" + b"x" * 100),
        _payload(LoaderNotice, text=b"\xc6\xff\xff\xff\xff"),
    ],
    ids=["deep", "deep and wide", "a map of 2^32", "a map without half of it", "text of 4 GiB", "bytes of 4 GiB"],
)
def test_what_is_announced_takes_no_memory(payload: bytes) -> None:
    """Lists within lists, and lengths without content, are refused for the price of looking at them."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            decode_message(payload)
        _now, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize(
    ("fetch_s", "decode_s", "is_right"),
    [(1e308, 1e308, True), (inf, -inf, False), (inf, 1.0, False), (nan, 0.0, False), (-1e308, -1e308, True)],
)
def test_floats_that_no_clock_gives(fetch_s: float, decode_s: float, is_right: bool) -> None:
    """Each is looked at by itself: two that are finite may have no finite sum, infinities one that is nothing."""
    block = BlockDecoded(1, 2, 3, fetch_s, decode_s, 0.0, 0.0, 0.0, 0.0, [], [])
    assert _decoded(encode_message(block)) == (block if is_right else None)


@pytest.mark.parametrize(
    "value",
    [b"\xc7\x01\x05a", b"\xa2\xff\xfe", b"\xd4\x01a", b"\xca\x7f\xc0\x00\x00"],
    ids=["extension", "not UTF-8", "fixed extension", "NaN"],
)
def test_values_that_no_field_may_have(value: bytes) -> None:
    """An extension type and NaN are refused; bytes that are not UTF-8 pass as the file names they may be."""
    float32 = b"\xca\x3e\x80\x00\x00"  # 0.25
    assert _decoded(_payload(BatchesGathered, wait_s=float32)) == MESSAGES[MESSAGE_TYPES.index(BatchesGathered)]
    assert _decoded(_payload(BatchesGathered, wait_s=value)) is None
    notice = _decoded(_payload(LoaderNotice, text=value))
    assert (notice is not None) == (value == b"\xa2\xff\xfe")


@given(st.lists(st.sampled_from(MESSAGES), max_size=4), st.binary(max_size=40), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_a_conversation_ends_at_the_first_wrong_frame(messages: list[Message], junk: bytes, packet_bytes: int) -> None:
    """Cut into packets anyhow: what was sent before comes out, then the channel is closed and stays it."""
    sent = b"".join(struct.pack("<I", len(frame)) + frame for frame in map(encode_message, messages))
    wrong = struct.pack("<I", len(junk) + 1) + b"\xc1" + junk  # no msgpack begins with this byte
    stream = sent + wrong + struct.pack("<I", 3) + encode_message(StatsRequest(1))
    ours, theirs = socket.socketpair()
    received: list[Message] = []
    with theirs, closing(Channel(ours, blocking=False)) as channel:
        broke_at = None
        for at in range(0, len(stream), packet_bytes):
            theirs.sendall(stream[at : at + packet_bytes])
            try:
                received.extend(channel.receive_available())
            except ChannelClosed:
                broke_at = at if broke_at is None else broke_at
        assert received == messages
        assert broke_at is not None
        assert broke_at + packet_bytes >= len(sent + wrong)


def test_a_small_channel_takes_no_large_frame() -> None:
    """A length above the channel's own bound ends it before any of the content is there."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, blocking=False, max_frame_bytes=64)
        theirs.sendall(struct.pack("<I", 65))
        with pytest.raises(ChannelClosed, match="65 bytes"):
            list(channel.receive_available())
        channel.close()


@pytest.mark.parametrize("takes_descriptors", [False, True])
def test_descriptors_that_nobody_asked_for_do_not_pile_up(takes_descriptors: bool) -> None:
    """A peer that sends a descriptor with every message is cut off, or finds them closed; our table stays as it was."""
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    receiver = Channel(ours, blocking=False, takes_descriptors=takes_descriptors)
    sender = Channel(theirs, blocking=False)
    descriptor = os.memfd_create("unasked")
    heard = 0
    try:
        for number in range(20):
            sender.queue(StatsRequest(number), descriptor)
            sender.flush()
            heard += len(list(receiver.receive_available()))
    except ChannelClosed:
        assert takes_descriptors
    assert heard == (4 if takes_descriptors else 20)
    os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    sender.close()
    receiver.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", [ReadFooter, AttachArena, OpenLoader])
def test_messages_with_credentials_do_not_show_them(kind: type[Message]) -> None:
    """repr, which ends up in logs and tracebacks, says that there are settings and no more."""
    position = kind._fields.index("storage")
    values = list(MESSAGES[MESSAGE_TYPES.index(kind)])
    values[position] = {"secret_access_key": "hunter2"}
    message = kind(*values)
    assert "hunter2" not in f"{message!r}{message}"
    assert "storage=..." in repr(message)
    assert decode_message(encode_message(message)) == message
