"""Messages as bytes: one msgpack array a message, ``[tag, *fields in order]``.

What is decoded is what its annotations say, or it is refused; nothing is built from a payload that is not whole. So a
peer can at worst make us hang up on it.
"""

from __future__ import annotations

from typing import Any

import msgpack

from o41td.workers.message_check import refuse_wrong_types
from o41td.workers.messages import (
    MESSAGE_TYPES,
    AttachArena,
    BatchesReady,
    BlockDecoded,
    BlockFailed,
    FooterRead,
    LoaderOpened,
    Message,
)

__all__ = ["carries_descriptor", "decode_message", "encode_message"]

_INT64_BYTES = 8
_HARMLESS_BYTES = 1024
_UNICODE = "surrogateescape"  # file names are bytes, and need not be text
_TAGS = {message_type: tag for tag, message_type in enumerate(MESSAGE_TYPES)}
_WITH_DESCRIPTOR = (AttachArena, LoaderOpened)


def carries_descriptor(message: Message) -> bool:
    """Whether a file descriptor rides with the frame of a message."""
    return isinstance(message, _WITH_DESCRIPTOR)


def encode_message(message: Message) -> bytes:
    """Returns the frame's payload."""
    return bytes(msgpack.packb([_TAGS[type(message)], *message], unicode_errors=_UNICODE))


def decode_message(payload: bytes | memoryview) -> Message:
    """Returns the record in a frame's payload.

    Raises:
        ValueError: The payload is no record of this version; the message repeats nothing of it.
    """
    tag, values = _unpacked(payload)
    kind = MESSAGE_TYPES[tag]
    if len(values) != len(kind._fields):
        raise ValueError(f"{kind.__name__} has {len(kind._fields)} fields, the frame has {len(values)}")
    message: Message = kind(*values)
    refuse_wrong_types(message)
    _refuse_torn_columns(message)
    return message


def _unpacked(payload: bytes | memoryview) -> tuple[int, list[Any]]:
    """Returns a payload's tag and values."""
    try:
        if len(payload) > _HARMLESS_BYTES:
            _refuse_what_is_not_whole(payload)
        content = msgpack.unpackb(payload, unicode_errors=_UNICODE, ext_hook=_refuse_extension)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not a message: {type(error).__name__}") from None
    tag = content[0] if isinstance(content, list) and content else None
    if type(tag) is not int or not 0 <= tag < len(MESSAGE_TYPES):
        raise ValueError("not a message of this version: it has no tag that is known")
    return tag, content[1:]


def _refuse_what_is_not_whole(payload: bytes | memoryview) -> None:
    """Walks a payload without building anything.

    A list is given its memory when its length is read. A few bytes could so ask for gigabytes, list within list, before
    it comes out that the elements are missing. Behind this walk, memory is in proportion to the payload. A list of more
    elements than the payload has bytes is refused anyway, so a small payload cannot ask for more than a few megabytes.
    """
    walker = msgpack.Unpacker(max_buffer_size=max(1, len(payload)))
    walker.feed(payload)
    walker.skip()
    if walker.tell() != len(payload):
        raise msgpack.ExtraData(None, b"")


def _refuse_extension(_code: int, _data: bytes) -> None:
    raise ValueError("messages hold no extension types")


def _refuse_torn_columns(message: Message) -> None:
    """Refuses parallel columns of different lengths: rows would go to the wrong batch."""
    match message:
        case BatchesReady(numbers=numbers, num_rows=num_rows, first_rows=first_rows, rows=rows):
            is_whole = len(numbers) == len(num_rows) == len(message.digests) == len(message.releases) == len(first_rows)
            is_whole = is_whole and min(num_rows, default=0) >= 0 and min(first_rows, default=0) >= -1
            listed = sum([count for count, first in zip(num_rows, first_rows, strict=False) if first < 0])
            is_whole = is_whole and len(rows) == listed * _INT64_BYTES
        case FooterRead():
            columns = (message.rows, message.decoded_bytes, message.decoding_bytes, message.compressed_bytes)
            is_whole = len(set(map(len, columns))) == 1 and len(message.rows) % _INT64_BYTES == 0
        case BlockDecoded(bad_rows=rows_of, bad_errors=errors) | BlockFailed(bad_rows=rows_of, bad_errors=errors):
            is_whole = len(rows_of) == len(errors) and all(len(rows) % _INT64_BYTES == 0 for rows in rows_of)
        case _:
            return
    if not is_whole:
        raise ValueError(f"{type(message).__name__} has columns of different lengths")
