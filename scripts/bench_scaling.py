"""Measures how a stream's pace grows: with workers, with the batch size, with fields, with the size of row groups.

    scripts/bench --scaling

Each point is a stream of a few seconds beside bare pyarrow in as many processes, over data that this writes; the floor
and the stream of a point run one after the other, so what counts is their ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import config_of, measure_config, measured
from bench_data import floor_of, narrow, tokens, wide, write_shards

__all__ = ["scaling_tables"]

_SECONDS = 4.0
_NARROW_FIELDS: list[dict[str, Any]] = [{"name": "doc_id", "dtype": "i64"}, {"name": "x", "dtype": "i32", "length": 8}]
_TOKEN_FIELDS: list[dict[str, Any]] = [
    {"name": "tokens", "dtype": "i32", "length": 2048},
    {"name": "doc_id", "dtype": "i64"},
]
WORKERS = (1, 2, 3, 4)
BATCH_SIZES = (1, 8, 64, 512, 4096, 65536)
FIELDS = (1, 10, 50, 100, 200)
ROW_GROUPS = (50, 500, 5000, 100_000)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One stream: what is varied, and to what."""

    axis: str
    value: int
    folder: Path
    fields: list[dict[str, Any]]
    batch_size: int
    threads: int = 2

    def to_json(self) -> str:
        """For a process that measures it."""
        files = [str(self.folder / "*.parquet")]
        return json.dumps({"args": [files, self.fields, self.batch_size], "threads": self.threads})


def points(folder: Path) -> Iterator[Point]:
    """Every point, its data written."""
    data = write_shards(folder / "tokens", tokens, shards=6, rows=8192, row_group_rows=1024)
    for value in WORKERS:
        yield Point(axis="workers", value=value, folder=data, fields=_TOKEN_FIELDS, batch_size=32, threads=value)
    data = write_shards(folder / "narrow", narrow, shards=4, rows=1_000_000, row_group_rows=16384)
    for value in BATCH_SIZES:
        yield Point(axis="batch size", value=value, folder=data, fields=_NARROW_FIELDS, batch_size=value)
    data = write_shards(folder / "wide", wide, shards=4, rows=131_072, row_group_rows=8192)
    for value in FIELDS:
        fields: list[dict[str, Any]] = [{"name": f"f{i}", "dtype": "f32"} for i in range(value)]
        yield Point(axis="fields", value=value, folder=data, fields=fields, batch_size=1024)
    for value in ROW_GROUPS:
        rows = 2000 * value if value <= 500 else 1_000_000
        data = write_shards(folder / f"groups-{value}", narrow, shards=2, rows=rows, row_group_rows=value)
        yield Point(axis="rows in a row group", value=value, folder=data, fields=_NARROW_FIELDS, batch_size=512)


def scaling_tables(folder: Path, images: Path) -> Iterator[str]:
    """The lines of the table, as they come; then draws docs/images/scaling.png."""
    heads = ["", "", "bare pyarrow rows/s", "stream rows/s", "ratio", "CPU µs a row: workers", "coordinator", "trainer"]
    yield f"| {' | '.join([*heads, 'all, of pyarrow'])} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    drawn: dict[str, list[tuple[int, float, float]]] = {}
    for point in points(folder):
        floor = floor_of(point.folder, [field["name"] for field in point.fields], point.threads)
        stream = measured([sys.executable, "-P", __file__, "--measure", point.to_json()])
        cpu = {role: seconds / stream["rows"] * 1e6 for role, seconds in stream["cpu"].items()}
        floor_cpu = floor["cpu_s"] / floor["rows"] * 1e6
        ratio = stream["rows_per_s"] / floor["rows_per_s"]
        drawn.setdefault(point.axis, []).append((point.value, stream["rows_per_s"], floor["rows_per_s"]))
        yield (
            f"| {point.axis} | {point.value:,} "
            f"| {floor['rows_per_s']:,.0f} | {stream['rows_per_s']:,.0f} | {ratio:.2f} "
            f"| {cpu['workers']:.2f} | {cpu['coordinator']:.2f} | {cpu['trainer']:.2f} "
            f"| {sum(cpu.values()) / floor_cpu:.2f} |"
        )
    draw(drawn, images / "scaling.png")


def draw(drawn: dict[str, list[tuple[int, float, float]]], path: Path) -> None:
    """A panel an axis: rows/s of the stream and of bare pyarrow."""
    from figures import COLOURS, new_figure

    figure = new_figure(10, 2.9)
    panels = figure.subplots(1, len(drawn))
    for axes, (axis, values) in zip(panels, drawn.items(), strict=True):
        at, streams, floors = zip(*values, strict=True)
        axes.plot(at, streams, marker="o", color=COLOURS[0], label="stream")
        axes.plot(at, floors, marker="s", color=COLOURS[1], label="bare pyarrow")
        axes.set(xlabel=axis)
        if axis != "workers":
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("rows/s")
    panels[0].set_xticks(WORKERS)
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> int:
    """Measures one stream."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", required=True)
    told = json.loads(parser.parse_args().measure)
    config = config_of(*told["args"], threads=told["threads"], seed=1)
    print(json.dumps(measure_config(config, seconds=_SECONDS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
