"""Weights as exact integers, and how many rows of each source the first k chunks of 256 rows hold.

Chunk arithmetic. With integer shares a_i of D, t = 256 * k rows are divided in two steps:

1. Sources with a share below 1/256 ("tiny") form one item, which comes first; the others ("large") follow in listed
   order. With A_i the sum of the shares up to and with item i, item i has ``B_i - B_{i-1}`` rows where
   ``B_i = round(t * A_i / D)``. Rounding errors of both edges lie in (-1/2, 1/2], so a large source is less than one
   row from its exact share at the end of every chunk. From one chunk to the next it grows by more than
   256 * a_i / D - 2 >= -1 rows, hence never shrinks; the first item is one rounded line, hence never shrinks either.
2. The tiny item's rows go down a Huffman tree over the tiny sources: of n rows at a node, ``round(n * a_left / a)`` go
   left and the rest right; both are monotone in n. Each split adds at most half a row, and what comes from above is
   scaled by the child's portion. In a Huffman tree the weights on the way up grow at least as the Fibonacci numbers,
   so the error is at most half the sum of their reciprocals: 1.68 rows; one row if all tiny shares are equal.

Floors instead of roundings would do for step 1; rounding halves the error that tiny sources inherit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["CHUNK_ROWS", "MAX_SHARE_TOTAL", "ShareTable", "integer_shares"]

CHUNK_ROWS = 256
"""Rows of a lane over whose ends the mix is exact."""

MAX_SHARE_TOTAL = 1 << 30
"""Largest D: products of two numbers up to D, twice over, fit int64."""

_SMALL = 1 << 31
"""Fewer rows times 2 * MAX_SHARE_TOTAL, and as much again, fit int64."""

_MAX_DENOMINATOR = 10**6
_RATIONAL_ERROR = Fraction(1, 10**12)


def integer_shares(weights: Sequence[float]) -> tuple[npt.NDArray[np.int64], int]:
    """Return integer shares a, ``[sources] int64``, each at least 1, and their sum D <= 2**30.

    Shares are exact where the ratios of the weights are small rationals, so that equal ratios give equal shares:
    [1, 2], [10, 20], [1/3, 2/3] and [0.1, 0.2] all give ([1, 2], 3). Otherwise they are the nearest multiples of
    2**-30 (largest remainders first, the earlier source where remainders are equal).

    Raises:
        ValueError: If there is no weight, or one is not a finite positive number.
    """
    for index, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight {weight!r} of source {index} / must be a finite number above 0")
    if not weights:
        raise ValueError("no weights / a stage needs at least one source")
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact, Fraction(0))
    parts = [weight / total for weight in exact]
    simple = [part.limit_denominator(_MAX_DENOMINATOR) for part in parts]
    near = all(s > 0 and abs(s - part) < _RATIONAL_ERROR for s, part in zip(simple, parts, strict=True))
    if near and sum(simple, Fraction(0)) == 1:
        denominator = math.lcm(*(s.denominator for s in simple))
        if denominator <= MAX_SHARE_TOTAL:
            return np.array([int(s * denominator) for s in simple], dtype=np.int64), denominator
    return _quantised_shares(parts), MAX_SHARE_TOTAL


def _quantised_shares(parts: list[Fraction]) -> npt.NDArray[np.int64]:
    """Return the parts as multiples of 2**-30 by largest remainders, each at least 1."""
    scaled = [part * MAX_SHARE_TOTAL for part in parts]
    shares = [max(1, math.floor(value)) for value in scaled]
    by_remainder = sorted(range(len(parts)), key=lambda index: (shares[index] - scaled[index], index))
    missing = MAX_SHARE_TOTAL - sum(shares)
    for index in by_remainder[: max(0, missing)]:
        shares[index] += 1
    while missing < 0:  # many sources raised to 1: the largest ones give
        largest = max(range(len(parts)), key=lambda index: (shares[index], -index))
        given = min(-missing, shares[largest] - 1)
        shares[largest] -= given
        missing += given
    return np.array(shares, dtype=np.int64)


class _Parts:
    """Fractions ``part / whole``, of which rounded products are taken; part <= whole <= 2**30."""

    def __init__(self, part: npt.ArrayLike, whole: npt.ArrayLike) -> None:
        self._part = np.asarray(part, dtype=np.int64)
        self._whole = np.asarray(whole, dtype=np.int64)
        self._twice_part = 2 * self._part
        self._twice_whole = 2 * self._whole

    def of(self, number: npt.NDArray[np.int64], *, is_small: bool) -> npt.NDArray[np.int64]:
        """Return round(number * part / whole), halves up, without overflow; ``is_small``: all are below 2**31."""
        if is_small:
            product = number * self._twice_part
            product += self._whole
            product //= self._twice_whole
            return product
        quotient, rest = np.divmod(number, self._whole)
        result: npt.NDArray[np.int64] = (
            quotient * self._part + (rest * self._twice_part + self._whole) // self._twice_whole
        )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """The splits of one depth of the tree: node numbers, ``[splits] int64`` each, and what part goes left."""

    parent: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    left_part: _Parts


def _huffman_levels(weights: list[int]) -> tuple[int, list[_Level]]:
    """Return the number of nodes and the tree's levels from the root down; leaf i is node i, the root the last node.

    Two queues (van Leeuwen 1976): leaves by (weight, index), merged nodes as made; where equal, the leaf goes first.
    """
    node_weights = list(weights)
    leaves = sorted(range(len(weights)), key=lambda leaf: (weights[leaf], leaf))
    merged: list[int] = []
    next_leaf = next_merged = 0
    children: dict[int, tuple[int, int]] = {}
    for _ in range(len(weights) - 1):
        pair: list[int] = []
        for _ in range(2):
            leaf_ready, merged_ready = next_leaf < len(leaves), next_merged < len(merged)
            if leaf_ready and (
                not merged_ready or node_weights[leaves[next_leaf]] <= node_weights[merged[next_merged]]
            ):
                pair.append(leaves[next_leaf])
                next_leaf += 1
            else:
                pair.append(merged[next_merged])
                next_merged += 1
        merged.append(len(node_weights))
        children[len(node_weights)] = (pair[0], pair[1])
        node_weights.append(node_weights[pair[0]] + node_weights[pair[1]])
    levels: list[_Level] = []
    nodes = [len(node_weights) - 1]
    while nodes := [node for node in nodes if node in children]:
        left = [children[node][0] for node in nodes]
        right = [children[node][1] for node in nodes]
        levels.append(
            _Level(
                parent=np.array(nodes, dtype=np.int64),
                left=np.array(left, dtype=np.int64),
                right=np.array(right, dtype=np.int64),
                left_part=_Parts([node_weights[node] for node in left], [node_weights[node] for node in nodes]),
            )
        )
        nodes = left + right
    return len(node_weights), levels


class ShareTable:
    """Row counts of each of a fixed set of sources after any number of whole chunks."""

    def __init__(self, shares: npt.NDArray[np.int64]) -> None:
        """Prepare the table of ``shares``, ``[sources] int64``, each at least 1, their sum at most 2**30."""
        self.shares = shares
        self.total = int(shares.sum())
        assert 0 < self.total <= MAX_SHARE_TOTAL
        is_large = shares * CHUNK_ROWS >= self.total
        self._large = np.flatnonzero(is_large)
        self._tiny = np.flatnonzero(~is_large)
        items = shares[self._large]
        if len(self._tiny):
            items = np.concatenate([[shares[self._tiny].sum()], items])
            self._num_nodes, self._levels = _huffman_levels(shares[self._tiny].tolist())
        self._edges = _Parts(np.cumsum(items), self.total)

    def counts(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of each source in the first ``chunks[i]`` chunks: ``[len(chunks), sources] int64``."""
        rows = chunks * CHUNK_ROWS
        if len(self.shares) == 1:
            return rows[:, None]
        is_small = int(rows.max(initial=0)) < _SMALL
        items = self._edges.of(rows[:, None], is_small=is_small)
        items[:, 1:] -= items[:, :-1].copy()
        counts = np.empty((len(chunks), len(self.shares)), dtype=np.int64)
        if len(self._tiny):
            nodes = np.empty((len(chunks), self._num_nodes), dtype=np.int64)
            nodes[:, -1] = items[:, 0]
            for level in self._levels:
                rows_there = nodes[:, level.parent]
                rows_left = level.left_part.of(rows_there, is_small=is_small)
                nodes[:, level.left] = rows_left
                nodes[:, level.right] = rows_there - rows_left
            counts[:, self._tiny] = nodes[:, : len(self._tiny)]
            items = items[:, 1:]
        counts[:, self._large] = items
        return counts
