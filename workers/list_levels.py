"""The levels of a Parquet page of lists: where its lists begin, and whether all is there.

Levels are runs: a header, whose last bit tells values of one kind (the value follows) from groups of eight packed as
bits. Of one level of lists, a repetition level is a bit, 0 where a list begins. Of lists of hundreds of values nearly
all of it is one run a list, so it costs a few steps of Python a list to walk them, where Arrow makes two numbers of
each value and looks at them one by one. Lists of one length, if that is a multiple of eight, are the same bytes again
and again, which are compared at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from o41td.workers.thrift_compact import read_varint

__all__ = ["are_all", "list_starts"]

_ZEROS_OF = tuple(tuple(bit for bit in range(8) if not byte >> bit & 1) for byte in range(256))
_LONGEST_VARINT = 5
_MOST_SINGLES = 1 << 16
"""Lists of one value in a run: a few bytes could ask for any number of them, and for the memory to name them."""


def list_starts(levels: memoryview, num_values: int) -> NDArray[np.int64]:
    """Returns at which of a page's values lists begin: those whose repetition level, of one bit, is 0; ascending.

    Raises:
        ValueError: The levels are not those of so many values.
    """
    found, at, value = _alike(levels, num_values)
    starts: list[int] = []
    of_groups: list[NDArray[np.int64]] = [found]  # what is told by the many
    try:
        while value < num_values:
            head = levels[at]
            at += 1
            if head >= 0x80:
                second = levels[at]
                if second < 0x80:  # a list of up to 8 191 values
                    head = head & 0x7F | second << 7
                    at += 1
                else:
                    head, at = read_varint(levels, at - 1, longest=_LONGEST_VARINT)
            count = head >> 1
            if not count:
                raise ValueError("a run of nothing")
            if not head & 1:
                bit = levels[at]
                at += 1
                if bit == 0:
                    if count > _MOST_SINGLES:
                        raise ValueError("lists of one value each")
                    of_groups.append(np.arange(value, min(value + count, num_values)))
                elif bit != 1:
                    raise ValueError(f"a level of {bit}, where lists lie in no others")
                value += count
            elif count == 1:
                byte = levels[at]
                at += 1
                if byte == 0xFE:
                    starts.append(value)
                else:
                    starts.extend([value + bit for bit in _ZEROS_OF[byte]])
                value += 8
            else:
                packed = levels[at : at + count]
                if len(packed) < count:
                    raise ValueError("groups end behind the page")
                at += count
                bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
                of_groups.append(np.flatnonzero(bits == 0) + value)
                value += 8 * count
    except IndexError:
        raise ValueError("levels end behind the page") from None
    found = np.sort(np.concatenate([np.array(starts, np.int64), *of_groups]))
    return found[: np.searchsorted(found, num_values)]  # the last group is filled up with zeros


def _alike(levels: memoryview, num_values: int) -> tuple[NDArray[np.int64], int, int]:
    """Returns the starts of the lists with which a page begins, where all are of one length; and what lies behind them.

    That is the place in the levels and the number of the value.
    """
    nothing = np.empty(0, np.int64), 0, 0
    if bytes(levels[:2]) != b"\x03\xfe":  # one group: a list begins, and goes on
        return nothing
    try:
        head, at = read_varint(levels, 2, longest=_LONGEST_VARINT)
        if head & 1 or not head or levels[at] != 1:
            return nothing
    except (IndexError, ValueError):
        return nothing
    size, length = at + 1, 8 + (head >> 1)
    count = num_values // length
    if size * count > len(levels) or levels[: size * count] != bytes(levels[:size]) * count:
        return nothing
    return length * np.arange(count), size * count, length * count


def are_all(levels: memoryview, num_values: int, level: int) -> bool:
    """Whether runs of one value say of all of a page's values that their definition level is `level`, of two bits.

    Raises:
        ValueError: The levels are not those of so many values.
    """
    at = value = 0
    try:
        while value < num_values:
            head, at = read_varint(levels, at, longest=_LONGEST_VARINT)
            if head & 1 or levels[at] != level:
                return False
            if not head:
                raise ValueError("a run of nothing")
            value += head >> 1
            at += 1
    except IndexError:
        raise ValueError("levels end behind the page") from None
    return True
