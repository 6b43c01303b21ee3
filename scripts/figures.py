"""Draws docs/images/steps.png and order.png, for docs/concepts.md and docs/order.md, out of the order itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from o41td.order import StageOrder

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
#  Okabe and Ito's palette: told apart by most colour-blind people.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")


def new_figure(width: float, height: float) -> Figure:
    """A figure that is drawn into a file."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_steps() -> None:
    """Eight row groups of eight rows on their way to batches of eight, in two lanes, shuffled within 24 rows."""
    rows, lanes, batch = 8, 2, 8
    units = np.full(8, rows)
    order = StageOrder(
        seed=3, stage_index=0, unit_rows=[units], weights=[1.0], batch_size=batch, buffer_rows=3 * rows, lanes=lanes
    )
    in_line = [order.locate(0, lane, np.arange(order.lane_rows[lane]))[0] for lane in range(lanes)]
    num_batches = order.num_batches or 0
    batches = [order.coordinates(number)[1] for number in range(num_batches)]
    figure = new_figure(10, 4.2)
    axes = figure.add_subplot()
    strips: list[tuple[str, list[npt.NDArray[np.int64]], list[str]]] = [
        ("as listed:\na row group a colour", [np.repeat(np.arange(8), rows)], []),
        ("line:\nrow groups permuted", [np.concatenate(in_line)], []),
        ("lanes:\nthe line, cut", in_line, [f"lane {lane}" for lane in range(lanes)]),
        (
            "rows shuffled\nwithin their lane",
            [np.concatenate(batches[lane::lanes]) for lane in range(lanes)],
            [f"lane {lane}" for lane in range(lanes)],
        ),
        ("global batches,\none lane after the other", batches, [f"{number}" for number in range(num_batches)]),
    ]
    for height, (_label, parts, names) in enumerate(reversed(strips)):
        place = 0.0
        for number, part in enumerate(parts):
            for unit in part.tolist():
                axes.barh(height, 1, left=place, height=0.5, color=COLOURS[unit], edgecolor="white", linewidth=0.4)
                place += 1
            if names:
                axes.text(place - len(part) / 2, height + 0.3, names[number], ha="center", va="bottom", fontsize=8)
            place += 0.6 if len(parts) > 1 else 0
    axes.set_yticks(range(len(strips)), [label for label, _parts, _names in reversed(strips)], fontsize=9)
    axes.set_xticks([])
    axes.set_ylim(-0.4, len(strips) - 0.35)
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    figure.savefig(IMAGES / "steps.png", dpi=100)


def draw_displacement(axes: Any) -> None:
    """How far rows move in a lane of 32 768 rows shuffled within 4 096."""
    buffer_rows, num_rows = 4096, 32768
    units = np.full(num_rows // 512, 512)
    order = StageOrder(
        seed=1, stage_index=0, unit_rows=[units], weights=[1.0], batch_size=32, buffer_rows=buffer_rows, lanes=1
    )
    came_from = order.open_walk(0, 0).take(num_rows)
    moved = np.arange(num_rows) - came_from
    axes.scatter(np.arange(num_rows), moved, s=0.5, color=COLOURS[0], alpha=0.35, linewidths=0, rasterized=True)
    for bound in (-buffer_rows, buffer_rows):
        axes.axhline(bound, color=COLOURS[5], linewidth=1)
    axes.set(
        xlabel="place in the stream (rows of a lane)",
        ylabel="rows moved",
        title=f"Shuffle within {buffer_rows:,} rows",
    )
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")


def draw_mix(axes: Any) -> None:
    """Three sources by weight 6, 3 and 1 until they run out: what each batch of 64 holds."""
    names, weights, sizes = ("web", "books", "code"), [6.0, 3.0, 1.0], (12_288, 9_216, 5_120)
    order = StageOrder(
        seed=1,
        stage_index=0,
        unit_rows=[np.full(size // 256, 256) for size in sizes],
        weights=weights,
        batch_size=64,
        buffer_rows=2048,
        lanes=1,
    )
    num_batches = order.num_batches or 0
    before = np.array([order.source_rows_before(number) for number in range(num_batches + 1)])
    per_batch = np.diff(before, axis=0) / 64
    per_chunk = np.diff(before[::16], axis=0) / 1024
    steps = np.arange(len(per_chunk)) * 16
    for source, name in enumerate(names):
        axes.scatter(np.arange(num_batches), per_batch[:, source], s=2, color=COLOURS[source], alpha=0.35, linewidths=0)
        axes.step(steps, per_chunk[:, source], where="post", color=COLOURS[source], label=name, linewidth=1.6)
    axes.set(
        xlabel="step",
        ylabel="share of rows",
        ylim=(-0.02, 1.02),
        title="Mix 6 : 3 : 1 (dots: a batch, lines: 1,024 rows)",
    )
    axes.legend(frameon=False, loc="upper left")


def main() -> None:
    """Draws all pictures."""
    draw_steps()
    figure = new_figure(10, 3.6)
    left, right = figure.subplots(1, 2)
    draw_displacement(left)
    draw_mix(right)
    figure.savefig(IMAGES / "order.png", dpi=100)


if __name__ == "__main__":
    main()
