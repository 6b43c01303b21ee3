"""From a shard's name and a row's number to where a job's sources have it. Arithmetic on indexes; nothing is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from o41td.errors import ConfigError
from o41td.index import SourceIndex

__all__ = ["places_of_row", "shard_named", "unit_of"]

_MAX_SHARDS_TOLD = 5


def shard_named(sources: Sequence[Sequence[SourceIndex]], shard: str) -> str:
    """Returns the path or URI of the shard that is meant.

    Args:
        sources: Those of each stage.
        shard: Its path or URI, or an end of it that only one shard has.

    Raises:
        ConfigError: No source has such a shard, or several are meant.
    """
    uris = {entry.uri for stage in sources for index in stage for entry in index.shards}
    meant = {shard, os.path.abspath(shard)} & uris
    if not meant:
        tail = shard if shard.startswith("/") else f"/{shard}"
        meant = {uri for uri in uris if uri.endswith(tail)}
    if len(meant) != 1:
        told = ", ".join(sorted(meant or uris)[:_MAX_SHARDS_TOLD])
        more = f" and {len(meant or uris) - _MAX_SHARDS_TOLD} more" if len(meant or uris) > _MAX_SHARDS_TOLD else ""
        problem = f"{shard} may mean {told}{more}" if meant else f"{shard} is none of {told}{more}"
        raise ConfigError("this does not name one shard", problems=[("shard", problem)])
    (uri,) = meant
    return uri


def places_of_row(
    sources: Sequence[Sequence[SourceIndex]], uri: str, row: int
) -> Iterator[tuple[SourceIndex, int, int]]:
    """Yields each source that has a row of a shard, with the row's unit there and its number in the unit.

    Raises:
        ConfigError: The shard has no such row.
    """
    for index in (index for stage in sources for index in stage):
        for number, entry in enumerate(index.shards):
            if entry.uri != uri:
                continue
            if not 0 <= row < entry.rows:
                problem = f"{row} is none of the {entry.rows} rows of {entry.uri}, counted from 0"
                raise ConfigError("there is no such row", problems=[("row", problem)])
            unit = unit_of(index, number, row)
            yield index, unit, row - int(index.unit_first_row[unit])


def unit_of(index: SourceIndex, shard: int, row: int) -> int:
    """Returns the unit of a source that holds a row of a shard."""
    first, last = index.shard_first_unit[shard : shard + 2].tolist()
    # An empty unit begins where the next one does, and so is never the last that begins at or before a row.
    found: int = first + int(np.searchsorted(index.unit_first_row[first:last], row, side="right")) - 1
    return found
