"""`o41td bench`: what a config reaches here, where the time goes, and what more workers would give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from o41td.cli.console import open_console
from o41td.cli.wording import bytes_text, count_text, counted_text, duration_text, rate_text
from o41td.phases import Phase, phases_table

__all__ = ["bench_view", "show_bench"]

_SHORT_S = 1.0


def show_bench(
    config_path: Path,
    *,
    rank: int,
    world_size: int,
    seconds: float,
    stage: str | None = None,
    compare_workers: bool,
    storage_path: Path | None = None,
    as_json: bool,
) -> None:
    """Measure a config's stream, and print what came of it.

    Args:
        config_path: the config.
        rank: whose stream.
        world_size: how many ranks there are.
        seconds: how long each number of workers is measured.
        stage: the stage to begin with; None is the first.
        compare_workers: whether to measure other numbers of workers, too.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: for programs.

    Raises:
        O41Error: The config, the data or this host do not allow it, or the stream fails.

    Blocks: until it is measured.
    """
    from o41td import BatchStreamConfig
    from o41td.benchmark import benchmark
    from o41td.cli.storage import storage_of

    config, storage = BatchStreamConfig.load(config_path), storage_of(storage_path)
    told = Console(stderr=True, quiet=as_json)
    with told.status("Opening ...") as status:

        def tell_footers(done: int, total: int) -> None:
            status.update(f"Reading footers: {count_text(done)} of {count_text(total)} shards")

        def tell_run(threads: int) -> None:
            status.update(f"Measuring with {counted_text(threads, 'worker')} ...")

        record = benchmark(
            config,
            rank,
            world_size,
            storage=storage,
            seconds=seconds,
            stage=0 if stage is None else stage,
            compare_workers=compare_workers,
            progress=tell_footers,
            on_run=tell_run,
        )
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
    else:
        open_console().print(bench_view(record, config_path.name))


def bench_view(record: Mapping[str, Any], name: str) -> RenderableType:
    """What a person sees of `benchmark`; fits into 80 columns."""
    workers, cores = counted_text(record["threads"], "worker"), counted_text(record["cores"], "core")
    told = f"rank {record['rank']} of {record['world_size']}, {workers} on {cores}"
    parts: list[RenderableType] = [Text.assemble((name, "bold"), (f"  {told}", "dim"))]
    parts += [Padding(part, (0, 0, 0, 2), expand=False) for part in _parts(record)]
    return Group(*parts)


def _parts(record: Mapping[str, Any]) -> Iterator[RenderableType]:
    rates = f"{count_text(record['rows_per_s'])} rows/s, {bytes_text(record['bytes_per_s'])}/s"
    yield Text.assemble((rates, "cyan"), f", {rate_text(record['batches_per_s'])} batches/s")
    extent = f"{counted_text(record['batches'], 'batch', 'batches')} in {duration_text(record['measured_s'])}"
    yield Text(f"first batch {duration_text(record['first_batch_s'])} after open; then {extent}", style="dim")
    if record["measured_s"] < _SHORT_S:
        yield Text("The stages were over so soon that these figures are rough.", style="yellow")
    yield Text("")
    yield Text(record["verdict"], style="yellow")
    if record["evidence"]:
        yield Text(", ".join(record["evidence"]), style="dim")
    if record["advice"]:
        yield Text(f"{record['advice']}.")
    yield Text(f"\n{phases_table(Phase(**phase) for phase in record['phases'])}")
    if record["workers"]:
        yield Padding(_workers_table(record["workers"], record["threads"]), (1, 0, 0, 0), expand=False)


def _workers_table(compared: Sequence[Mapping[str, Any]], own_threads: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for title in ("workers", "rows/s", "least – most", "MB/s", "their CPU s/GB"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for each in compared:
        rates = each["rows_per_s_of_runs"]
        cells = ["–"] * 4
        if rates:
            cpu = each["workers_cpu_s_per_gb"]
            cells = [
                count_text(each["rows_per_s"]),
                f"{count_text(min(rates))} – {count_text(max(rates))}",
                count_text(each["bytes_per_s"] / 1e6),
                "–" if cpu is None else f"{cpu:.1f}",
            ]
        note = each["refused"] or ("as configured" if each["threads"] == own_threads else "")
        table.add_row(count_text(each["threads"]), *cells, Text(note, style="dim"))
    return table
