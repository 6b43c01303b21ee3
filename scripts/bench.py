"""Measures streams against the floor (bare pyarrow, as many processes) on four workloads, interleaved, as ratios.

The workloads and the floor come from a folder that holds `make_data.py` and `floor.py` (`--bench`). Every round runs
floor and stream of each workload one after the other, so a slow spell of the machine hits both; figures are medians
over rounds.

A stream's clock and CPU start at its first batch (start-up is told apart) and stop at its last. CPU is read from /proc
of every process the stream has: trainer, coordinator, workers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from o41td import StorageConfig

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZES = {"tokens": 32, "docs": 32, "tabular": 4096, "images": 32}
BUFFER_ROWS = 4096
PHASES = ("fetch_cpu_s", "decode_cpu_s", "project_cpu_s", "gather_s")
PHASES_NOTE = """\
CPU, of all of the stream's. Decoding includes decompression, which Arrow does in the same calls; planning is what it
takes by itself, messages all else of the coordinator's; gathering is the wall clock of the thread that does it."""


def fields_of(workload: str) -> list[dict[str, Any]]:
    """The columns that floor.py reads of a workload, as fields."""
    row_id = {"name": "doc_id", "dtype": "i64"}
    if workload == "tokens":
        return [{"name": "tokens", "dtype": "i32", "length": 2048}, row_id]
    if workload == "docs":
        mask = {"name": "loss_mask", "dtype": "bool", "length": 2048}
        return [{"name": "tokens", "dtype": "i32", "length": 2048}, mask, row_id]
    if workload == "images":
        return [{"name": "pixels", "dtype": "f32", "length": 12288}, row_id]
    floats = [{"name": f"f{i}", "dtype": "f32"} for i in range(40)]
    ints = [{"name": f"i{i}", "dtype": "i64"} for i in range(10)]
    return [*floats, *ints, {"name": "label", "dtype": "bool"}, row_id]


def measure_stream(
    folder: Path,
    workload: str,
    threads: int,
    *,
    pattern: str = "*.parquet",
    seed: int = 1,
    cache_dir: str | None = None,
    files: Sequence[str] | None = None,
    storage: StorageConfig | None = None,
    buffer_rows: int | None = BUFFER_ROWS,
) -> dict[str, Any]:
    """Streams a workload's shards, or `files` elsewhere, once in this process; returns figures, prints nothing."""
    return measure_config(
        config_of(
            files or [str(folder / pattern)],
            fields_of(workload),
            BATCH_SIZES[workload],
            buffer_rows=buffer_rows,
            threads=threads,
            seed=seed,
            cache_dir=cache_dir,
        ),
        storage=storage,
    )


def config_of(
    files: Sequence[str],
    fields: Sequence[dict[str, Any]],
    batch_size: int,
    *,
    buffer_rows: int | None = BUFFER_ROWS,
    **settings: Any,
) -> Any:
    """A stream of one stage, shuffled unless `buffer_rows` is None."""
    from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage

    shuffle = None if buffer_rows is None else Shuffle(buffer_rows=buffer_rows)
    stage = Stage(sources=[FileSource(files=list(files))], batch_size=batch_size, shuffle=shuffle)
    return BatchStreamConfig(fields=[ProjectedField(**field) for field in fields], stages=[stage], **settings)


def measure_config(
    config: Any, *, storage: StorageConfig | None = None, seconds: float | None = None
) -> dict[str, Any]:
    """Streams `config` once, or again and again for so many seconds, in this process."""
    from o41td import open_batch_stream

    with open_batch_stream(config, storage=storage) as stream:
        first = stream.next()
        assert first is not None
        first_batch_s = time.clock_gettime(time.CLOCK_BOOTTIME) - process_started_s()
        started = stream.stats()
        roles = {"trainer": [os.getpid()], "coordinator": [started["coordinator"]["pid"]]}
        roles["workers"] = [worker["pid"] for worker in started["workers"]]
        before = {role: cpu_s(processes) for role, processes in roles.items()}
        begin = time.perf_counter()
        rows = batches = 0
        while True:
            batch = stream.next()
            if batch is not None:
                rows += batch.num_rows
                batches += 1
            elif seconds is not None:
                stream.seek(0)
            else:
                break
            if seconds is not None and not batches % 16 and time.perf_counter() - begin > seconds:
                break
        wall_s = time.perf_counter() - begin
        cpu = {role: cpu_s(processes) - before[role] for role, processes in roles.items()}
        figures = stream.stats()
    return {
        "rows": rows,
        "batches": batches,
        "wall_s": wall_s,
        "rows_per_s": rows / wall_s,
        "cpu": cpu,
        "cpu_s": sum(cpu.values()),
        "plan_cpu_s": None if seconds is not None else plan_cpu_s(config, storage, batches),
        "phase_cpu_s": {name: figures[name] - started[name] for name in PHASES},
        "first_batch_s": first_batch_s,
        "decoded_bytes": figures["decoded_bytes"],
        **{name: figures[name] for name in ("fetch_s", "decode_s", "project_s", "wait_s", "cache", "storage")},
    }


def plan_cpu_s(config: Any, storage: StorageConfig | None, num_batches: int) -> float:
    """CPU seconds that planning so many batches takes by itself, as the coordinator plans them."""
    from o41td.coordinator.block_table import BlockTable
    from o41td.coordinator.rank_plan import RankPlan
    from o41td.coordinator.sizing import size_loader
    from o41td.outline import read_outline

    outline = read_outline(config, storage=storage)
    size = size_loader(outline.job, outline.lookup.sources, world_size=1, limit_bytes=1 << 50, forks=True)
    block_rows = size.layout.block_rows
    plan = RankPlan(
        outline.lookup.order(0),
        outline.lookup.sources[0],
        stage=0,
        position=0,
        global_batch=0,
        rank=0,
        world_size=1,
        block_rows=block_rows,
        resident=frozenset(),
        table=BlockTable(block_rows),
    )
    begin, planned = time.process_time(), 0
    while planned < num_batches and (batches := plan.next_batches()):
        planned += len(batches)
    return time.process_time() - begin


def process_started_s() -> float:
    """When this process was started, in seconds since boot (to a hundredth)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_s(pids: list[int]) -> float:
    """CPU seconds that processes have used."""
    import psutil

    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def measured(command: list[str]) -> dict[str, Any]:
    """Runs a command that prints one JSON line last."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_rounds(arguments: argparse.Namespace, data: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns {workload: {"floor": […], "stream": […]}}, one entry a round."""
    results: dict[str, dict[str, list[dict[str, Any]]]] = {w: {"floor": [], "stream": []} for w in arguments.sets}
    own = [sys.executable, "-P", __file__, "--data", str(data), "--threads", str(arguments.threads)]
    own += [*(["--unshuffled"] if arguments.unshuffled else []), "--measure"]
    floor = [sys.executable, str(arguments.bench / "floor.py"), str(data)]
    for number in range(arguments.rounds):
        for workload in arguments.sets:
            bare = measured([*floor, workload, "--processes", str(arguments.threads)])
            stream = measured([*own, workload])
            results[workload]["floor"].append(bare)
            results[workload]["stream"].append(stream)
            ratio = stream["rows_per_s"] / bare["rows_per_s"]
            print(
                f"round {number + 1}/{arguments.rounds}  {workload:8} floor {bare['rows_per_s']:>10,} rows/s   "
                f"stream {stream['rows_per_s']:>10,.0f} rows/s   ratio {ratio:.2f}",
                flush=True,
            )
    return results


def table_of(results: dict[str, dict[str, list[dict[str, Any]]]], threads: int) -> str:
    """The markdown tables of one run."""
    rounds = len(next(iter(results.values()))["floor"])
    lines = [
        f"{threads} workers, {os.cpu_count()} cores, page cache warm, medians of {rounds} interleaved rounds.",
        "",
        "| workload | floor rows/s | stream rows/s | ratio (min–max) | CPU s/GB floor | stream | ratio | first s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shares = [
        "",
        PHASES_NOTE,
        "",
        "| workload | fetch | decode | project | workers' rest | plan | messages | gather | trainer's rest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for workload, pair in results.items():
        floors, streams = pair["floor"], pair["stream"]
        ratios = [s["rows_per_s"] / f["rows_per_s"] for s, f in zip(streams, floors, strict=True)]
        floor_gb = statistics.median(f["cpu_s"] / f["bytes"] * 1e9 for f in floors)
        # A stream's clock starts behind its first batch: its rows' share of the floor's bytes is what it decoded since.
        stream_gb = statistics.median(
            s["cpu_s"] / (f["bytes"] * s["rows"] / f["rows"]) * 1e9 for s, f in zip(streams, floors, strict=True)
        )
        lines.append(
            f"| {workload} | {statistics.median(f['rows_per_s'] for f in floors):,.0f} "
            f"| {statistics.median(s['rows_per_s'] for s in streams):,.0f} "
            f"| **{statistics.median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f}) "
            f"| {floor_gb:.2f} | {stream_gb:.2f} | {stream_gb / floor_gb:.2f} "
            f"| {statistics.median(s['first_batch_s'] for s in streams):.2f} |"
        )
        parts = [phases_of(stream) for stream in streams]
        cells = [statistics.median(part[name] / sum(part.values()) for part in parts) for name in parts[0]]
        shares.append(f"| {workload} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")
    return "\n".join([*lines, *shares])


def phases_of(stream: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of a stream by phase; together they are all of it, where no part was measured as too large."""
    fetch, decode, project, gather = (stream["phase_cpu_s"][name] for name in PHASES)
    cpu, plan = stream["cpu"], min(stream["plan_cpu_s"], stream["cpu"]["coordinator"])
    return {
        "fetch": fetch,
        "decode": decode,
        "project": project,
        "workers": max(0.0, cpu["workers"] - fetch - decode - project),
        "plan": plan,
        "messages": cpu["coordinator"] - plan,
        "gather": min(gather, cpu["trainer"]),
        "trainer": max(0.0, cpu["trainer"] - gather),
    }


def write_report(table: str, of: str = "scripts/bench") -> None:
    """Puts the tables between the marks of docs/performance.md."""
    path = ROOT / "docs" / "performance.md"
    begin, end = f"<!-- begin: {of} -->", f"<!-- end: {of} -->"
    head, rest = path.read_text().split(begin)
    path.write_text(f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}")


def quick(folder: Path, threads: int) -> str:
    """Two small workloads, written here, one round: so short that much is decoded before the clock starts."""
    from bench_data import floor_of, tabular, tokens, write_shards

    own = [sys.executable, "-P", __file__, "--data", str(folder), "--threads", str(threads), "--measure"]
    results = {}
    for workload, make, rows in (("tokens", tokens, 4096), ("tabular", tabular, 65536)):
        write_shards(folder / workload, make, shards=3, rows=rows, row_group_rows=rows // 8)
        columns = [field["name"] for field in fields_of(workload)]
        results[workload] = {
            "floor": [floor_of(folder / workload, columns, threads)],
            "stream": [measured([*own, workload])],
        }
    return table_of(results, threads)


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--bench", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of make_data.py, floor.py"
    )
    parser.add_argument("--data", type=Path, help="folder for the data (1.7 GB), kept for the next run")
    parser.add_argument("--sets", default=",".join(BATCH_SIZES), help="workloads, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_true", help="two small workloads, written here; printed only")
    modes.add_argument("--unshuffled", action="store_true", help="the four workloads without shuffle")
    modes.add_argument("--scaling", action="store_true", help="by workers, batch size, fields and row groups")
    modes.add_argument("--steady", action="store_true", help="what should not change over many batches")
    parser.add_argument("--batches", type=int, default=1_000_000, help="how many, with --steady")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        folder, buffer_rows = arguments.data / arguments.measure, None if arguments.unshuffled else BUFFER_ROWS
        print(json.dumps(measure_stream(folder, arguments.measure, arguments.threads, buffer_rows=buffer_rows)))
        return 0
    data = arguments.data or Path(tempfile.gettempdir()) / "o41td-bench"
    if arguments.quick:
        print(quick(data / "quick", arguments.threads))
        return 0
    if arguments.scaling or arguments.steady:
        return report_apart(data, arguments)
    arguments.sets = arguments.sets.split(",")
    maker = arguments.bench / "make_data.py"
    if not maker.is_file():
        parser.error(f"{maker} is not there; --bench names the folder that holds make_data.py and floor.py")
    subprocess.run([sys.executable, str(maker), str(data), "--sets", ",".join(arguments.sets)], check=True)
    table = table_of(run_rounds(arguments, data), arguments.threads)
    print(f"\n{table}")
    if set(arguments.sets) == set(BATCH_SIZES):
        write_report(table, "scripts/bench --unshuffled" if arguments.unshuffled else "scripts/bench")
    return 0


def report_apart(data: Path, arguments: argparse.Namespace) -> int:
    """Prints and writes the tables that have marks of their own."""
    from bench_scaling import scaling_tables
    from bench_steady import steady_tables

    if arguments.scaling:
        name, lines = "scripts/bench --scaling", scaling_tables(data / "scaling", ROOT / "docs" / "images")
    else:
        name, lines = "scripts/bench --steady", steady_tables(data / "steady", arguments.batches)
    told = []
    for line in lines:
        print(line, flush=True)
        told.append(line)
    write_report("\n".join(told), name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
