"""What an input is worth to a model: how much a score drops when that input's rows are dealt out anew.

    score(forward(inputs), target)  −  score(forward(inputs with one input's rows permuted), target)

This is permutation importance (Breiman, Random Forests, 2001, section 10). Rows are permuted within a batch and never
replaced by zeros, so every value stays one that the input really has; what is lost is which row it belongs to. Nothing
is changed and so nothing has to be put back: the model sees a dict with one other array in it.

Two inputs that say the same share their worth in no particular way: permuting one leaves the model the other. Name them
together in `over` to ask for what both are worth.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from o41td.batch import Batch
from o41td.errors import ConfigError

__all__ = ["Contribution", "Finding", "contribution", "findings", "plot_shares", "shares"]

Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What inputs are worth.

    Attributes:
        score: The score with all inputs as they are: the mean over rows.
        drops: By input (of several permuted together, their names joined by " + ") how much the score dropped, float64
            [repeats]: one permutation each.
        num_rows: Rows that were looked at.
    """

    score: float
    drops: Mapping[str, NDArray[np.float64]]
    num_rows: int

    @property
    def worth(self) -> dict[str, float]:
        """By input the mean drop."""
        return {name: float(drops.mean()) for name, drops in self.drops.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that somebody should look at.

    Attributes:
        kind: `IGNORED_INPUT`: the model does as well without it. `SOLE_RELIANCE`: it does hardly anything else.
        name: The input.
        share: Its share.
    """

    kind: Literal["IGNORED_INPUT", "SOLE_RELIANCE"]
    name: str
    share: float

    def __str__(self) -> str:
        return f"{self.kind}({self.name})"


def contribution(
    forward: Callable[[dict[str, Any]], Any],
    batches: Iterable[Batch | tuple[Inputs, Any]],
    objective: Callable[[Any, Any], float],
    *,
    over: Sequence[str | Sequence[str]] | None = None,
    target: str | None = None,
    repeats: int = 3,
    seed: int = 0,
) -> Contribution:
    """Returns what each input is worth, in one pass over some batches.

    Args:
        forward: The model: a dict of inputs to predictions. It is called 1 + repeats · inputs times a batch.
        batches: A stream of ours, or any iterable of (inputs, target); arrays or tensors whose first axis is rows.
        objective: (predictions, target) to a score of a batch, higher is better. Return a loss with a minus.
        over: The inputs to ask about; a tuple of names is permuted together. All of the first batch's if left out.
        target: Where `batches` is a stream, the field that is the target, which is no input then.
        repeats: Permutations of each input.
        seed: Other permutations under another one.

    Raises:
        ConfigError: There are no batches, none of several rows, no such input, or no target.

    Blocks: for as long as the model takes.
    """
    if repeats < 1:
        raise ConfigError(f"`repeats` is {repeats}; at least one permutation is needed")
    asked: list[tuple[str, ...]] | None = None
    score, num_rows, permuted_rows = 0.0, 0, 0
    drops = np.zeros((0, repeats))
    for number, (inputs, truth) in enumerate(_pairs(batches, target)):
        if asked is None:
            asked = _asked(over, inputs)
            drops = np.zeros((len(asked), repeats))
        rows = len(inputs[asked[0][0]])
        baseline = float(objective(forward(dict(inputs)), truth))
        score += baseline * rows
        num_rows += rows
        permuted_rows += rows if rows > 1 else 0
        for repeat in range(repeats):
            for place, names in enumerate(asked):
                order = np.random.default_rng((seed, number, repeat, place)).permutation(rows)
                changed = {**inputs, **{name: _rows_of(inputs[name], order) for name in names}}
                drops[place, repeat] += (baseline - float(objective(forward(changed), truth))) * rows
    if asked is None:
        raise ConfigError("there are no batches to ask about")
    if not permuted_rows:
        raise ConfigError("every batch has one row, of which there is no other order; give larger batches")
    drops /= num_rows
    return Contribution(
        score=score / num_rows,
        drops={" + ".join(names): drops[place] for place, names in enumerate(asked)},
        num_rows=num_rows,
    )


def shares(of: Contribution) -> dict[str, float]:
    """Returns each input's share of all worth, 0 to 1; an input without which the model does better has none."""
    worth = {name: max(0.0, value) for name, value in of.worth.items()}
    total = math.fsum(worth.values())
    return {name: value / total if total else 0.0 for name, value in worth.items()}


def findings(of: Contribution, *, ignored_below: float = 0.01, sole_above: float = 0.9) -> list[Finding]:
    """Returns what should be looked at.

    Args:
        of: What inputs are worth.
        ignored_below: An input with a smaller share is ignored.
        sole_above: An input with a larger share is relied on alone, where there are others.
    """
    found = []
    for name, share in shares(of).items():
        if share < ignored_below:
            found.append(Finding(kind="IGNORED_INPUT", name=name, share=share))
        elif share > sole_above and len(of.drops) > 1:
            found.append(Finding(kind="SOLE_RELIANCE", name=name, share=share))
    return found


def plot_shares(of: Contribution, path: str | os.PathLike[str]) -> None:
    """Draws the shares as bars, largest first, into a PNG or any other file that matplotlib writes.

    Raises:
        ConfigError: matplotlib is not installed, or writes no such file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib", advice='Install it: pip install "o41td[plot]"') from error

    found = {finding.name: finding.kind for finding in findings(of)}
    ordered = sorted(shares(of).items(), key=lambda item: item[1])
    figure = Figure(figsize=(7, 1.2 + 0.4 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    colors = {"IGNORED_INPUT": "#7F7F7F", "SOLE_RELIANCE": "#D55E00"}
    bars = axes.barh(
        [name for name, _share in ordered],
        [100 * share for _name, share in ordered],
        color=[colors.get(found.get(name, ""), "#0072B2") for name, _share in ordered],
    )
    labels = [f"{100 * share:.1f} %  {found.get(name, '')}".rstrip() for name, share in ordered]
    axes.bar_label(bars, labels, padding=4)
    axes.set_xlim(0, 135)
    axes.set_xticks(range(0, 101, 25))
    axes.set_xlabel(f"share of what the inputs are worth (%), of {of.num_rows} rows")
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the picture cannot be written: {error}") from error


def _pairs(batches: Iterable[Batch | tuple[Inputs, Any]], target: str | None) -> Iterator[tuple[Inputs, Any]]:
    for batch in batches:
        if not isinstance(batch, Batch):
            yield batch
            continue
        arrays = batch.arrays()
        if target not in arrays:
            raise ConfigError(
                "" if target else "a stream's batches need `target`, the field that is to be predicted",
                problems=[("target", f"{target!r} is no field; there are {', '.join(arrays)}")] if target else (),
            )
        truth = arrays.pop(str(target))
        yield arrays, truth


def _asked(over: Sequence[str | Sequence[str]] | None, inputs: Inputs) -> list[tuple[str, ...]]:
    groups = [
        (entry,) if isinstance(entry, str) else tuple(entry) for entry in (list(inputs) if over is None else over)
    ]
    unknown = [name for group in groups for name in group if name not in inputs]
    if unknown or not all(groups) or not groups:
        told = f"{unknown[0]!r} is no input" if unknown else "it names no input"
        raise ConfigError(
            "these inputs cannot be asked about", problems=[("over", f"{told}; there are {', '.join(inputs)}")]
        )
    return groups


def _rows_of(values: Any, order: NDArray[np.int64]) -> Any:
    """The rows of an array or tensor in another order; of a list too."""
    if isinstance(values, list | tuple):
        return [values[row] for row in order.tolist()]
    return values[order]
