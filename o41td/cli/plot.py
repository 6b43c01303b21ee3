"""A picture of the curriculum: each source's share of the rows over a rank's steps, and where sources start over.

A band for each source, of one colour in all stages. White ticks in a band are the beginnings of its epochs.
"""

from __future__ import annotations

import importlib.util
import io
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from o41td.cli.failure import UsageProblem
from o41td.cli.writable import check_writable
from o41td.curriculum import epoch_batches, shares_over
from o41td.errors import StorageError

if TYPE_CHECKING:
    from o41td.cursor import Run
    from o41td.outline import Outline

__all__ = ["check_plot", "plot_curriculum", "save_figure"]

#  Okabe and Ito's palette: told apart by most colour-blind people.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
_KINDS = (".png", ".pdf", ".svg")
_MOST_EPOCH_MARKS = 40
_MOST_IN_LEGEND = 16


def check_plot(path: Path) -> None:
    """Refuses, before anything is read, what cannot be drawn.

    Raises:
        UsageProblem: matplotlib is not installed, or the path names no picture in a folder that can be written to.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageProblem("--plot needs matplotlib, which is not installed: pip install 'o41td[plot]'")
    if path.suffix.lower() not in _KINDS or os.path.isdir(path) or not os.path.isdir(path.absolute().parent):
        raise UsageProblem(f"--plot {path}: this must name a {', '.join(_KINDS)} file in a folder that is there")
    check_writable("--plot", path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a picture, whole or not at all.

    Args:
        figure: matplotlib's.
        path: where it goes; its suffix says what it is.

    Raises:
        StorageError: It cannot be written; a picture that was there before is untouched.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(drawn.getvalue())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"the picture cannot be written: {error.strerror}", uri=path) from error


def plot_curriculum(outline: Outline, path: Path) -> None:
    """Draw the curriculum of a stream from its beginning.

    An infinite stage, which has no end, is drawn for one epoch of its longest source.

    Args:
        outline: the stream.
        path: where the picture goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    runs = outline.walk.runs()
    colours = _colours_of(outline)
    end_step = 0.0
    bounds = []
    for run in runs:
        num_batches = run.batches if run.batches or outline.has_end else _drawn_batches(outline, run.stage)
        first_step, end_step = (_step_at(outline, run.global_batch + part) for part in (0.0, num_batches))
        _draw_stage(axes, outline, run, num_batches, colours)
        bounds.append((first_step, end_step, _stage_label(outline, run.stage)))
    for first_step, stop_step, label in bounds:
        if first_step:
            axes.axvline(first_step, color="black", linewidth=1)
        if (stop_step - first_step) > 0.04 * end_step:
            axes.text((first_step + stop_step) / 2, 1.02, label, ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(0, end_step), ylim=(0, 1), xlabel=_step_label(outline), ylabel="share of rows")
    axes.yaxis.set_major_formatter(lambda share, _place: f"{100 * share:.0f} %")
    axes.xaxis.set_major_formatter(lambda step, _place: f"{step:,.0f}")
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    names = list(shown)[:_MOST_IN_LEGEND]
    axes.legend(
        [shown[name] for name in names],
        names,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        reverse=True,
    )
    save_figure(figure, path)


def _draw_stage(axes: Any, outline: Outline, run: Run, num_batches: int, colours: dict[str, str]) -> None:
    order = outline.lookup.order(run.stage)
    over = shares_over(order, num_batches)
    steps = [_step_at(outline, run.global_batch + edge) for edge in over.edges.tolist()]
    edges = np.repeat(steps, 2)[1:-1]
    bottom = np.zeros(len(edges))
    for index in outline.sources_of(run.stage):
        name = _short_name(index.name)
        top = bottom + np.repeat(over.shares[:, index.source], 2)
        axes.fill_between(edges, bottom, top, color=colours[name], linewidth=0, label=name)
        epoch = epoch_batches(order, index.source)
        if epoch is not None and num_batches / epoch <= _MOST_EPOCH_MARKS:
            for number in range(1, int(num_batches / epoch) + 1):
                step = _step_at(outline, run.global_batch + number * epoch)
                low, high = np.interp(step, edges, bottom), np.interp(step, edges, top)
                axes.vlines(step, low, high, color="white", linewidth=0.8)
        bottom = top


def _step_at(outline: Outline, batch: float) -> float:
    """The step at which ranks come to a global batch; excluded ones take none."""
    return (batch - outline.job.excluded.count(0, int(batch))) / outline.world_size


def _drawn_batches(outline: Outline, stage: int) -> int:
    order = outline.lookup.order(stage)
    epochs = [epoch_batches(order, source) or 0 for source in range(order.num_sources)]
    return max(1, round(max(epochs)))


def _colours_of(outline: Outline) -> dict[str, str]:
    names = dict.fromkeys(_short_name(index.name) for stage in outline.lookup.sources for index in stage)
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}


def _short_name(name: str) -> str:
    return name.partition("/")[2] or name


def _stage_label(outline: Outline, stage: int) -> str:
    job = outline.job.stages[stage]
    return f"{job.name} (endless)" if job.infinite else job.name


def _step_label(outline: Outline) -> str:
    return "step" if outline.world_size == 1 else f"step of each of {outline.world_size} ranks"
