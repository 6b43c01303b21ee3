"""The order digest: an additive 64-bit fingerprint of which row came where.

Each row adds ``hash(global batch, place in batch, source, shard, row in shard)``; sums wrap modulo 2**64. Addition
commutes, so the digest of a run is the same for any split of its batches over ranks: the sum over ranks.
"""

import numpy as np
import numpy.typing as npt

from o41td.order.hash import Purpose, hash_counters, mix_in_place, stream_key

__all__ = ["add_digests", "row_digests", "shard_words", "total_digest", "word_digests"]

_MASK = (1 << 64) - 1
_KEY = stream_key(0, Purpose.DIGEST)
_CHAIN = np.uint64(0xD1342543DE82EF95)
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
    words = shard_words(_word(source), _word(shard))
    return word_digests(_word(global_batch), _word(place), words, _word(row))


def shard_words(source: npt.NDArray[np.uint64] | np.uint64, shard: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return source and shard as one word each, by which `word_digests` knows a shard."""
    return source << _THIRTY_TWO | shard


def word_digests(
    global_batch: npt.NDArray[np.uint64],
    place: npt.NDArray[np.uint64],
    shard_word: npt.NDArray[np.uint64],
    row: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Return what `row_digests` does, of words of at least one dimension."""
    values = hash_counters(_KEY, global_batch) * _CHAIN
    values = mix_in_place(values + place)
    values *= _CHAIN
    values = mix_in_place(values + shard_word)
    values *= _CHAIN
    return mix_in_place(values + row)


def _word(numbers: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    return np.atleast_1d(np.asarray(numbers)).astype(np.uint64)


def total_digest(digests: npt.NDArray[np.uint64]) -> int:
    """Return the sum of row digests modulo 2**64."""
    return int(np.sum(digests, dtype=np.uint64))


def add_digests(*digests: int) -> int:
    """Return the digest of several parts of a run taken together: their sum modulo 2**64."""
    return sum(digests) & _MASK
