"""The figures of a running loader: counted as things happen, put together when somebody asks.

Rates and shares are over the last ten seconds, so that they tell of now; counts are since the loader's start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from o41td.coordinator.recent_counts import RecentCounts
from o41td.coordinator.sizing import LoaderSize
from o41td.coordinator.state import LoaderState
from o41td.coordinator.worker_pool import PooledWorker
from o41td.curriculum import source_progress
from o41td.exclusions import Exclusions
from o41td.host_limits import core_wait_s, usable_cores
from o41td.host_memory import own_bytes
from o41td.index import SourceIndex
from o41td.order.stage import StageOrder
from o41td.workers.messages import (
    BatchesGathered,
    BlockDecoded,
    BlockFetched,
    CacheUsed,
    ResultsUsed,
    ServeFrom,
    StorageUsed,
)

__all__ = ["FIGURES_FORMAT", "LoaderFigures", "opening_record"]

FIGURES_FORMAT = 1
"""Grows when a key goes or changes its meaning: whoever asks may run another version of the package."""

_WINDOW_S = 10.0
_LOOK_S = 1.0
_WORK = ("fetch_s", "decode_s", "project_s")
_WORK_CPU = ("fetch_cpu_s", "decode_cpu_s", "project_cpu_s")
_OF_STORAGE = ("requests", "retries", "renewals", "requested_bytes", "received_bytes")
_OF_FETCHING = ("requests", "retries", "requested_bytes", "received_bytes", "wait_s")
_OF_RANK = ("batches", "rows", "wait_s")
_OF_CACHE = ("hits", "misses", "read_bytes", "written_bytes", "evicted_files", "evicted_bytes", "broken_files")


class _Position:
    """Where a rank is: what it was served from, and what it has taken since."""

    def __init__(self, served: ServeFrom, order: StageOrder, excluded: Exclusions) -> None:
        self.served = served
        self.order = order
        self._excluded = excluded

    def global_batch(self, delivered: int) -> int:
        return self._excluded.after(self.served.global_batch, delivered * self.served.world_size)

    def number(self, delivered: int) -> int:
        return self.served.position + self.global_batch(delivered) - self.served.global_batch

    def step(self, delivered: int) -> int:
        batch = self.global_batch(delivered)
        return (batch - self._excluded.count(0, batch)) // self.served.world_size


@dataclass(slots=True)
class _RankFigures:
    """How far a rank is: `delivered` batches since `at`, the last of them at `batch_s`."""

    at: _Position
    batch_s: float
    delivered: int = 0
    dropped_rows: int = 0

    @property
    def stage(self) -> int:
        return self.at.served.stage

    @property
    def number(self) -> int:
        return self.at.number(self.delivered)


class LoaderFigures:
    """What a loader has done so far.

    Attributes:
        cache_failure: Why the block cache keeps nothing any more, "" while it does.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.cache_failure = ""
        self._cache = dict.fromkeys(_OF_CACHE, 0)
        self._counts: dict[str, float] = dict.fromkeys((*_WORK, *_WORK_CPU, "core_wait_s", "decoded_bytes"), 0.0)
        self._core_waits: dict[int, float] = {}  # by process
        self._recent = RecentCounts(window_s=_WINDOW_S, every_s=_LOOK_S)
        self._ranks: dict[int, _RankFigures] = {}
        self._seen: dict[int, tuple[StageOrder, int]] = {}  # each stage visited, and its position when it was left
        self._started_s = time.monotonic()
        self._since_s = 0.0  # when the first rank was served
        self._in_flight: dict[int, int] = {}  # requests to stores, by worker
        self.last_storage_error: str | None = None

    def note_serve(self, message: ServeFrom, order: StageOrder, excluded: Exclusions) -> None:
        """A rank was served from a new place on."""
        now_s = time.monotonic()
        before = self._ranks.get(message.rank)
        rank = self._ranks[message.rank] = _RankFigures(_Position(message, order, excluded), now_s)
        if before is not None:
            self._note_left(before)
            rank.batch_s = before.batch_s
        else:
            self._counts.update({f"{count} of rank {message.rank}": 0.0 for count in _OF_RANK})
        self._since_s = self._since_s or now_s

    def note_gathered(self, rank_number: int, message: BatchesGathered) -> None:
        """A consumer told how far it is."""
        rank = self._ranks[rank_number]
        if message.delivered != rank.delivered:
            rank.batch_s = time.monotonic()
        rank.delivered = message.delivered
        rank.dropped_rows = message.dropped_rows
        told = (message.batches, message.rows, message.wait_s)
        self._counts.update({f"{count} of rank {rank_number}": of for count, of in zip(_OF_RANK, told, strict=True)})

    def note_leaving(self, rank_number: int) -> None:
        """A rank's consumer is gone."""
        rank = self._ranks.pop(rank_number, None)
        if rank is not None:
            self._note_left(rank)
            for count in _OF_RANK:
                del self._counts[f"{count} of rank {rank_number}"]

    def _note_left(self, rank: _RankFigures) -> None:
        self._seen[rank.stage] = rank.at.order, rank.number

    def note_decoded(self, worker: int, stage: int, source: int, message: BlockDecoded) -> None:
        """A worker has decoded a block of a source."""
        work_s = message.fetch_s + message.decode_s + message.project_s
        for name in (*_WORK, *_WORK_CPU):
            self._counts[name] += getattr(message, name)
        for name, count in (
            ("decoded_bytes", message.read_bytes),
            (f"bytes of worker {worker}", message.read_bytes),
            (f"work of worker {worker}", work_s),
            (f"bytes of source {stage}/{source}", message.read_bytes),
            (f"work of source {stage}/{source}", work_s),
            (f"rows of source {stage}/{source}", message.rows),
        ):
            self._counts[name] = self._counts.get(name, 0.0) + count

    def note_storage(self, worker: int, message: StorageUsed) -> None:
        """A worker told what it has asked of stores."""
        for name in _OF_STORAGE:
            self._counts[f"storage {name}"] = self._counts.get(f"storage {name}", 0.0) + getattr(message, name)
        self._in_flight[worker] = message.in_flight
        self.last_storage_error = message.last_fault or self.last_storage_error

    def _storage(self, growth: Mapping[str, float], elapsed_s: float) -> dict[str, Any] | None:
        """What stores were asked for; None where nothing is remote."""
        if not self._in_flight:
            return None
        counts = {name: int(self._counts.get(f"storage {name}", 0)) for name in _OF_STORAGE}
        return {
            **counts,
            "in_flight": sum(self._in_flight.values()),
            "bytes_per_s": growth.get("storage received_bytes", 0.0) / max(1e-9, elapsed_s),
            "last_error": self.last_storage_error,
        }

    def note_fetched(self, stage: int, source: int, message: BlockFetched) -> None:
        """A worker has asked stores for a block of a source."""
        for what in _OF_FETCHING:
            name = f"fetched {what} of source {stage}/{source}"
            self._counts[name] = self._counts.get(name, 0.0) + getattr(message, what)

    def _fetched(self, name: str) -> dict[str, float] | None:
        """What stores were asked for a source's blocks; None where nothing was."""
        counts = {what: self._counts.get(f"fetched {what} of source {name}", 0.0) for what in _OF_FETCHING}
        return (
            {what: count if what == "wait_s" else int(count) for what, count in counts.items()}
            if any(counts.values())
            else None
        )

    def note_cache(self, stage: int, source: int, message: CacheUsed) -> None:
        """A worker has used the block cache for a block of a source."""
        for name in _OF_CACHE:
            self._cache[name] += getattr(message, name)
        self.note_results(stage, source, message)

    def note_results(self, stage: int, source: int, message: CacheUsed | ResultsUsed) -> None:
        """A worker has found results of a source, or not."""
        for what, count in (("hits", message.hits), ("misses", message.misses)):
            name = f"{what} of source {stage}/{source}"
            self._counts[name] = self._counts.get(name, 0.0) + count

    def note_time(self, state: LoaderState, workers: Iterable[PooledWorker]) -> None:
        """Time has passed: looks at the counters if it is time for that."""
        now_s = time.monotonic()
        if self._since_s and self._recent.is_due(now_s):
            self._note_core_waits(workers)
            self._recent.look(now_s, self._all_counts(state))

    def _note_core_waits(self, workers: Iterable[PooledWorker]) -> None:
        """Adds what workers have waited for a core since they were last asked; a new process begins at 0."""
        for worker in workers:
            pid = worker.process.pid
            waited_s = core_wait_s(pid) or 0.0
            self._counts["core_wait_s"] += max(0.0, waited_s - self._core_waits.get(pid, 0.0))
            self._core_waits[pid] = waited_s

    def _all_counts(self, state: LoaderState) -> dict[str, float]:
        return {**self._counts, "blocks_decoded": state.blocks_decoded, "blocks_evicted": state.blocks_evicted}

    def record(
        self,
        *,
        name: str,
        stage_names: Sequence[str],
        size: LoaderSize,
        state: LoaderState,
        arena_kind: str,
        workers: Iterable[PooledWorker],
        reading: Mapping[int, dict[str, Any]],
        sources: Sequence[Sequence[SourceIndex]],
        served_ranks: Sequence[int] | None,
        cache_dir: str | None = None,
    ) -> dict[str, Any]:
        """Returns everything as one record (a new dict of plain values).

        `reading` says what busy workers read, `sources[stage]` are those of a stage, `served_ranks` may join by name,
        blocks are kept in `cache_dir`.

        Blocks: on /proc, for a few milliseconds.
        """
        now_s = time.monotonic()
        workers = list(workers)
        own = [os.getpid(), *(worker.process.pid for worker in workers)]
        self._note_core_waits(workers)
        elapsed_s, growth = self._recent.growth(now_s, self._all_counts(state))
        recent = ("decoded_bytes", "blocks_decoded", "blocks_evicted", "core_wait_s", *_WORK)
        every = [source for stage in sources for source in stage]
        return {
            "format": FIGURES_FORMAT,
            "name": name,
            "pid": os.getpid(),
            "state": "streaming",
            "coordinator": {"pid": os.getpid(), "cpu_s": time.process_time()},
            "cores": usable_cores(),
            "workers": [
                {
                    **_worker_record(worker, state, reading.get(worker.number)),
                    **_worker_rates(worker.number, elapsed_s, growth),
                }
                for worker in workers
            ],
            "arena": {
                "bytes": size.layout.total_bytes,
                "slots": size.layout.num_slots,
                "free": state.slots.num_free,
                "block_rows": size.layout.block_rows,
                "kind": arena_kind,
            },
            "ranks": [
                self._rank(rank, stage_names, state, now_s)
                | _rank_rates(number, max(1e-9, elapsed_s), growth, size.layout.row_bytes)
                for number, rank in sorted(self._ranks.items())
            ],
            "served_ranks": None if served_ranks is None else list(served_ranks),
            "sources": [self._source(source, growth) for source in every],
            "memory": {
                "bound_bytes": size.bound.total_bytes,
                "used_bytes": size.layout.total_bytes + sum(own_bytes(pid) or 0 for pid in own),
                "terms": dict(size.bound.terms),
            },
            "storage": self._storage(growth, elapsed_s),
            "cache": None if cache_dir is None else {"dir": cache_dir, **self._cache, "failure": self.cache_failure},
            "uptime_s": now_s - self._started_s,
            "recent": {"window_s": elapsed_s, **{count: growth[count] for count in recent}},
            "bad_rows": state.num_bad_rows,
            "blocks_decoded": state.blocks_decoded,
            "blocks_evicted": state.blocks_evicted,
            "decoded_bytes": int(self._counts["decoded_bytes"]),
            "decoded_rows": sum(
                int(count) for name, count in self._counts.items() if name.startswith("rows of source")
            ),
            **{work: self._counts[work] for work in (*_WORK, *_WORK_CPU, "core_wait_s")},
        }

    def _rank(
        self, figures: _RankFigures, stage_names: Sequence[str], state: LoaderState, now_s: float
    ) -> dict[str, Any]:
        at, delivered = figures.at, figures.delivered
        rank = state.ranks.get(at.served.rank)
        batches, rows, wait_s = (self._counts[f"{count} of rank {at.served.rank}"] for count in _OF_RANK)
        return {
            "rank": at.served.rank,
            "world_size": at.served.world_size,
            "stage": at.served.stage,
            "stage_name": stage_names[at.served.stage],
            "step": at.step(delivered),
            "batch": at.global_batch(delivered),
            "stage_batch": figures.number,
            "stage_batches": at.order.num_batches,
            "batches": int(batches),
            "rows": int(rows),
            "wait_s": wait_s,
            "ready_batches": max(0, rank.num_sent - delivered) if rank is not None else 0,
            "since_batch_s": now_s - figures.batch_s,
            "has_ended": rank is not None and rank.told_end and delivered >= rank.num_sent,
            "dropped_rows": figures.dropped_rows,
        }

    def _source(self, source: SourceIndex, growth: Mapping[str, float]) -> dict[str, Any]:
        name = f"{source.stage}/{source.source}"
        epoch, progress = self._progress(source)
        return {
            "name": source.name,
            "stage": source.stage,
            "is_current": any(rank.stage == source.stage for rank in self._ranks.values()),
            "rows": source.num_rows,
            "shards": len(source.shards),
            "epoch": epoch,
            "progress": progress,
            "decoded_rows": int(self._counts.get(f"rows of source {name}", 0)),
            "cache_hits": int(self._counts.get(f"hits of source {name}", 0)),
            "cache_misses": int(self._counts.get(f"misses of source {name}", 0)),
            "storage": self._fetched(name),
            "recent_bytes": growth.get(f"bytes of source {name}", 0.0),
            "recent_work_s": growth.get(f"work of source {name}", 0.0),
        }

    def _progress(self, source: SourceIndex) -> tuple[int, float | None]:
        there = [rank for rank in self._ranks.values() if rank.stage == source.stage]
        if there:
            first = max(there, key=lambda rank: rank.number)
            order, position = first.at.order, first.number
        elif source.stage in self._seen:
            order, position = self._seen[source.stage]
        else:
            return 0, 0.0
        return source_progress(order, position)[source.source] or (0, None)


def opening_record(name: str, workers: Iterable[PooledWorker], reading: tuple[int, int]) -> dict[str, Any]:
    """Returns what there is to say of a loader that reads footers, `reading` of them done and in all."""
    done, total = reading
    return {
        "format": FIGURES_FORMAT,
        "name": name,
        "pid": os.getpid(),
        "state": "opening",
        "opening": {"footers": done, "of": total},
        "coordinator": {"pid": os.getpid()},
        "workers": [
            {
                "id": worker.number,
                "pid": worker.process.pid,
                "state": "reading footers" if worker.ready else "starting",
                "reading": None,
                "restarts": worker.restarts,
                **_usage_of(worker.process.pid),
            }
            for worker in workers
        ],
        "ranks": [],
        "sources": [],
        "memory": {},
    }


def _rank_rates(number: int, elapsed_s: float, growth: Mapping[str, float], row_bytes: int) -> dict[str, float]:
    # Whoever comes back as this rank counts from 0 again: less than at the last look.
    batches, rows, wait_s = (max(0.0, growth[f"{count} of rank {number}"]) for count in _OF_RANK)
    return {
        "batches_per_s": batches / elapsed_s,
        "rows_per_s": rows / elapsed_s,
        "bytes_per_s": rows * row_bytes / elapsed_s,
        "wait_fraction": min(1.0, wait_s / elapsed_s),
    }


def _worker_rates(number: int, elapsed_s: float, growth: Mapping[str, float]) -> dict[str, float]:
    elapsed_s = max(1e-9, elapsed_s)
    return {
        "bytes_per_s": growth.get(f"bytes of worker {number}", 0.0) / elapsed_s,
        "busy_fraction": min(1.0, growth.get(f"work of worker {number}", 0.0) / elapsed_s),
    }


def _worker_record(worker: PooledWorker, state: LoaderState, reading: Mapping[str, Any] | None) -> dict[str, Any]:
    doing = "starting" if not worker.ready else "decoding" if state.workers[worker.number].queue else "idle"
    return {
        "id": worker.number,
        "pid": worker.process.pid,
        "state": doing,
        "reading": reading,
        "restarts": worker.restarts,
        **_usage_of(worker.process.pid),
    }


def _usage_of(pid: int) -> dict[str, Any]:
    """What a process takes: resident memory, and CPU since its start."""
    import psutil  # only status needs it; the first batch does not wait for it

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu = process.cpu_times()
            return {"rss_bytes": int(process.memory_info().rss), "cpu_s": cpu.user + cpu.system}
    except psutil.Error:
        return {"rss_bytes": 0, "cpu_s": 0.0}
