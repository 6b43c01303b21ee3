"""Measures streams out of a store that is far away: how fast, beside the same files on local disk and the store's pipe.

    PYTHONPATH=scripts:tests/support .venv/bin/python scripts/bench_storage.py --data FOLDER
    PYTHONPATH=scripts:tests/support .venv/bin/python scripts/bench_storage.py --open 500 --latency-s 0.2

FOLDER is what scripts/bench wrote (--data). The store is `folder_store`, on the same cores. Every round copies
all files over eight connections, which is what the store gives, then runs a stream of the local files, one by HTTP and
one by S3, each in a process of its own; what a stream could do is the smaller of the first two rates, and figures are
medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench import cpu_s, measure_stream, measured

from folder_store import serving
from o41td import BatchStreamConfig, FileSource, ProjectedField, Stage, StorageConfig, open_batch_stream

KINDS = ("local", "http", "s3")
_CONNECTIONS = 8


def files_of(kind: str, url: str, folder: Path) -> list[str]:
    """How a stream names the shards of a folder."""
    root = {"local": str(folder.parent), "http": url, "s3": "s3:/"}[kind]
    return [f"{root}/{folder.name}/{path.name}" for path in sorted(folder.glob("*.parquet"))]


def storage_of(url: str) -> StorageConfig:
    """How to reach the store."""
    return StorageConfig(endpoint_url=url, region="us-east-1", access_key_id="id", secret_access_key="secret")  # noqa: S106


def stream_rounds(arguments: argparse.Namespace) -> None:
    """Prints a table of streams."""
    own = [sys.executable, "-P", __file__, "--data", str(arguments.data), "--threads", str(arguments.threads)]
    print(
        f"{arguments.threads} workers, {arguments.latency_s * 1e3:.0f} ms a request, {arguments.gbit_s:g} Gbit/s, "
        f"medians of {arguments.rounds} rounds\n\n"
        "| workload | pipe rows/s | local rows/s | HTTP | S3 | HTTP to the smaller | S3 to the smaller "
        "| CPU µs a row: local / HTTP / S3 | requested |\n|---|---|---|---|---|---|---|---|---|"
    )
    bytes_per_s = arguments.gbit_s * 1e9 / 8
    for workload in arguments.sets.split(","):
        results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        with serving(arguments.data, latency_s=arguments.latency_s, bytes_per_s=bytes_per_s) as url:
            pipes = []
            for _ in range(arguments.rounds):
                pipes.append(copied_bytes_per_s(arguments.data / workload, url))
                for kind in KINDS:
                    results[kind].append(measured([*own, "--measure", workload, kind, url]))
        print(row_of(workload, results, pipes), flush=True)


def copied_bytes_per_s(folder: Path, url: str) -> float:
    """How fast the store gives all files of a folder, over some connections side by side."""

    def copy(path: Path) -> int:
        with urllib.request.urlopen(f"{url}/{folder.name}/{path.name}") as answer:  # noqa: S310 - a URL of ours
            return sum(len(chunk) for chunk in iter(lambda: answer.read(1 << 20), b""))

    begin = time.perf_counter()
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        copied = sum(pool.map(copy, sorted(folder.glob("*.parquet"))))
    return copied / (time.perf_counter() - begin)


def row_of(workload: str, results: dict[str, list[dict[str, Any]]], pipes: list[float]) -> str:
    """A row of the table."""
    rates = {kind: [run["rows_per_s"] for run in results[kind]] for kind in KINDS}
    cpu = {kind: statistics.median(run["cpu_s"] / run["rows"] * 1e6 for run in results[kind]) for kind in KINDS}
    last = results["http"][-1]
    row_bytes = last["projected_bytes"] / last["all_rows"]
    limits = [min(pipe / row_bytes, local) for pipe, local in zip(pipes, rates["local"], strict=True)]
    ratios = {
        kind: statistics.median(rate / limit for rate, limit in zip(rates[kind], limits, strict=True))
        for kind in KINDS[1:]
    }
    pipe = statistics.median(pipes) / row_bytes
    shown = " | ".join(f"{statistics.median(rates[kind]):,.0f}" for kind in KINDS)
    requested = last["storage"]["requested_bytes"] / last["projected_bytes"]
    return (
        f"| {workload} | {pipe:,.0f} | {shown} | **{ratios['http']:.2f}** | **{ratios['s3']:.2f}** "
        f"| {' / '.join(f'{cpu[kind]:.1f}' for kind in KINDS)} | {requested:.3f} |"
    )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One stream's figures."""
    workload, kind, url = arguments.measure
    folder = arguments.data / workload
    files = files_of(kind, url, folder)
    figures = measure_stream(folder, workload, arguments.threads, files=files, storage=storage_of(url))
    footers = [pq.read_metadata(path) for path in sorted(folder.glob("*.parquet"))]
    figures["all_rows"] = sum(footer.num_rows for footer in footers)
    figures["projected_bytes"] = sum(
        footer.row_group(group).column(column).total_compressed_size
        for footer in footers
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    )
    return figures


def open_rounds(arguments: argparse.Namespace) -> None:
    """Prints how long it takes to open many small shards that no index knows."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "many").mkdir()
        for number in range(arguments.open):
            ids = np.arange(number * 800, number * 800 + 800)
            pq.write_table(pa.table({"id": ids, "x": ids / 2}), root / f"many/{number:05}.parquet", row_group_size=100)
        for kind in KINDS[1:]:
            opened, cpu = [], []
            for _ in range(arguments.rounds):
                for path in (root / "many").iterdir():
                    path.touch()  # another etag, so another shard
                with serving(root, latency_s=arguments.latency_s) as url:
                    files = ["s3://many/*.parquet"] if kind == "s3" else files_of(kind, url, root / "many")
                    stage = Stage(sources=[FileSource(files=files)], batch_size=32)
                    config = BatchStreamConfig(fields=[ProjectedField(name="id", dtype="i64")], stages=[stage])
                    begin = time.perf_counter()
                    with open_batch_stream(config, storage=storage_of(url)) as stream:
                        opened.append(time.perf_counter() - begin)
                        stats = stream.stats()
                        cpu.append(cpu_s([stats["coordinator"]["pid"], *(each["pid"] for each in stats["workers"])]))
            print(
                f"{kind}: {arguments.open} shards, {arguments.latency_s * 1e3:.0f} ms a request: open in "
                f"{statistics.median(opened):.1f} s ({min(opened):.1f}–{max(opened):.1f}), "
                f"{statistics.median(cpu):.1f} s of CPU",
                flush=True,
            )


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder that scripts/bench wrote")
    parser.add_argument("--open", type=int, help="open so many shards instead")
    parser.add_argument("--sets", default="tokens,docs,tabular")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--latency-s", type=float, default=0.05)
    parser.add_argument("--gbit-s", type=float, default=1.0)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments)))
    elif arguments.open:
        open_rounds(arguments)
    else:
        stream_rounds(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
