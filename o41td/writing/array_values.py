"""NumPy arrays as values that Arrow takes for lists of the same dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["list_value_of"]


def list_value_of(array: NDArray[Any]) -> Any:
    """Returns an array of one axis, little-endian; of more axes, lists of such; of none, its value."""
    if array.ndim == 0:
        return array[()]
    if array.ndim > 1:
        return [list_value_of(part) for part in array]
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
