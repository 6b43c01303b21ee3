"""Measures what `cache_dir` gives: an epoch without it, one that fills it, and one that finds everything, by turns.

    PYTHONPATH=scripts .venv/bin/python scripts/bench_cache.py --data FOLDER

FOLDER is what scripts/bench wrote (--data). The epoch that finds everything has another seed. `jsonl.gz` is made of the
first shards of tokens. Every epoch runs in a process of its own; figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from bench import measure_stream, measured

EPOCHS = ("without", "first", "second")
PATTERNS = {"tokens": "*.parquet", "docs": "*.parquet", "tabular": "*.parquet", "jsonl.gz": "*.jsonl.gz"}
_JSON_SHARDS = 6


def write_json_lines(data: Path) -> None:
    """Writes some token shards as jsonl.gz beside the others, once."""
    for path in sorted((data / "tokens").glob("*.parquet"))[:_JSON_SHARDS]:
        out = path.with_suffix(".jsonl.gz")
        if out.exists():
            continue
        with gzip.open(out.with_suffix(".partial"), "wt", compresslevel=5) as file:
            for batch in pq.ParquetFile(path).iter_batches(512, columns=["doc_id", "tokens"]):
                file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
        out.with_suffix(".partial").rename(out)


def row_of(workload: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """A row of the table."""
    rates = {epoch: statistics.median(run["rows_per_s"] for run in results[epoch]) for epoch in EPOCHS}
    cpu = {epoch: statistics.median(run["cpu_s"] / run["rows"] * 1e6 for run in results[epoch]) for epoch in EPOCHS}
    workers = {
        epoch: statistics.median(run["cpu"]["workers"] / run["rows"] * 1e6 for run in results[epoch])
        for epoch in EPOCHS
    }
    ratios = [
        statistics.median(
            s["rows_per_s"] / f["rows_per_s"] for s, f in zip(results["second"], results[of], strict=True)
        )
        for of in ("first", "without")
    ]
    kept = results["first"][-1]["cache"]["written_bytes"]
    return (
        f"| {workload} | {' | '.join(f'{rates[epoch]:,.0f}' for epoch in EPOCHS)} | **{ratios[0]:.1f}** "
        f"| {ratios[1]:.1f} | {' / '.join(f'{workers[epoch]:.1f}' for epoch in EPOCHS)} "
        f"| {' / '.join(f'{cpu[epoch]:.1f}' for epoch in EPOCHS)} | {kept / 1e9:.2f} GB |"
    )


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that scripts/bench wrote")
    parser.add_argument("--sets", default="tokens,docs,tabular,jsonl.gz")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        workload, seed, cache_dir = arguments.measure
        data_set = "tokens" if workload == "jsonl.gz" else workload
        figures = measure_stream(
            arguments.data / data_set,
            data_set,
            arguments.threads,
            pattern=PATTERNS[workload],
            seed=int(seed),
            cache_dir=cache_dir or None,
        )
        print(json.dumps(figures))
        return 0
    own = [sys.executable, "-P", __file__, "--data", str(arguments.data), "--threads", str(arguments.threads)]
    print("| workload | rows/s without | first epoch | second | second to first | to without "
          "| CPU µs a row: workers | all | kept |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for workload in arguments.sets.split(","):
        if workload == "jsonl.gz":
            write_json_lines(arguments.data)
        results: dict[str, list[dict[str, Any]]] = {epoch: [] for epoch in EPOCHS}
        for number in range(arguments.rounds):
            cache_dir = tempfile.mkdtemp(prefix="o41td-bench-cache-")
            try:
                for epoch, seed, folder in zip(EPOCHS, (1, 1, 2 + number), ("", cache_dir, cache_dir), strict=True):
                    results[epoch].append(measured([*own, "--measure", workload, str(seed), folder]))
            finally:
                shutil.rmtree(cache_dir)
        print(row_of(workload, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
