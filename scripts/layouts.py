"""Streams the benchmark's workloads in every layout, interleaved: bytes, rows a second and CPU a row of each.

Sets are written once below `--data` (7 GB), by `make_data.py` of the folder `--bench` and from there by `o41td write`.
With `--lance`, a Python that has pylance, Lance's plain scan of its own format is measured beside them: one process
that decodes batches of the same size in order and drops them: no shuffle, no padding, no hand-over.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import bench
import pyarrow as pa
import pyarrow.parquet as pq

from o41td.writing.conversion import WriteJob, run_write
from o41td.writing.layout import LAYOUTS

DEFAULTS, LANCE = "pyarrow's defaults", "Lance, plain scan"
SCAN = """
import json, lance, sys, time
data = lance.dataset(sys.argv[1])
wall, cpu, rows = time.perf_counter(), time.process_time(), 0
for batch in data.scanner(batch_size=int(sys.argv[2]), scan_in_order=True).to_batches():
    rows += batch.num_rows
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(json.dumps({"rows": rows, "rows_per_s": rows / wall, "cpu_s": cpu}))
"""
LOAD = """
import itertools, lance, pyarrow as pa, pyarrow.parquet as pq, sys
def batches():
    for path in sys.argv[2:]:
        for batch in pq.ParquetFile(path).iter_batches(2048):
            if "tokens" in batch.schema.names and "loss_mask" not in batch.schema.names:
                tokens = pa.FixedSizeListArray.from_arrays(batch["tokens"].flatten(), 2048)
                batch = pa.RecordBatch.from_arrays([tokens, batch["doc_id"]], ["tokens", "doc_id"])
            yield batch
first, *rest = itertools.islice(every := batches(), 1)
reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], every))
lance.write_dataset(reader, sys.argv[1])
"""


def columns_of(workload: str) -> list[str]:
    """The columns that are streamed: only these are written, so that bytes compare."""
    return [field["name"] for field in bench.fields_of(workload)]


def write_layouts(data: Path, workload: str, layouts: list[str], lance: str | None) -> dict[str, Path]:
    """Writes a workload in these layouts, where it is not yet, and returns their folders by name."""
    source = sorted((data / "made" / workload).glob("*.parquet"))
    folders = {DEFAULTS: data / "defaults" / workload}
    if not folders[DEFAULTS].exists():
        folders[DEFAULTS].mkdir(parents=True)
        for path in source:
            pq.write_table(pq.read_table(path, columns=columns_of(workload)), folders[DEFAULTS] / path.name)
    for name, layout in LAYOUTS.items():
        if name not in layouts:
            continue
        to = data / name / workload
        folders[name] = to / "train"
        if (to / "m.json").exists():
            continue
        job = WriteJob(
            inputs=[str(data / "made" / workload)],
            manifest_uri=str(to / "m.json"),
            columns=columns_of(workload),
            layout=layout,
            splits={"train": 1.0},
            shard_bytes=64 << 20,
        )
        run_write(job)
    if lance is not None:
        folders[LANCE] = data / "lance" / workload
        if not folders[LANCE].exists():
            plain = [str(path) for path in sorted(folders[DEFAULTS].iterdir())]
            subprocess.run([lance, "-c", LOAD, str(folders[LANCE]), *plain], check=True)
    return folders


def measured(folder: Path, workload: str, layout: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One pass over one layout, in a process of its own."""
    if layout == LANCE:
        return bench.measured([arguments.lance, "-c", SCAN, str(folder), str(bench.BATCH_SIZES[workload])])
    own = [sys.executable, __file__, "--threads", str(arguments.threads)]
    return bench.measured([*own, "--measure", str(folder), "--sets", workload])


def table_of(results: dict[str, dict[str, list[dict[str, Any]]]], sizes: dict[str, dict[str, int]]) -> str:
    """The markdown table: medians, and ratios within a round."""
    lines = [
        "| workload | layout | MB | of the defaults' | rows/s | × | CPU µs a row | × fewer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload, layouts in results.items():
        base = layouts[DEFAULTS]
        for layout, rounds in layouts.items():
            speed = [one["rows_per_s"] / other["rows_per_s"] for one, other in zip(rounds, base, strict=True)]
            cpu = [other["cpu_s"] / other["rows"] / (one["cpu_s"] / one["rows"]) for one, other in zip(rounds, base)]
            size = sizes[workload][layout]
            lines.append(
                f"| {workload} | {layout} | {size / 1e6:,.0f} | {size / sizes[workload][DEFAULTS]:.2f} "
                f"| {statistics.median(one['rows_per_s'] for one in rounds):,.0f} | {statistics.median(speed):.1f} "
                f"| {statistics.median(one['cpu_s'] / one['rows'] for one in rounds) * 1e6:.2f} "
                f"| {statistics.median(cpu):.1f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="scripts/layouts", description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, default=bench.ROOT.parent / "shared" / "bench")
    parser.add_argument("--data", type=Path, help="folder for the data, kept for the next run")
    parser.add_argument("--sets", default=",".join(bench.BATCH_SIZES), help="workloads, comma-separated")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="beside pyarrow's defaults, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lance", help="a Python that has pylance")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sets = arguments.sets.split(",")
    if arguments.measure:
        print(json.dumps(bench.measure_stream(arguments.measure, sets[0], arguments.threads)))
        return 0
    if arguments.data is None:
        parser.error("--data names a folder for the data, 7 GB")
    maker = [sys.executable, str(arguments.bench / "make_data.py"), str(arguments.data / "made")]
    subprocess.run([*maker, "--sets", arguments.sets], check=True)
    pa.set_cpu_count(arguments.threads)
    folders = {
        workload: write_layouts(arguments.data, workload, arguments.layouts.split(","), arguments.lance)
        for workload in sets
    }
    sizes = {
        workload: {
            layout: sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for layout, folder in of.items()
        }
        for workload, of in folders.items()
    }
    results: dict[str, dict[str, list[dict[str, Any]]]] = {workload: defaultdict(list) for workload in sets}
    for number in range(arguments.rounds):
        for workload in sets:
            for layout, folder in folders[workload].items():
                found = measured(folder, workload, layout, arguments)
                results[workload][layout].append(found)
                cpu_us = found["cpu_s"] / found["rows"] * 1e6
                figures = f"{found['rows_per_s']:>12,.0f} rows/s {cpu_us:>8.2f} CPU µs a row"
                print(f"round {number + 1}/{arguments.rounds}  {workload:8} {layout:20} {figures}", flush=True)
    print(f"\n{table_of(results, sizes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
