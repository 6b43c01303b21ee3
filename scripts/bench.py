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
BEGIN, END = "<!-- begin: scripts/bench -->", "<!-- end: scripts/bench -->"
BATCH_SIZES = {"tokens": 32, "docs": 32, "tabular": 4096, "images": 32}
BUFFER_ROWS = 4096


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
) -> dict[str, Any]:
    """Streams a workload's shards, or `files` elsewhere, once in this process; returns figures, prints nothing."""
    from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage, open_batch_stream

    config = BatchStreamConfig(
        fields=[ProjectedField(**field) for field in fields_of(workload)],
        stages=[
            Stage(
                sources=[FileSource(files=files or [str(folder / pattern)])],
                batch_size=BATCH_SIZES[workload],
                shuffle=Shuffle(buffer_rows=BUFFER_ROWS),
            )
        ],
        threads=threads,
        seed=seed,
        cache_dir=cache_dir,
    )
    with open_batch_stream(config, storage=storage) as stream:
        first = stream.next()
        assert first is not None
        first_batch_s = time.clock_gettime(time.CLOCK_BOOTTIME) - process_started_s()
        pids = stream.stats()
        roles = {"trainer": [os.getpid()], "coordinator": [pids["coordinator"]["pid"]]}
        roles["workers"] = [worker["pid"] for worker in pids["workers"]]
        before = {role: cpu_s(processes) for role, processes in roles.items()}
        begin = time.perf_counter()
        rows = 0
        while (batch := stream.next()) is not None:
            rows += batch.num_rows
        wall_s = time.perf_counter() - begin
        cpu = {role: cpu_s(processes) - before[role] for role, processes in roles.items()}
        figures = stream.stats()
    return {
        "rows": rows,
        "wall_s": wall_s,
        "rows_per_s": rows / wall_s,
        "cpu": cpu,
        "cpu_s": sum(cpu.values()),
        "first_batch_s": first_batch_s,
        "decoded_bytes": figures["decoded_bytes"],
        **{name: figures[name] for name in ("fetch_s", "decode_s", "project_s", "wait_s", "cache", "storage")},
    }


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
    own = [sys.executable, "-P", __file__, "--data", str(data), "--threads", str(arguments.threads), "--measure"]
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
        "| workload | worker CPU | coordinator | trainer | decode of workers' time | project | fetch |",
        "|---|---|---|---|---|---|---|",
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
        total = statistics.median(s["cpu_s"] for s in streams)
        share = {role: statistics.median(s["cpu"][role] for s in streams) / total for role in streams[0]["cpu"]}
        phases = {name: statistics.median(s[name] for s in streams) for name in ("decode_s", "project_s", "fetch_s")}
        busy = sum(phases.values())
        shares.append(
            f"| {workload} | {share['workers']:.0%} | {share['coordinator']:.1%} | {share['trainer']:.1%} "
            f"| {phases['decode_s'] / busy:.0%} | {phases['project_s'] / busy:.0%} | {phases['fetch_s'] / busy:.1%} |"
        )
    return "\n".join([*lines, *shares])


def write_report(table: str) -> None:
    """Puts the tables between the marks of docs/performance.md."""
    path = ROOT / "docs" / "performance.md"
    text = path.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    path.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}")


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
    parser.add_argument("--quick", action="store_true", help="one round on an eighth of the data, printed only")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_stream(arguments.data / arguments.measure, arguments.measure, arguments.threads)))
        return 0
    arguments.sets = arguments.sets.split(",")
    maker = arguments.bench / "make_data.py"
    if not maker.is_file():
        parser.error(f"{maker} is not there; --bench names the folder that holds make_data.py and floor.py")
    if arguments.quick:
        arguments.rounds = 1
    data = arguments.data or Path(tempfile.gettempdir()) / ("o41td-bench-quick" if arguments.quick else "o41td-bench")
    shards = ["--shards", "4"] if arguments.quick else []
    subprocess.run([sys.executable, str(maker), str(data), "--sets", ",".join(arguments.sets), *shards], check=True)
    table = table_of(run_rounds(arguments, data), arguments.threads)
    print(f"\n{table}")
    if not arguments.quick and set(arguments.sets) == set(BATCH_SIZES):
        write_report(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
