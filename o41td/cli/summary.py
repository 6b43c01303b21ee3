"""The last words of `run` and `demo`: what came, how fast, and whether it is right."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from o41td.cli.wording import (
    bytes_text,
    count_text,
    counted_text,
    duration_text,
    share_text,
    speed_text,
)
from o41td.sizes import human_bytes

__all__ = ["print_demo_summary", "print_run_summary"]


def print_run_summary(console: Console, record: dict[str, Any], *, checkpoint_path: Path | None) -> None:
    """Print what `o41td run` came to.

    Args:
        console: where to.
        record: as `o41td run --json` prints it.
        checkpoint_path: where the position was saved, if it was.
    """
    first_batch_s = record["first_batch_s"]
    delivered = _delivered_text(record)
    lines = [("delivered", f"{delivered}, {bytes_text(record['bytes'])}")]
    if first_batch_s is not None:
        flowing_s = record["wall_s"] - first_batch_s
        lines += [
            ("speed", speed_text(record["rows"], record["bytes"], flowing_s)),
            ("first batch", f"{duration_text(first_batch_s)} after open"),
            ("waiting", f"{share_text(record['wait_s'], flowing_s)} of the time: nothing is trained between batches"),
        ]
    lines.append(("dropped", counted_text(record["dropped_rows"], "row")))
    if record["bad_rows"]:
        lines.append(("replaced", f"{counted_text(record['bad_rows'], 'row')} that could not be had, by others"))
    lines.append(("order digest", record["order_digest"]))
    if checkpoint_path is not None:
        lines.append(("checkpoint", str(checkpoint_path)))
    _print_lines(console, lines, indent=0)


def print_demo_summary(console: Console, record: dict[str, Any], *, num_workers: int) -> None:
    """Print what `o41td demo` came to.

    Args:
        console: where to.
        record: as `o41td demo --json` prints it.
        num_workers: worker processes of each of its loaders.
    """
    memory = record["memory"]
    delivered = _delivered_text(record)
    dropped = f", {count_text(record['dropped_rows'])} dropped" if record["dropped_rows"] else ""
    opened, resumed = (duration_text(record[key]) for key in ("first_batch_s", "first_batch_after_resume_s"))
    peak, bound = human_bytes(memory["peak_bytes"]), human_bytes(memory["bound_bytes"])
    within = memory["peak_bytes"] <= memory["bound_bytes"]
    lines = [
        ("delivered", f"{delivered}, {bytes_text(record['bytes'])}{dropped}"),
        (
            "speed",
            f"{speed_text(record['rows_per_s'], record['bytes_per_s'], 1)} with {counted_text(num_workers, 'worker')}",
        ),
        ("first batch", f"{opened} after open, {resumed} after resume"),
        ("waiting", f"{share_text(record['wait_fraction'], 1)} of the time: nothing is trained between batches"),
        ("memory", f"{peak} at most, {'within' if within else '[red]above[/red]'} the bound of {bound}"),
        ("checkpoint", f"{bytes_text(record['checkpoint_bytes'])}, after batch {_stop_text(record)}"),
        ("order digest", f"{record['order_digest_resumed']} stopped and resumed"),
        ("", f"{record['order_digest']} never stopped"),
        ("", "[green]✓ the same rows, in the same order, byte by byte[/green]" if record["equal"] else _parted(record)),
    ]
    console.print()
    _print_lines(console, lines, indent=3)


def _delivered_text(record: dict[str, Any]) -> str:
    return f"{counted_text(record['rows'], 'row')} in {counted_text(record['batches'], 'batch', 'batches')}"


def _stop_text(record: dict[str, Any]) -> str:
    return f"{count_text(record['stopped_after_batches'])} of {count_text(record['batches'])}"


def _parted(record: dict[str, Any]) -> str:
    what = "bytes" if record["order_digest"] == record["order_digest_resumed"] else "order"
    return f"[red]✗ the {what} differs: this is a bug in o41td[/red]"


def _print_lines(console: Console, lines: Iterable[tuple[str, str]], *, indent: int) -> None:
    for name, text in lines:
        console.print(f"{'':{indent}}[bold]{name:<14}[/bold]{text}", soft_wrap=True, highlight=False)
