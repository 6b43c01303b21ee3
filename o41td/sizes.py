"""Sizes in bytes as people write them: `2GB` is 2 · 10^9, `64MiB` is 64 · 2^20."""

import re

__all__ = ["human_bytes", "parse_size"]

_UNITS_TOLD = "; give B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _FACTORS[f"{_letter}b"] = 1000**_power
    _FACTORS[f"{_letter}ib"] = 1024**_power

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(value: object) -> int:
    """Reads a size.

    Args:
        value: An int (bytes) or text such as "2GB", "1.5 GiB", "64MiB", "4096". A letter alone ("2G") is refused,
            since half the world means 10^9 by it and half 2^30.

    Returns:
        Bytes, 1 or more.

    Raises:
        ValueError: It is no such size; the text says what is accepted.
    """
    if isinstance(value, str):
        size = _size_of(value)
    elif isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ValueError(f'{value!r} is not a size; give bytes as an integer, or text such as "2GB" or "64MiB"')
    else:
        size = int(value)  # type: ignore[call-overload]
    if not 1 <= size < 2**63:
        raise ValueError(f"{value!r} is not a size; give 1 byte or more")
    return size


def _size_of(text: str) -> int:
    """The bytes that a text names."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not a size; write it like "2GB", "64MiB" or "4096"')
    number, unit = match.groups()
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        letter = unit[0].upper()
        meant = f'; write "{number}{letter}B" (powers of 1000) or "{number}{letter}iB" (powers of 1024)'
        raise ValueError(
            f"{text!r} has an unknown unit{meant if len(unit) == 1 and letter in 'KMGTP' else _UNITS_TOLD}"
        )
    from fractions import Fraction  # here, since every process imports this module for its errors

    return int(Fraction(number) * factor)


def human_bytes(num_bytes: int) -> str:
    """Returns a size for people: `"512 B"`, `"1.5 KiB"`, `"64.0 MiB"`."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    value, units = num_bytes / 1024, iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = next(units)
    for larger in units:
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"
