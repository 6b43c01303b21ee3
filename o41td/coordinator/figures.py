"""The figures of a running loader: counted as things happen, put together when somebody asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from o41td.coordinator.sizing import LoaderSize
from o41td.coordinator.state import LoaderState
from o41td.coordinator.worker_pool import PooledWorker
from o41td.host_memory import own_bytes
from o41td.index import SourceIndex
from o41td.workers.messages import BatchesGathered, BlockDecoded, ServeFrom

__all__ = ["LoaderFigures"]


class LoaderFigures:
    """What a loader has done so far."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._seconds = {"fetch_s": 0.0, "decode_s": 0.0, "project_s": 0.0}
        self._decoded_bytes = 0
        self._decoded_rows: dict[tuple[int, int], int] = {}
        self._served: ServeFrom | None = None
        self._since_s = 0.0
        self._delivered_before = 0
        self._gathered: BatchesGathered | None = None
        self._rows = 0
        self._wait_s = 0.0

    def note_serve(self, message: ServeFrom) -> None:
        """A rank was served from a new place on."""
        if self._gathered is not None:
            self._delivered_before += self._gathered.delivered
            self._rows, self._wait_s = self._gathered.rows, self._gathered.wait_s
        self._gathered = None
        self._served = message
        self._since_s = self._since_s or time.monotonic()

    def note_gathered(self, message: BatchesGathered) -> None:
        """The consumer told how far it is."""
        self._gathered = message

    def note_decoded(self, stage: int, source: int, message: BlockDecoded) -> None:
        """A worker has decoded a block of a source."""
        self._seconds["fetch_s"] += message.fetch_s
        self._seconds["decode_s"] += message.decode_s
        self._seconds["project_s"] += message.project_s
        self._decoded_bytes += message.read_bytes
        self._decoded_rows[stage, source] = self._decoded_rows.get((stage, source), 0) + message.rows

    def record(
        self,
        *,
        name: str,
        size: LoaderSize,
        state: LoaderState,
        arena_kind: str,
        workers: Iterable[PooledWorker],
        reading: Mapping[int, dict[str, Any]],
        sources: Sequence[SourceIndex],
    ) -> dict[str, Any]:
        """Returns everything as one record (a new dict of plain values); `reading` says what busy workers read.

        Blocks: on /proc, for a few milliseconds.
        """
        workers = list(workers)
        own = [os.getpid(), *(worker.process.pid for worker in workers)]
        return {
            "name": name,
            "pid": os.getpid(),
            "coordinator": {"pid": os.getpid()},
            "workers": [self._worker(worker, state, reading.get(worker.number)) for worker in workers],
            "arena": {
                "bytes": size.layout.total_bytes,
                "slots": size.layout.num_slots,
                "free": state.slots.num_free,
                "block_rows": size.layout.block_rows,
                "kind": arena_kind,
            },
            "ranks": [] if self._served is None else [self._rank(self._served)],
            "sources": [self._source(source) for source in sources],
            "memory": {
                "bound_bytes": size.bound.total_bytes,
                "used_bytes": size.layout.total_bytes + sum(own_bytes(pid) or 0 for pid in own),
                "terms": dict(size.bound.terms),
            },
            "uptime_s": time.monotonic() - self._since_s if self._since_s else 0.0,
            "blocks_decoded": state.blocks_decoded,
            "blocks_evicted": state.blocks_evicted,
            "decoded_bytes": self._decoded_bytes,
            "decoded_rows": sum(self._decoded_rows.values()),
            **self._seconds,
        }

    def _worker(self, worker: PooledWorker, state: LoaderState, reading: dict[str, Any] | None) -> dict[str, Any]:
        doing = "starting" if not worker.ready else "decoding" if state.workers[worker.number].queue else "idle"
        return {
            "id": worker.number,
            "pid": worker.process.pid,
            "state": doing,
            "reading": reading,
            "restarts": worker.restarts,
            "rss_bytes": _rss_bytes(worker.process.pid),
        }

    def _rank(self, served: ServeFrom) -> dict[str, Any]:
        elapsed_s = max(1e-9, time.monotonic() - self._since_s)
        gathered = self._gathered
        wait_s = gathered.wait_s if gathered is not None else self._wait_s
        rows = gathered.rows if gathered is not None else self._rows
        return {
            "rank": served.rank,
            "world_size": served.world_size,
            "stage": served.stage,
            "batches": self._delivered_before + (gathered.delivered if gathered is not None else 0),
            "rows": rows,
            "rows_per_s": rows / elapsed_s,
            "wait_s": wait_s,
            "wait_fraction": min(1.0, wait_s / elapsed_s),
            "dropped_rows": gathered.dropped_rows if gathered is not None else 0,
        }

    def _source(self, source: SourceIndex) -> dict[str, Any]:
        decoded = self._decoded_rows.get((source.stage, source.source), 0)
        return {
            "name": source.name,
            "stage": source.stage,
            "rows": source.num_rows,
            "shards": len(source.shards),
            "decoded_rows": decoded,
            "epoch": decoded // source.num_rows,
        }


def _rss_bytes(pid: int) -> int:
    import psutil  # only status needs it; the first batch does not wait for it

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
