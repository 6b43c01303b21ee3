"""A path as a caller gives it, checked: an integer is a descriptor to `open`, which would read and then close it."""

from __future__ import annotations

import os

from o41td.errors import ConfigError

__all__ = ["path_text"]


def path_text(value: object, argument: str = "path", *, advice: str | None = None) -> str:
    """Returns a path as text.

    Args:
        value: What was given.
        argument: What it was given as.
        advice: What else could have been.

    Raises:
        ConfigError: It is neither text nor an `os.PathLike`, or no file can have that name.
    """
    text = os.fsdecode(value) if isinstance(value, str | os.PathLike) else ""
    if not text or "\0" in text:
        problem = f"{value!r:.80} is not a path; give a string or a pathlib.Path"
        raise ConfigError("this path does not make sense", problems=[(argument, problem)], advice=advice)
    return text
