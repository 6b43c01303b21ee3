"""Joining a served loader: finding it by its name, saying which rank we are, and mapping its arena.

Called by: the training process, from `connect` and, after the server's end, from the feed's thread.

A server that ends and comes back (a new version of a config's threads, a host's service manager) costs the streams of
its ranks nothing but the wait: each still has its cursor. What came back must stream the same, or it is refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar, TypeVar

from o41td.coordinator_process import Progress
from o41td.document_differences import differences_of
from o41td.error_records import error_from_record
from o41td.errors import ConnectError, StreamClosedError
from o41td.index import SourceIndex
from o41td.job import FREE_TO_CHANGE, StreamJob
from o41td.runtime_folder import LoaderEntry, has_server, listed_loaders
from o41td.shm.layout import ArenaLayout
from o41td.shm.segment import MappedArena, map_arena
from o41td.workers.channel import Channel, ChannelClosed, peer_uid
from o41td.workers.messages import (
    PROTOCOL,
    JoinLoader,
    LoaderFailed,
    LoaderJoined,
    LoaderNotice,
    LoaderOpened,
    OpenProgress,
)

__all__ = ["JoinedLoader", "join_loader", "rejoin_loader", "served_loader"]

M = TypeVar("M", LoaderJoined, LoaderOpened)
_LOGGER = logging.getLogger("o41td")
_CONNECT_S = 2.0
_ANSWER_S = 60.0
"""How long at least a server may be silent; while it opens, it tells of its progress every half second."""
_FIRST_JOIN_S = 5.0
"""How long a listed server may be too busy to take the call, and one that is not listed may take to be."""
_LOOK_AGAIN_S = 0.1
_MAX_TOLD = 5


@dataclass(slots=True, kw_only=True)
class JoinedLoader:
    """A served loader and this process's mapping of its arena: what a `Loader` is to its owner, but for its life."""

    max_deaths_without_progress: ClassVar[int] = 5

    name: str
    coordinator_pid: int
    channel: Channel
    arena: MappedArena
    layout: ArenaLayout
    sources: tuple[SourceIndex, ...]
    bound: dict[str, Any]
    notices: tuple[str, ...]
    config: dict[str, Any]
    job: StreamJob
    world_size: int

    @property
    def is_lost(self) -> bool:
        """Whether our rows in the arena may have been given to others: only behind the end of the conversation."""
        return self.channel.is_hung_up

    def end(self) -> str:
        """Leaves; the loader goes on, and the rank is free. Returns what can be said of it. Idempotent."""
        self.channel.close()
        self.arena.close()
        return f"it was served under the name {self.name!r} by process {self.coordinator_pid}"

    def kill(self) -> None:
        """Gives the connection up: whoever reads from it finds it closed."""
        self.channel.hang_up()

    def close_after_fork(self) -> None:
        """Closes this process's copy of the socket, in a child that a fork made."""
        self.channel.close()


class _NobodyThere(Exception):
    """No server answers at the moment; perhaps one does soon."""


def served_loader(name: str) -> LoaderEntry | None:
    """Returns the entry of this user's served loader of that name, None if there is none now."""
    return next((entry for entry in listed_loaders() if entry.is_served and entry.name == name), None)


def join_loader(name: str, rank: int, *, progress: Progress | None = None) -> JoinedLoader:
    """Joins the loader of that name as `rank`.

    Blocks: until it is open, and until it takes the call where many ranks come at once.

    Raises:
        ConnectError: There is none of that name (those there are, are named), it runs another version of o41td, or the
            rank is taken or not served.
        O41Error: It could not be opened.
    """
    deadline_s = time.monotonic() + _FIRST_JOIN_S
    while True:
        entry = served_loader(name)
        if entry is None:
            if has_server(name) and time.monotonic() <= deadline_s:  # it starts a coordinator, or another one
                time.sleep(_LOOK_AGAIN_S)
                continue
            raise ConnectError(f"no loader is served under the name {name!r}", advice=_advice())
        try:
            return _joined(entry, rank, progress, lambda: False)
        except _NobodyThere as problem:
            if time.monotonic() > deadline_s:
                raise ConnectError(
                    f"the loader {name!r} (pid {entry.pid}) does not answer: {problem}",
                    advice="Is it stopped, or this host overloaded? `o41td status` shows what there is",
                ) from None
        time.sleep(_LOOK_AGAIN_S)


def rejoin_loader(before: JoinedLoader, rank: int, *, wait_s: float, is_given_up: Callable[[], bool]) -> JoinedLoader:
    """Joins the loader that is served under the same name, once there is one again.

    Blocks: until then, at most about `wait_s` (longer while a new one is opening); until `is_given_up`.

    Raises:
        ConnectError: None came back in time, it streams something else, or somebody else has taken the rank.
        StreamClosedError: It was given up.
    """
    deadline_s = time.monotonic() + wait_s
    is_told = False
    while not is_given_up():
        entry = served_loader(before.name)
        if entry is not None:
            with contextlib.suppress(_NobodyThere):
                loader = _joined(entry, rank, None, is_given_up)
                try:
                    _refuse_another_stream(before, loader)
                except BaseException:
                    loader.end()
                    raise
                return loader
        if not is_told:
            is_told = True
            words = f"the loader {before.name!r} is gone; rank {rank} waits up to {wait_s:g} s for it to come back"
            _LOGGER.warning("%s", words)
        if time.monotonic() > deadline_s:
            raise ConnectError(
                f"the loader {before.name!r} is gone and has not come back for {wait_s:g} s",
                advice="Start it again with `o41td serve`, then connect and load_state_dict: a checkpoint goes on "
                "behind the last batch",
            )
        time.sleep(_LOOK_AGAIN_S)
    raise StreamClosedError


def _advice() -> str:
    names = sorted({entry.name for entry in listed_loaders() if entry.is_served})
    told = f"Those that are: {', '.join(map(repr, names))}" if names else "None is served on this host by this user"
    return f"{told}. One is started by `o41td serve CONFIG --name NAME`"


def _joined(entry: LoaderEntry, rank: int, progress: Progress | None, is_given_up: Callable[[], bool]) -> JoinedLoader:
    """Says who we are and waits until the loader is open.

    Raises:
        _NobodyThere: It has gone, or does not answer.
        StreamClosedError: It was given up.
        ConnectError: It runs another version of o41td.
        O41Error: It said no.
    """
    if entry.protocol != PROTOCOL:
        raise ConnectError(
            f"the loader {entry.name!r} (pid {entry.pid}) runs another version of o41td than this process",
            advice="Use the same environment for `o41td serve` and for the ranks that connect",
        )
    channel = _called(entry)
    try:
        channel.send(JoinLoader(rank))
        joined = _await(channel, LoaderJoined, _ANSWER_S, progress, is_given_up)
        job = StreamJob.from_record(joined.job)
        opened = _await(channel, LoaderOpened, max(_ANSWER_S, job.stall_timeout_s), progress, is_given_up)
        descriptor = channel.take_descriptor()
        try:
            layout = ArenaLayout.from_record(opened.layout)
            arena = map_arena(descriptor, layout, writable=False)
        finally:
            os.close(descriptor)
    except (ChannelClosed, TimeoutError) as problem:
        channel.close()
        raise _NobodyThere(str(problem)) from None
    except BaseException:
        channel.close()
        raise
    return JoinedLoader(
        name=entry.name,
        coordinator_pid=entry.pid,
        channel=channel,
        arena=arena,
        layout=layout,
        sources=tuple(SourceIndex.from_record(record) for record in opened.sources),
        bound=opened.bound,
        notices=tuple(opened.notices),
        config=joined.config,
        job=job,
        world_size=joined.world_size,
    )


def _called(entry: LoaderEntry) -> Channel:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect(entry.socket_path)
        is_ours = peer_uid(connection) == os.getuid()
    except OSError as error:
        connection.close()
        raise _NobodyThere(str(error)) from None
    if not is_ours:
        connection.close()
        raise _NobodyThere("another user listens at this user's socket")
    return Channel(connection, blocking=True)


def _await(
    channel: Channel, kind: type[M], timeout_s: float, progress: Progress | None, is_given_up: Callable[[], bool]
) -> M:
    heard_s = time.monotonic()
    while True:
        try:
            message = channel.receive(_LOOK_AGAIN_S)
        except TimeoutError:
            if is_given_up():
                raise StreamClosedError from None
            if time.monotonic() - heard_s > timeout_s:
                raise
            continue
        heard_s = time.monotonic()
        if isinstance(message, kind):
            return message
        match message:
            case LoaderFailed():
                raise error_from_record(message.error)
            case OpenProgress():
                if progress is not None:
                    progress(message.done, message.total)
            case LoaderNotice():
                _LOGGER.log(logging.WARNING if message.is_warning else logging.INFO, "%s", message.text)
            case _:
                raise _NobodyThere(f"it said {type(message).__name__}")


def _refuse_another_stream(before: JoinedLoader, now: JoinedLoader) -> None:
    """Compares what two servers of one name stream.

    Raises:
        ConnectError: Other batches would come; what differs is named.
    """
    differing = differences_of(_stream_of(before), _stream_of(now))
    if not differing:
        return
    told = "; ".join(f"{path}: {old!r} -> {new!r}" for path, old, new in differing[:_MAX_TOLD])
    more = f"; and {len(differing) - _MAX_TOLD} more" if len(differing) > _MAX_TOLD else ""
    raise ConnectError(
        f"the loader {before.name!r} came back as another stream: {told}{more}",
        advice="Serve the config that this stream began with, or connect anew",
    )


def _stream_of(loader: JoinedLoader) -> dict[str, Any]:
    job = {name: value for name, value in loader.job.to_record().items() if name not in FREE_TO_CHANGE}
    shards = [[(s.uri, s.rows, s.size_bytes, s.version) for s in source.shards] for source in loader.sources]
    units = [blake2b(source.unit_rows.tobytes(), digest_size=8).hexdigest() for source in loader.sources]
    return {**job, "world_size": loader.world_size, "shards": shards, "row groups": units}
