"""Measures what should not change: memory, descriptors and `next()` over a million batches; and what a place costs.

    scripts/bench --steady [--batches 1000000]

Four questions, on data that it writes: does anything grow over many batches; how long does `next()` take of a loop that
works, with all prefetched batches there; is a resume near the end as fast as one at the beginning; how fast is a source
that stays decoded. Streams of which the start counts run in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["steady_tables"]

_TENTHS = 10
_SMALL_ROWS = 4
_TOKEN_ROWS = 12288
_LENGTH = 2048
_TOKENS_BATCH = 32
_BUFFERS = 5


def write_small(folder: Path, num_rows: int) -> None:
    """Shards of a million rows of an int64 and eight int32 each."""
    import pyarrow as pa
    from bench_data import put_table

    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, num_rows, 1_000_000)):
        path = folder / f"{number:03d}.parquet"
        rows = min(1_000_000, num_rows - first)
        if not path.exists():
            values = pa.array(np.arange(8 * rows, dtype=np.int32))
            lists = pa.FixedSizeListArray.from_arrays(values, 8)
            table = pa.table({"id": np.arange(first, first + rows), "values": lists})
            put_table(table, path, row_group_size=16384)


def write_tokens(folder: Path) -> None:
    """Four shards of lists of 2 048 tokens below 50 000, in row groups of 1 024."""
    import pyarrow as pa
    from bench_data import put_table

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for number in range(4):
        path = folder / f"{number}.parquet"
        if not path.exists():
            rows = _TOKEN_ROWS // 4
            values = pa.array(rng.integers(0, 50_000, rows * _LENGTH, dtype=np.int32))
            lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * _LENGTH, values)
            put_table(pa.table({"tokens": lists}), path, row_group_size=1024)


def config_of(folder: Path, **changes: Any) -> Any:
    """A stream of the tokens; `changes` are of its stage."""
    from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage

    stage = {"batch_size": _TOKENS_BATCH, "shuffle": Shuffle(buffer_rows=1024), **changes}
    return BatchStreamConfig(
        fields=[ProjectedField(name="tokens", dtype="i32", length=_LENGTH)],
        stages=[Stage(sources=[FileSource(files=[str(folder / "*.parquet")])], **stage)],
        seed=1,
    )


def quantiles(seconds: Any) -> tuple[float, float]:
    """The median and the 99th percentile, in µs."""
    p50, p99 = np.percentile(np.asarray(seconds), [50, 99]) * 1e6
    return float(p50), float(p99)


def copy_s(num_bytes: int, times: int) -> list[float]:
    """How long copies take of so many bytes that are in no cache, into as many buffers by turns as a stream has."""
    source = np.ones(max(256 << 20, num_bytes) // num_bytes * num_bytes, np.uint8).reshape(-1, num_bytes)
    targets = np.ones((_BUFFERS, num_bytes), np.uint8)
    took = []
    for number in range(times):
        begin = time.perf_counter()
        np.copyto(targets[number % _BUFFERS], source[number % len(source)])
        took.append(time.perf_counter() - begin)
    return took


def growth(folder: Path, num_batches: int) -> Iterator[str]:
    """A tenth after the other: `next()`, memory and descriptors of every process of a stream of small batches."""
    from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage, open_batch_stream

    write_small(folder, num_batches * _SMALL_ROWS)
    config = BatchStreamConfig(
        fields=[ProjectedField(name="id", dtype="i64"), ProjectedField(name="values", dtype="i32", length=8)],
        stages=[
            Stage(
                sources=[FileSource(files=[str(folder / "*.parquet")])],
                batch_size=_SMALL_ROWS,
                shuffle=Shuffle(buffer_rows=4096),
            )
        ],
        seed=1,
    )
    yield f"{num_batches:,} batches of {_SMALL_ROWS} rows of 40 bytes, taken as fast as they come:"
    yield ""
    yield "| tenth | batches/s | `next()` p50 µs | p99 µs | RSS trainer MiB | coordinator | workers | descriptors |"
    yield "|---|---|---|---|---|---|---|---|"
    took = np.zeros(num_batches // _TENTHS)
    with open_batch_stream(config) as stream:
        figures = stream.stats()
        coordinator = figures["coordinator"]["pid"]
        workers = [worker["pid"] for worker in figures["workers"]]
        for tenth in range(_TENTHS):
            begin = before = time.perf_counter()
            for number in range(len(took)):
                stream.next()
                after = time.perf_counter()
                took[number] = after - before
                before = after
            rate = len(took) / (before - begin)
            p50, p99 = quantiles(took)
            each = [sum(map(resident_bytes, pids)) / 2**20 for pids in ([os.getpid()], [coordinator], workers)]
            memory = " | ".join(f"{mib:.1f}" for mib in each)
            descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), coordinator, *workers)]
            named = " + ".join(map(str, descriptors))
            yield f"| {tenth + 1} | {rate:,.0f} | {p50:.1f} | {p99:.1f} | {memory} | {named} |"


def resident_bytes(pid: int) -> int:
    """Pages of a process that are in memory and no file's: what an arena takes is reserved, and counted elsewhere."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel tells no RssAnon")


def full_prefetch(folder: Path, num_batches: int, work_s: float) -> dict[str, Any]:
    """How long `next()` takes where the loop works `work_s` a batch, beside one copy of as many bytes."""
    from o41td import open_batch_stream

    took: list[float] = []
    cpu: list[float] = []
    with open_batch_stream(config_of(folder, infinite=True)) as stream:
        for _ in range(200):
            stream.next()
        for _ in range(num_batches):
            time.sleep(work_s)
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            stream.next()
            cpu.append(time.thread_time() - begin_cpu)
            took.append(time.perf_counter() - begin)
    copied = copy_s(4 * _LENGTH * _TOKENS_BATCH, 500)
    return {"took": quantiles(took), "cpu": quantiles(cpu), "copy": quantiles(copied)}


def resident(folder: Path, epochs: int) -> dict[str, Any]:
    """MB/s of each epoch of a source that stays decoded, and of copies of batches."""
    from o41td import open_batch_stream

    per_epoch = _TOKEN_ROWS // _TOKENS_BATCH
    batch_bytes = 4 * _LENGTH * _TOKENS_BATCH
    rates = []
    with open_batch_stream(config_of(folder, infinite=True)) as stream:
        for _ in range(epochs):
            begin = time.perf_counter()
            for _ in range(per_epoch):
                stream.next()
            rates.append(per_epoch * batch_bytes / (time.perf_counter() - begin) / 1e6)
    copied = copy_s(batch_bytes, per_epoch)
    return {"rates": rates, "copy": per_epoch * batch_bytes / sum(copied) / 1e6}


def resume(checkpoint: Path) -> dict[str, Any]:
    """Seconds from a resume's call to its first batch."""
    from o41td import Checkpoint, resume_batch_stream

    begin = time.perf_counter()
    with resume_batch_stream(Checkpoint.load(checkpoint)) as stream:
        assert stream.next() is not None
        return {"first_s": time.perf_counter() - begin}


def save_checkpoints(folder: Path, places: list[float]) -> list[Path]:
    """Checkpoints at parts of a finite stream of the tokens."""
    from o41td import open_batch_stream

    paths = []
    with open_batch_stream(config_of(folder)) as stream:
        for place in places:
            stream.seek(int(place * (_TOKEN_ROWS // _TOKENS_BATCH)))
            paths.append(folder / f"at-{place}.json")
            stream.checkpoint().save(paths[-1])
    return paths


def apart(*words: str) -> dict[str, Any]:
    """Runs one measurement in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", __file__, "--measure", *words], check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def steady_tables(folder: Path, num_batches: int) -> Iterator[str]:
    """The lines of all tables, as they come."""
    yield from growth(folder / "small", num_batches)
    tokens = folder / "tokens"
    write_tokens(tokens)
    rounds = 3 if num_batches < 1_000_000 else 7
    places = save_checkpoints(tokens, [0.0, 0.95])
    firsts: dict[Path, list[float]] = {path: [] for path in places}
    for _ in range(rounds):
        for path in places:
            firsts[path].append(apart("resume", str(path))["first_s"])
    start, end = (statistics.median(firsts[path]) for path in places)
    full = [apart("full", str(tokens), str(min(2000, num_batches // 100))) for _ in range(rounds)]
    (p50, p99), (cpu50, cpu99) = (
        [statistics.median(run[kind][which] for run in full) for which in (0, 1)] for kind in ("took", "cpu")
    )
    copied = statistics.median(run["copy"][0] for run in full)
    runs = [apart("resident", str(tokens)) for _ in range(rounds)]
    first, second, later = (statistics.median(run["rates"][epoch] for run in runs) for epoch in (0, 1, -1))
    memcpy = statistics.median(run["copy"] for run in runs)
    is_late, is_faster = f"{end:.2f} s, {start:.2f} s: {end / start:.2f} ×", f"{second / first:.1f} ×"
    yield ""
    yield f"Batches of {_TOKENS_BATCH} rows of {_LENGTH:,} tokens (256 KiB), medians of {rounds} runs:"
    yield ""
    yield "| what | wanted | seen |"
    yield "|---|---|---|"
    yield f"| `next()` with prefetch full, p50 | ≤ 60 µs + one copy ({copied:.0f} µs) | {p50:.0f} µs |"
    yield f"| the same, p99 | ≤ 5 × p50 | {p99:.0f} µs, {p99 / p50:.1f} × |"
    yield f"| CPU of the thread in `next()`, p50 and p99 | | {cpu50:.0f} µs, {cpu99:.0f} µs: {cpu99 / cpu50:.1f} × |"
    yield f"| first batch after a resume at 95 % | ≤ 1.1 × that at 0 % | {is_late} |"
    yield f"| a source that stays decoded, second epoch, MB/s | ≥ 4 × the first | {second:,.0f}: {is_faster} |"
    yield f"| the same, of copies of the batches | ≥ 0.5 | {second / memcpy:.2f}; {later / memcpy:.2f} in the sixth |"


def main() -> int:
    """One measurement, for `apart`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="+", required=True)
    what, place, *rest = parser.parse_args().measure
    match what:
        case "full":
            result = full_prefetch(Path(place), int(rest[0]), work_s=0.002)
        case "resident":
            result = resident(Path(place), epochs=6)
        case "resume":
            result = resume(Path(place))
        case _:
            parser.error(f"{what} is nothing that is measured")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
