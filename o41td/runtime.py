"""Asking this user's running loaders how they are: what `o41td status` shows."""

from __future__ import annotations

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from o41td.coordinator.figures import FIGURES_FORMAT
from o41td.runtime_folder import LoaderEntry, listed_loaders, process_start_time
from o41td.verdict import Verdict, verdict_of
from o41td.workers.channel import Channel, ChannelClosed, peer_uid
from o41td.workers.messages import PROTOCOL, StatsReply, StatsRequest

__all__ = ["list_loaders"]

_ANSWER_S = 2.0
_MAX_ASKED_AT_ONCE = 16
_MAX_ANSWER_BYTES = 1 << 26


def list_loaders(name: str | None = None) -> list[dict[str, Any]]:
    """Returns a record for each running loader of this user, as `o41td status --json` prints it.

    Args:
        name: only those of this name are asked; None asks all.

    Blocks: for the answers; a loader that does not answer within 2 s is listed as such, one that has ended is not.
    """
    entries = [entry for entry in listed_loaders() if name in (None, entry.name)]
    if not entries:
        return []
    with ThreadPoolExecutor(max_workers=min(_MAX_ASKED_AT_ONCE, len(entries))) as pool:
        return [record for record in pool.map(_asked, entries) if record is not None]


def _asked(entry: LoaderEntry) -> dict[str, Any] | None:
    if entry.protocol != PROTOCOL:
        return _of_another_version(entry)
    with contextlib.suppress(OSError, ChannelClosed), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(entry.socket_path)
        if peer_uid(connection) != os.getuid():
            raise ChannelClosed("another user listens at this user's socket")
        channel = Channel(connection, blocking=True, max_frame_bytes=_MAX_ANSWER_BYTES, takes_descriptors=False)
        connection.settimeout(_ANSWER_S)
        channel.send(StatsRequest(0))
        reply = channel.receive()
        if isinstance(reply, StatsReply) and reply.stats.get("format") == FIGURES_FORMAT:
            return {**reply.stats, **verdict_of(reply.stats).to_record()}
        return _of_another_version(entry)
    if process_start_time(entry.pid) != entry.start_time:
        return None  # it ended while it was asked
    return _bare(entry, "silent", "it does not answer", "Is it stopped, or this host overloaded? Look at its pid")


def _of_another_version(entry: LoaderEntry) -> dict[str, Any]:
    return _bare(entry, "other version", "it runs another version of o41td", "Ask with the o41td that it runs")


def _bare(entry: LoaderEntry, state: str, text: str, advice: str) -> dict[str, Any]:
    """The record of a loader of which only its entry is known."""
    return {
        "name": entry.name,
        "pid": entry.pid,
        "state": state,
        "ranks": [],
        "workers": [],
        "sources": [],
        "memory": {},
        **Verdict(limit="silent", text=text, advice=advice).to_record(),
    }
