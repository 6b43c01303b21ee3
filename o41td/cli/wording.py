"""Numbers as people read them. Pure: text in, text out."""

from __future__ import annotations

import re

from o41td.counted import count_text, counted_text
from o41td.percentages import percent_text

__all__ = [
    "bytes_text",
    "count_text",
    "counted_text",
    "digest_text",
    "duration_text",
    "printable",
    "rate_text",
    "share_text",
    "speed_text",
]


def bytes_text(num_bytes: float) -> str:
    """A size in decimal units: "512 B", "2.1 KB", "203 MB", "1.4 GB"."""
    value, unit = float(num_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "B" and abs(value) < 9.95 else f"{value:.0f} {unit}"


def speed_text(rows: float, num_bytes: float, seconds: float) -> str:
    """Rows and bytes a second: "61,204 rows/s, 126 MB/s"."""
    if seconds <= 0:
        return "too short to say"
    return f"{count_text(rows / seconds)} rows/s, {bytes_text(num_bytes / seconds)}/s"


def share_text(part: float, whole: float) -> str:
    """A part of a whole: "4 %"; "<1 %" is not nothing."""
    if whole <= 0:
        return "–"
    return percent_text(part / whole)


def duration_text(seconds: float) -> str:
    """A time: "0.41 s", "12.3 s", "2 min 03 s", "1 h 05 min"."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def digest_text(digest: int) -> str:
    """A 64-bit order digest as 16 hexadecimal figures."""
    return f"{digest:016x}"


def printable(text: str) -> str:
    """A text with its control characters as escapes, but for ends of lines and tabs.

    Names of files, values of rows and what is said of a damaged file may hold any, and a terminal would obey them.
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def rate_text(rate: float) -> str:
    """Returns a number a second: "0.4", "9.9", "1,204"."""
    return f"{rate:.1f}" if rate < 9.95 else count_text(rate)
