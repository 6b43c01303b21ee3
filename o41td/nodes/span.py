"""A `Span`: a position and a length in a source, all that a graph is handed."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from o41td.errors import ConfigError

__all__ = ["Span"]

_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [at, at + take) of a source.

    Attributes:
        at: The first row.
        take: How many rows.

    Raises:
        ConfigError: They are no whole numbers from 0 on.
    """

    at: int
    take: int

    def __post_init__(self) -> None:
        for name in ("at", "take"):
            value = getattr(self, name)
            try:
                number = operator.index(value)
            except TypeError:
                number = -1
            if isinstance(value, bool) or not 0 <= number <= _MAX:
                raise ConfigError(f"a span's `{name}` is {value!r}, not a whole number from 0 on")
            object.__setattr__(self, name, number)

    @property
    def stop(self) -> int:
        """One past the last row."""
        return self.at + self.take
