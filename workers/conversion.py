"""Numbers of one dtype into another by the projection's rules: never a wrap, a lost fraction or a silent infinity.

    int  → int      must be in range                     bool → number   0 or 1
    int  → float    must be exact, unless exact=False     any  → bool     must be 0 or 1
    float → int     must be whole and in range            float → float   rounds to nearest; a finite value stays finite

A block of values is first tested as a whole (`all_fit`: a minimum and a maximum, or nothing at all where the types
cannot clash). Only if that fails is each value looked at (`misfits`), so clean data pay one pass at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.workers.slot_rows import SlotRows

__all__ = ["Conversion"]

_MANTISSA_BITS = {2: 11, 4: 24, 8: 53}


class Conversion:
    """Checks and converts values of dtype `source` into dtype `target`.

    Args:
        source: The dtype of the values.
        target: One of the five output dtypes.
        exact: Whether an int that a float target cannot hold exactly is refused.
        flags: The values are bytes that stand for bools, so they must be 0 or 1 whatever the target is.
    """

    __slots__ = ("_kinds", "exact", "flags", "is_copy", "never_misfits", "rounds", "source", "target")

    def __init__(
        self, source: np.dtype[Any], target: np.dtype[Any], *, exact: bool = True, flags: bool = False
    ) -> None:
        self.source = source
        self.target = target
        self.exact = exact
        self.flags = flags
        self._kinds = ("i" if source.kind == "u" else source.kind) + ("b" if flags else target.kind)
        self.rounds = self._kinds == "if"
        """Whether what does not fit could be rounded."""
        self.is_copy = source == target
        """Whether values are their own conversion, byte for byte."""
        self.never_misfits = self._never_misfits()
        """Whether the types alone say that every value fits."""

    def all_fit(self, values: NDArray[Any]) -> bool:
        """Whether every value surely fits: a cheap test that may say no of a block whose values all do."""
        if self.never_misfits or values.size == 0:
            return True
        if self._kinds in ("fb", "fi"):
            return not self.misfits(values).any()
        low, high = values.min(), values.max()
        match self._kinds:
            case "ib":
                return bool(low >= 0 and high <= 1)
            case "ii":
                limits = np.iinfo(self.target)
                return int(low) >= limits.min and int(high) <= limits.max
            case "if":
                bound = 1 << _MANTISSA_BITS[self.target.itemsize]
                return int(low) >= -bound and int(high) <= bound
            case _:  # a float to a narrower float; false for NaN and infinity too, which `misfits` then lets pass
                limit = np.finfo(self.target).max
                return bool(low >= -limit and high <= limit)

    def _never_misfits(self) -> bool:
        source, target = self.source, self.target
        match self._kinds:
            case "ii":
                return bool(np.can_cast(source, target, "safe"))
            case "if":
                bits = source.itemsize * 8 - (source.kind == "i")
                return not self.exact or bits <= _MANTISSA_BITS[target.itemsize]
            case "ff":
                return source.itemsize <= target.itemsize
            case "bb" | "bi" | "bf":
                return True
            case _:
                return False

    def misfits(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which values do not fit: [n] bool."""
        misfit: NDArray[np.bool_]
        if self.never_misfits:
            return np.zeros(values.shape, np.bool_)
        match self._kinds:
            case "ib" | "fb":
                misfit = (values != 0) & (values != 1)
            case "ii":
                limits = np.iinfo(self.target)
                high = values > limits.max
                misfit = high if values.dtype.kind == "u" else high | (values < limits.min)
            case "fi":
                wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
                limits = np.iinfo(self.target)
                bound = wide.dtype.type(2.0 ** (limits.bits - 1))
                misfit = (np.trunc(wide) != wide) | ~((wide >= -bound) & (wide < bound))
            case "if":
                rounded = values.astype(self.target).astype(np.float64)
                inside = rounded < 2.0 ** (values.dtype.itemsize * 8 - (values.dtype.kind == "i"))
                misfit = ~inside | (np.where(inside, rounded, 0.0).astype(values.dtype) != values)
            case _:
                misfit = np.isinf(self.cast(values)) & ~np.isinf(values)
        return misfit

    def cast(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values in the target dtype; whatever comes out where they do not fit."""
        with np.errstate(all="ignore"):
            return values.astype(self.target, copy=False)

    def cast_into(self, values: NDArray[Any], rows: SlotRows) -> None:
        """Writes the values in the target dtype into as many rows of a slot, without a copy between."""
        if self.is_copy:
            rows.put(values)
            return
        with np.errstate(all="ignore"):
            rows.put(values)

    def refusal_of(self, value: object) -> str:
        """Why one value that does not fit was refused."""
        target = (
            "bool" if self.flags else f"{ {'i': 'i', 'f': 'f'}.get(self.target.kind, '') }{self.target.itemsize * 8}"
        )
        match self._kinds:
            case "ib" | "fb":
                return f"the value {value!r} is neither 0 nor 1, and a bool holds nothing else"
            case "ii":
                limits = np.iinfo(self.target)
                return f"the value {value!r} does not fit {target}, which holds {limits.min} to {limits.max}"
            case "fi":
                limits = np.iinfo(self.target)
                return f"the value {value!r} is no whole number that {target} holds ({limits.min} to {limits.max})"
            case "if":
                return f"the value {value!r} cannot be held exactly by {target}"
            case _:
                return f"the value {value!r} is too large for {target}, which holds up to {np.finfo(self.target).max}"
