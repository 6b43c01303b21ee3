"""A loader from its owner's request to its owner's leaving: one thread, one phase after the other."""

from __future__ import annotations

import contextlib
import gc
import select
from collections.abc import Sequence
from typing import Any, NoReturn

from o41td.coordinator.host import LoaderHost, OwnerGone
from o41td.coordinator.opening_phase import OpeningPhase
from o41td.coordinator.serving_phase import ServingPhase
from o41td.coordinator.sizing import LoaderSize, size_loader
from o41td.coordinator.worker_pool import WorkerPool
from o41td.error_records import error_to_record
from o41td.errors import O41Error
from o41td.host_limits import host_limits, refuse_small_limits
from o41td.host_memory import default_memory_limit_bytes
from o41td.index import SourceIndex
from o41td.shm.segment import Segment, create_segment
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.forking import can_fork
from o41td.workers.messages import LoaderFailed, LoaderNotice, LoaderOpened, LoaderPlanned, Message, OpenLoader
from o41td.workers.supervisor import ChildLog

__all__ = ["LoaderServer"]


class LoaderServer:
    """Serves its owner, or the ranks that join under its name."""

    def __init__(self, owner: Channel, pool: WorkerPool, log: ChildLog) -> None:
        """Nothing happens before `run`."""
        self._owner = owner
        self._pool = pool
        self._log = log

    def run(self) -> None:
        """Opens and serves until the owner is gone."""
        with contextlib.suppress(OwnerGone):
            host = LoaderHost(self._owner, self._pool, self._log, _request_of(self._owner))
            try:
                self._serve(host)
            except O41Error as error:
                _tell_and_leave(host, LoaderFailed(error_to_record(error)))
            finally:
                host.close()

    def _serve(self, host: LoaderHost) -> None:
        opening = OpeningPhase(host)
        host.enter(opening)
        host.seat_audience()
        sources = opening.index()
        by_stage = [[each for each in sources if each.stage == stage] for stage in range(len(host.job.stages))]
        size = _size_of(host, by_stage)
        if host.request.plan_only:
            records = [source.to_record() for source in sources]
            _tell_and_leave(host, LoaderPlanned(sources=records, bound=_bound_record(size), notices=[]))
        refuse_small_limits(host_limits(), arena_bytes=size.layout.total_bytes)
        with contextlib.closing(create_segment(size.layout.total_bytes)) as segment:
            _begin_serving(host, by_stage, size, segment)
            gc.collect()
            gc.freeze()  # what is known of shards stays; collections need not walk it
            while True:
                host.pump()


def _request_of(owner: Channel) -> OpenLoader:
    """Waits for the owner's request. What workers say meanwhile is heard later.

    Raises:
        OwnerGone: It has left, or speaks no protocol of ours.
    """
    poll = select.poll()
    poll.register(owner.fileno(), select.POLLIN)
    while True:
        poll.poll()
        try:
            for message in owner.receive_available():
                if isinstance(message, OpenLoader):
                    return message
                raise OwnerGone
        except ChannelClosed as closed:
            raise OwnerGone from closed


def _size_of(host: LoaderHost, sources: Sequence[Sequence[SourceIndex]]) -> LoaderSize:
    return size_loader(
        host.job,
        sources,
        world_size=host.request.world_size,
        limit_bytes=host.job.memory_limit_bytes or default_memory_limit_bytes(),
        ranks=host.request.ranks,
        forks=can_fork(),
    )


def _bound_record(size: LoaderSize) -> dict[str, Any]:
    return {**size.bound.to_record(), "limit_bytes": size.limit_bytes, "table": size.bound.explain()}


def _begin_serving(
    host: LoaderHost, sources: Sequence[Sequence[SourceIndex]], size: LoaderSize, segment: Segment
) -> None:
    opened = LoaderOpened(
        layout=size.layout.to_record(),
        sources=[source.to_record() for stage in sources for source in stage],
        bound=_bound_record(size),
        arena_kind=segment.kind,
        notices=[segment.notice] if segment.notice else [],
    )
    host.let_wait(8 * size.bound.shape.announced_rows)
    serving = ServingPhase(host, sources, size, segment)
    host.enter(serving)
    serving.begin(opened)
    if not host.open_status_port():
        host.tell_owner(LoaderNotice("`o41td status` cannot show this loader: no runtime folder is ours alone"))


def _tell_and_leave(host: LoaderHost, message: Message) -> NoReturn:
    """Sends everybody a last message whole, lets nobody else in, and waits for the owner to hang up.

    Raises:
        OwnerGone: It has.
    """
    host.close_status_port()
    with contextlib.suppress(O41Error):
        host.tell_all(message)
        host.wait_for_owner_to_leave()
    raise OwnerGone
