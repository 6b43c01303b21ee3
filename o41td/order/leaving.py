"""When a row leaves the shuffle: a key for each position, and the order in which a stretch of rows leaves by itself.

The row at position p of an epoch has the key ``(p << 20) + ((h * R) >> 12)`` with h its 32-bit hash and R the buffer's
rows: p + R * u in fixed point with 20 fractional bits. Rows leave in key order, equal keys by p, never across an
epoch's end. So where a row stands among those of any stretch of the epoch follows from the stretch alone: whoever
decodes it can lay its rows down in the order in which they will be asked for.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from o41td.order.hash import hash_range

__all__ = ["FRACTION_BITS", "LeavingOrder", "delays", "leaving_keys", "place_in_epoch"]

FRACTION_BITS = 20
_FRACTION = np.uint64(FRACTION_BITS)
_HASH_SHIFT = np.uint64(32)
_SCALE_SHIFT = np.uint64(32 - FRACTION_BITS)


def delays(hashes: npt.NDArray[np.uint64], buffer_rows: int) -> npt.NDArray[np.uint64]:
    """Turn 64-bit hashes, in place, into R * u in fixed point."""
    hashes >>= _HASH_SHIFT
    hashes *= np.uint64(buffer_rows)
    hashes >>= _SCALE_SHIFT
    return hashes


def leaving_keys(epoch_key: int, first: int, after: int, buffer_rows: int) -> npt.NDArray[np.uint64]:
    """Return the keys of the positions [first, after) of an epoch, less ``first`` in fixed point."""
    keys = delays(hash_range(epoch_key, first, after), buffer_rows)
    keys += np.arange(after - first, dtype=np.uint64) << _FRACTION
    return keys


def place_in_epoch(position: int, *, rows_per_epoch: int, buffer_rows: int, epoch_key: int) -> int:
    """Return the place in leaving order of the row at line position ``position`` of an epoch; hashes O(R) rows."""
    if buffer_rows <= 1:
        return position
    first = max(0, position - buffer_rows + 1)
    after = min(rows_per_epoch, position + buffer_rows)
    keys = leaving_keys(epoch_key, first, after, buffer_rows)
    own = position - first
    earlier = int(np.count_nonzero(keys[:own] <= keys[own])) + int(np.count_nonzero(keys[own:] < keys[own]))
    return first + earlier


@dataclass(frozen=True, slots=True)
class LeavingOrder:
    """The order in which the rows from position ``first`` of an epoch on leave, looked at by themselves.

    Attributes:
        epoch_key: The shuffle's stream of the epoch.
        first: Position of the stretch's first row in the epoch.
        buffer_rows: R.
    """

    epoch_key: int
    first: int
    buffer_rows: int

    def rows(self, num_rows: int) -> npt.NDArray[np.int64]:
        """Return which of the stretch's ``num_rows`` rows leaves first, second, …: ``[num_rows] int64``."""
        keys = leaving_keys(self.epoch_key, self.first, self.first + num_rows, self.buffer_rows)
        row_bits = num_rows.bit_length()
        if (num_rows + self.buffer_rows).bit_length() + FRACTION_BITS + row_bits > 64:
            return np.argsort(keys, kind="stable")
        # Key and row in one word: sorting those is several times faster, and breaks ties by row.
        keys <<= np.uint64(row_bits)
        keys |= np.arange(num_rows, dtype=np.uint64)
        keys.sort()
        keys &= np.uint64((1 << row_bits) - 1)
        return keys.view(np.int64)
