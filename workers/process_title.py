"""What a process list shows for a forked process: what it is, not what it was forked from."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

__all__ = ["show_arguments"]

_ARG_START, _ARG_END = 48 - 3, 49 - 3  # fields of proc_pid_stat(5), counted behind the name's bracket


def show_arguments(after: str, arguments: Sequence[str]) -> None:
    """Has `ps` and /proc show `arguments` in the place of those from this process's argument `after` on.

    They are written where the kernel has put the old ones, the only place it reads. Does nothing where they would not
    fit, or where that place is not told.
    """
    with open("/proc/self/cmdline", "rb") as file:
        shown = file.read()
    with open("/proc/self/stat", "rb") as file:
        numbers = file.read().rpartition(b")")[2].split()
    start, end = int(numbers[_ARG_START]), int(numbers[_ARG_END])
    begin = shown.find(b"\0%s\0" % after.encode()) + 1
    words = b"".join(word.encode() + b"\0" for word in arguments)
    room = len(shown) - begin
    if begin == 0 or start == 0 or end - start != len(shown) or len(words) > room:
        return
    if ctypes.string_at(start, len(shown)) == shown:
        ctypes.memmove(start + begin, words.ljust(room, b"\0"), room)
