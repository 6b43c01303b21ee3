"""The order digest: an additive 64-bit fingerprint of which row came where.

Each row adds the hash of (global batch, place in batch, source, shard, row in shard); sums wrap modulo 2**64. Addition
commutes, so the digest of a run is the same for any split of its batches over ranks: the sum over ranks.

What is hashed is one 64-bit word, of which each part of the tuple gives a share: a random one for the batch and for the
shard, a multiple of an odd constant for the place and for the row. ``mix64`` of their sum, a bijection that is far from
linear, is the row's digest. So a row costs one hash where a chain of hashes would cost one for each part, and whoever
goes along the rows of a shard or the places of a batch adds as he goes. Two rows of a batch meet in one word by chance
alone, one in 2**64: within a shard not at all, as no difference of places below 2**21 cancels one of rows below 2**42
(the tests go through all of them).
"""

import numpy as np
import numpy.typing as npt

from o41td.order.hash import Purpose, hash_counters, mix_in_place, stream_key

__all__ = [
    "add_digests",
    "batch_words",
    "moved_words",
    "place_words",
    "row_digests",
    "shard_words",
    "total_digest",
    "word_digests",
]

_MASK = (1 << 64) - 1
_BATCH_KEY = stream_key(0, Purpose.DIGEST, 0)
_SHARD_KEY = stream_key(0, Purpose.DIGEST, 1)
_PLACE_STEP = np.uint64(0xD1342543DE82EF95)
_ROW_STEP = np.uint64(0x9E3779B97F4A7C15)
_THIRTY_TWO = np.uint64(32)


def row_digests(
    global_batch: npt.ArrayLike,
    place: npt.ArrayLike,
    source: npt.ArrayLike,
    shard: npt.ArrayLike,
    row: npt.ArrayLike,
) -> npt.NDArray[np.uint64]:
    """Return one digest per row, ``[rows] uint64``, of rows of any number of batches at once.

    Args:
        global_batch: Number of each row's batch in the order all ranks share.
        place: Place of each row in its batch.
        source: Index of its source in the stage, below 2**32.
        shard: Index of its shard in the source, below 2**32.
        row: Row in the shard.

    All arguments are non-negative integers and broadcast against each other.
    """
    words = moved_words(shard_words(_numbers(source), _numbers(shard)), _numbers(row))
    return word_digests(batch_words(_numbers(global_batch)), place_words(_numbers(place)), words)


def word_digests(
    batch_words: npt.NDArray[np.uint64], place_words: npt.NDArray[np.uint64], row_words: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return what ``row_digests`` does, of the words that batch, place and row have; they broadcast."""
    return mix_in_place(row_words + place_words + batch_words)


def batch_words(global_batch: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the word of each batch."""
    return hash_counters(_BATCH_KEY, global_batch)


def place_words(place: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the word of each place in a batch."""
    return place * _PLACE_STEP


def shard_words(source: npt.NDArray[np.uint64] | np.uint64, shard: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the word of each shard, which is that of its first row."""
    return hash_counters(_SHARD_KEY, source << _THIRTY_TWO | shard)


def moved_words(words: npt.NDArray[np.uint64] | np.uint64, num_rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the words of the rows that lie ``num_rows`` (modulo 2**64) behind those that have ``words``."""
    moved: npt.NDArray[np.uint64] = num_rows * _ROW_STEP
    moved += words
    return moved


def _numbers(numbers: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def total_digest(digests: npt.NDArray[np.uint64]) -> int:
    """Return the sum of row digests modulo 2**64."""
    return int(np.sum(digests, dtype=np.uint64))


def add_digests(*digests: int) -> int:
    """Return the digest of several parts of a run taken together: their sum modulo 2**64."""
    return sum(digests) & _MASK
