"""Parts of a whole as people read them: one spelling for commands, verdicts and probes. Pure."""

from __future__ import annotations

__all__ = ["percent_text"]


def percent_text(part: float, decimals: int = 0) -> str:
    """A part, 0 to 1, in percent: "34 %", "0.25 %"; "<1 %" is not nothing."""
    least = 10.0**-decimals
    if 0 < 100 * part < least / 2:
        return f"<{least:.{decimals}f} %"
    return f"{100 * part:.{decimals}f} %"
