"""`bench`: what a config reaches on this host, where the time goes, and what more workers would give.

The stream is opened as it is and its batches are taken as fast as they come, by a loop that does nothing with them.
Figures are of what comes behind a short warm-up, which the blocks decoded ahead of the first batch would flatter. Other
numbers of workers take their turns with the config's own, so that a slow spell of the host hits them all.

Nothing of the user's is written but the caches that a stream fills: rows that are replaced go to a quarantine file that
is removed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import Progress
from o41td.errors import ConfigError, O41Error
from o41td.opening import open_batch_stream
from o41td.percentages import percent_text
from o41td.phases import counts_of, phases_of
from o41td.stream import BatchStream
from o41td.verdict import Verdict, verdict_of

__all__ = ["benchmark", "worker_counts", "workers_advice"]

_WARM_UP_SHARE = 0.1
_LONGEST_WARM_UP_S = 1.0
_ROUNDS = 2
_WORTH_IT = 1.1
_AS_GOOD = 0.95
_ABOUT_WORKERS = ("decoding", "storage", "gathering", "balanced", "loop")
_RECENT = ("blocks_decoded", "blocks_evicted", "core_wait_s", "fetch_s", "decode_s", "project_s")


@dataclass(slots=True, kw_only=True)
class _Run:
    """One stream that was measured, or several of one number of workers together: sums, and the last's figures."""

    threads: int
    measured_s: float = 0.0
    batches: int = 0
    rows: int = 0
    num_bytes: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    first_batch_s: list[float] = field(default_factory=list)
    rows_per_s: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    refused: str = ""

    def add(self, other: _Run) -> None:
        """Puts another run of as many workers to this one."""
        for name in ("measured_s", "batches", "rows", "num_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts = {name: self.counts.get(name, 0.0) + count for name, count in other.counts.items()}
        self.first_batch_s += other.first_batch_s
        self.rows_per_s += other.rows_per_s
        self.figures = other.figures

    def per_s(self, count: float) -> float:
        """A count a second."""
        return count / self.measured_s if self.measured_s > 0 else 0.0


def benchmark(
    config: BatchStreamConfig,
    rank: int = 0,
    world_size: int = 1,
    *,
    storage: StorageConfig | None = None,
    seconds: float = 10.0,
    stage: str | int = 0,
    compare_workers: bool = False,
    progress: Progress | None = None,
    on_run: Callable[[int], object] = lambda _threads: None,
) -> dict[str, Any]:
    """Returns what `o41td bench --json` prints.

    Args:
        config: The stream.
        rank: Whose.
        world_size: How many ranks share it.
        storage: As for `open_batch_stream`.
        seconds: How long each number of workers is measured; less where the stages are over before.
        stage: The stage to begin with, its number or name.
        compare_workers: Whether to measure with one worker, and with one more than `threads`, too.
        progress: As for `open_batch_stream`.
        on_run: Called with the number of workers before each run.

    Blocks: for `seconds`, times the numbers of workers, and for each opening.

    Raises:
        O41Error: The stream cannot be opened, or fails.
    """
    rounds = _ROUNDS if compare_workers else 1
    runs = {count: _Run(threads=count) for count in worker_counts(config.threads, compare=compare_workers)}
    with tempfile.TemporaryDirectory(prefix="o41td-bench-") as scratch:
        quarantine = os.path.join(scratch, "quarantine.jsonl")
        for _ in range(rounds):
            for count, run in runs.items():
                on_run(count)
                own = config.model_copy(update={"threads": count, "quarantine_file": quarantine})
                began_s = time.perf_counter()
                try:
                    with open_batch_stream(own, rank, world_size, storage, progress=progress) as stream:
                        stream.advance(stage)
                        meter = _Meter(stream, len(config.stages))
                        run.add(_measured(meter, count, began_s=began_s, seconds=seconds / rounds))
                except O41Error as error:
                    if count == config.threads:
                        raise
                    run.refused = str(error)
    return {"rank": rank, "world_size": world_size, **_record(runs, config.threads)}


def worker_counts(threads: int, *, compare: bool) -> list[int]:
    """Returns the numbers of workers to measure: the config's own; where they are compared, 1 and one more, too."""
    return sorted({1, threads, threads + 1}) if compare else [threads]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How far a stream's counts are."""

    at_s: float
    batches: int
    rows: int
    num_bytes: int
    figures: dict[str, Any]
    counts: dict[str, float]


class _Meter:
    """Counts of a stream that grow: what lies between two looks is what is measured."""

    def __init__(self, stream: BatchStream, num_stages: int) -> None:
        self._stream = stream
        self._last_stage = num_stages - 1
        self.batches = self.rows = self.num_bytes = 0

    def take(self) -> bool:
        """Takes a batch, of the next stage where one is over; returns whether there was one.

        Blocks: until it is there.
        """
        batch = self._stream.next()
        while batch is None:
            if self._stream.stage == self._last_stage:
                return False
            self._stream.advance(self._stream.stage + 1)
            batch = self._stream.next()
        self.batches += 1
        self.rows += batch.num_rows
        self.num_bytes += sum(array.nbytes for array in batch.arrays().values())
        return True

    def look(self) -> _Look:
        """Returns how far the counts are.

        Blocks: until the coordinator answers, milliseconds.
        """
        figures = self._stream.stats()
        return _Look(
            at_s=time.perf_counter(),
            batches=self.batches,
            rows=self.rows,
            num_bytes=self.num_bytes,
            figures=figures,
            counts=counts_of(figures, loop_cpu_s=time.process_time()),
        )


def _measured(meter: _Meter, threads: int, *, began_s: float, seconds: float) -> _Run:
    """Takes batches for so long, behind a warm-up unless the stream is over by then."""
    if not meter.take():
        raise ConfigError("there is no batch to measure")
    before = meter.look()
    first_batch_s = before.at_s - began_s
    warm_s = before.at_s + min(_LONGEST_WARM_UP_S, _WARM_UP_SHARE * seconds)
    while (goes_on := meter.take()) and time.perf_counter() < warm_s:
        pass
    if goes_on:
        before = meter.look()
    end_s = before.at_s + seconds
    while goes_on and time.perf_counter() < end_s:
        goes_on = meter.take()
    after = meter.look()
    run = _Run(
        threads=threads,
        measured_s=after.at_s - before.at_s,
        batches=after.batches - before.batches,
        rows=after.rows - before.rows,
        num_bytes=after.num_bytes - before.num_bytes,
        counts={name: max(0.0, count - before.counts[name]) for name, count in after.counts.items()},
        first_batch_s=[first_batch_s],
        figures=_between(before.figures, after.figures),
    )
    run.rows_per_s.append(run.per_s(run.rows))
    return run


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a loader's record that a verdict rests on, over what lies between two of them."""
    recent = {name: after[name] - before[name] for name in _RECENT}
    return {**after, "recent": recent}


def _record(runs: Mapping[int, _Run], threads: int) -> dict[str, Any]:
    own = runs[threads]
    phases = phases_of(own.counts, elapsed_s=own.measured_s, num_workers=threads)
    compared = [_compared(run) for run in runs.values()] if len(runs) > 1 else []
    return {
        "threads": threads,
        "cores": own.figures["cores"],
        "measured_s": own.measured_s,
        "batches": own.batches,
        "rows": own.rows,
        "bytes": own.num_bytes,
        "batches_per_s": own.per_s(own.batches),
        "rows_per_s": own.per_s(own.rows),
        "bytes_per_s": own.per_s(own.num_bytes),
        "first_batch_s": statistics.median(own.first_batch_s),
        "phases": [phase.to_record() for phase in phases],
        "workers": compared,
        **_judged(own, compared).to_record(),
    }


def _compared(run: _Run) -> dict[str, Any]:
    """What a number of workers reached; `refused` says why it could not be tried."""
    return {
        "threads": run.threads,
        "rows_per_s": run.per_s(run.rows),
        "rows_per_s_of_runs": run.rows_per_s,
        "bytes_per_s": run.per_s(run.num_bytes),
        "workers_cpu_s_per_gb": run.counts["workers_cpu_s"] / run.num_bytes * 1e9 if run.num_bytes else None,
        "refused": run.refused,
    }


def _judged(own: _Run, compared: Sequence[Mapping[str, Any]]) -> Verdict:
    """What limits the config here; where numbers of workers were compared, that says what another would give."""
    counts, elapsed_s = own.counts, max(1e-9, own.measured_s)
    worked_s = sum(counts[name] for name in ("fetch_s", "decode_s", "project_s"))
    busy = min(1.0, worked_s / (elapsed_s * own.threads))
    rank = {
        **own.figures["ranks"][0],
        "wait_fraction": min(1.0, counts["wait_s"] / elapsed_s),
        "since_batch_s": 0.0,
        "has_ended": False,
    }
    verdict = verdict_of({**own.figures, "ranks": [rank], "workers": [{"busy_fraction": busy}] * own.threads})
    advice = workers_advice(own.threads, compared)
    return replace(verdict, advice=advice) if advice and verdict.limit in _ABOUT_WORKERS else verdict


def workers_advice(threads: int, compared: Sequence[Mapping[str, Any]]) -> str:
    """Returns what the comparison says of the number of workers, "" where there was none."""
    rates = {each["threads"]: each["rows_per_s"] for each in compared if not each["refused"]}
    runs = {each["threads"]: each["rows_per_s_of_runs"] for each in compared}
    own = rates.get(threads)
    if not own or len(rates) < 2:  # or the stages were over before anything could be measured
        return ""
    more, one = rates.get(threads + 1, 0.0) / own, rates.get(1, 0.0) / own
    if more >= _WORTH_IT and min(runs[threads + 1]) > max(runs[threads]):
        return f"Set threads to {threads + 1}: that gave {percent_text(more - 1)} more rows a second here"
    if threads > 1 and one >= _AS_GOOD:
        return f"Set threads to 1: one worker gave {percent_text(one)} of what {threads} did here"
    if not more:
        return f"Leave threads as they are: {threads + 1} do not fit, and one gave {percent_text(one)} of {threads}"
    return f"Leave threads as they are: {threads + 1} workers gave {percent_text(more)} of what {threads} did here"
