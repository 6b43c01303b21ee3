"""Counter-based 64-bit hashing: every random number of the order is a pure function of what it is for.

The mixer is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014):
a bijection of 64-bit words. A stream is named by a key (``stream_key``); its i-th number is
``mix64(key + GOLDEN * (i + 1))``, the i-th output of a splitmix64 generator seeded with the key. Only integer
arithmetic modulo 2**64 is used, so every platform and every NumPy gives the same numbers. The tests freeze them:
a change here is a change of order and bumps ``ORDER_VERSION``.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from o41td.order_version import ORDER_VERSION

__all__ = [
    "ORDER_VERSION",
    "Purpose",
    "absorb",
    "absorb_each",
    "hash_counters",
    "hash_grid",
    "hash_range",
    "mix64",
    "mix_in_place",
    "stream_key",
]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_CHAIN = 0xD1342543DE82EF95

_GOLDEN_U64 = np.uint64(_GOLDEN)
_FIRST_U64 = np.uint64(_FIRST)
_SECOND_U64 = np.uint64(_SECOND)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)


class Purpose(IntEnum):
    """What a stream of random numbers is for; the first part of its key, so that no two uses share numbers."""

    UNIT_ORDER = 1
    SHUFFLE = 2
    MIX = 3
    DIGEST = 4
    STAND_IN = 5


def mix64(value: int) -> int:
    """Return splitmix64's finaliser of ``value`` modulo 2**64."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def absorb(key: int, part: int) -> int:
    """Return the key of the stream ``part`` below ``key``: a bijection in either argument."""
    return mix64(key * _CHAIN + mix64(part + _GOLDEN))


@lru_cache(maxsize=1024)
def stream_key(seed: int, *parts: int) -> int:
    """Return the key of the stream named by ``seed`` and ``parts``, each in [0, 2**64); their order matters."""
    key = mix64(seed + _GOLDEN)
    for part in parts:
        key = absorb(key, part)
    return key


def mix_in_place(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Replace each of ``values`` (at least one dimension) by its ``mix64`` and return the same array."""
    values ^= values >> _SHIFT_30
    values *= _FIRST_U64
    values ^= values >> _SHIFT_27
    values *= _SECOND_U64
    values ^= values >> _SHIFT_31
    return values


def absorb_each(key: int, parts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return ``absorb(key, part)`` for each part: keys ``[len(parts)] uint64``."""
    keys = mix_in_place(parts + _GOLDEN_U64)
    keys += np.uint64((key * _CHAIN) & _MASK)
    return mix_in_place(keys)


def hash_counters(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the numbers of stream ``key`` at ``counters`` (uint64, at least one dimension), uniform in [0, 2**64)."""
    values = counters * _GOLDEN_U64
    values += np.uint64((key + _GOLDEN) & _MASK)
    return mix_in_place(values)


def hash_range(key: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Return the numbers of stream ``key`` at the counters [start, stop)."""
    values = np.arange(start, stop, dtype=np.uint64)
    values *= _GOLDEN_U64
    values += np.uint64((key + _GOLDEN) & _MASK)
    return mix_in_place(values)


def hash_grid(keys: npt.NDArray[np.uint64], num_counters: int) -> npt.NDArray[np.uint64]:
    """Return the first ``num_counters`` numbers of each of ``keys``: ``[len(keys), num_counters] uint64``."""
    values = np.arange(1, num_counters + 1, dtype=np.uint64) * _GOLDEN_U64 + keys[:, None]
    return mix_in_place(values)
