"""Which batches and lanes a rank serves: arithmetic on a position, a rank and a world size."""

import math

__all__ = ["lanes_of_rank", "rank_batches"]


def lanes_of_rank(position: int, rank: int, world_size: int, lanes: int) -> tuple[int, ...]:
    """Return the lanes, ascending, of which ``rank`` takes batches when a run goes on from ``position``.

    The rank takes batches position + rank + k * world_size; their lanes are the numbers below ``lanes`` that are
    congruent to position + rank modulo gcd(world_size, lanes).
    """
    step = math.gcd(world_size, lanes)
    return tuple(range((position + rank) % step, lanes, step))


def rank_batches(position: int, rank: int, world_size: int, *, start_round: int, stop_round: int) -> range:
    """Return the batch numbers of ``rank`` in the rounds [start_round, stop_round) counted from ``position``."""
    first = position + rank
    return range(first + start_round * world_size, first + stop_round * world_size, world_size)
