"""Asking this user's running loaders how they are: what `o41td status` shows."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from o41td.runtime_folder import LoaderEntry, listed_loaders
from o41td.workers.channel import Channel, ChannelClosed, peer_uid
from o41td.workers.messages import StatsReply, StatsRequest

__all__ = ["list_loaders"]

_ANSWER_S = 2.0
_MAX_ANSWER_BYTES = 1 << 26
_NEEDED = {"name", "pid", "ranks", "workers", "sources", "memory"}  # a loader of another version may answer otherwise


def list_loaders() -> list[dict[str, Any]]:
    """Returns a record for each running loader of this user, as `o41td status --json` prints it.

    Blocks: for the answers; a loader that does not answer within 2 s is listed with the verdict "does not answer".
    """
    return [_asked(entry) for entry in listed_loaders()]


def _asked(entry: LoaderEntry) -> dict[str, Any]:
    with contextlib.suppress(OSError, ChannelClosed), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(entry.socket_path)
        if peer_uid(connection) != os.getuid():
            raise ChannelClosed("another user listens at this user's socket")
        channel = Channel(connection, blocking=True, max_frame_bytes=_MAX_ANSWER_BYTES, takes_descriptors=False)
        connection.settimeout(_ANSWER_S)
        channel.send(StatsRequest(0))
        reply = channel.receive()
        if isinstance(reply, StatsReply) and reply.stats.keys() >= _NEEDED:
            return {**reply.stats, "verdict": _verdict_of(reply.stats)}
    return {
        "name": entry.name,
        "pid": entry.pid,
        "ranks": [],
        "workers": [],
        "sources": [],
        "memory": {},
        "verdict": "does not answer",
    }


def _verdict_of(stats: dict[str, Any]) -> str:
    """Returns in a few words what holds the stream back: the loop that takes batches, or decoding."""
    ranks = stats["ranks"]
    if not ranks or not ranks[0]["batches"]:
        return "starting"
    waits = max(rank["wait_fraction"] for rank in ranks)
    if waits < _CONSUMER_BOUND:
        return "the training loop is the limit: batches wait for it"
    if waits > _DECODE_BOUND and any(worker["state"] == "idle" for worker in stats["workers"]):
        return "the loop takes batches as fast as they can be put together; workers are idle"
    if waits > _DECODE_BOUND:
        return "decoding is the limit: the loop waits for batches; more threads help if the host has idle cores"
    return "loop and decoding are in balance"


_CONSUMER_BOUND = 0.05
_DECODE_BOUND = 0.5
