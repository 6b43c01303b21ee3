"""`connect`: the stream of one rank from a loader that is served on this host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import SupportsFloat

from o41td.config import BatchStreamConfig
from o41td.coordinator_process import Progress
from o41td.errors import ConfigError
from o41td.joining import JoinedLoader, join_loader, rejoin_loader
from o41td.rank_info import ANY_WORLD, check_rank
from o41td.stream import BatchStream, StreamStart

__all__ = ["connect"]


def connect(name: str, rank: int = 0, *, wait_s: float = 60.0, progress: Progress | None = None) -> BatchStream:
    """Opens the stream of `rank` with the loader that `o41td serve` runs under `name`, of this user, on this host.

    It is a stream like any other: it has its own cursor, and its batches belong to this process. `load_state_dict` goes
    on from a checkpoint. When the stream is closed, or this process ends, the rank is free for another.

    Args:
        name: As given to `o41td serve`.
        rank: One of those that are served.
        wait_s: Where the server ends, how long to wait for one of that name to come back; the stream goes on with it.
        progress: As for `open_batch_stream`, while the server is still opening.

    Blocks: until the server is open.

    Raises:
        ConnectError: No loader is served under that name, or the rank is taken, or not among those served.
        O41Error: The loader cannot be opened.
    """
    rank, _ = check_rank(rank, ANY_WORLD)
    if not _is_wait(wait_s):
        raise ConfigError("this wait does not make sense", problems=[("wait_s", f"{wait_s!r} is no number of seconds")])
    loader = join_loader(str(name), rank, progress=progress)

    def rejoin(is_given_up: Callable[[], bool]) -> JoinedLoader:
        return rejoin_loader(loader, rank, wait_s=wait_s, is_given_up=is_given_up)

    return BatchStream(
        config=BatchStreamConfig.from_document(loader.config),
        job=loader.job,
        loader=loader,
        restart=rejoin,
        rank=rank,
        world_size=loader.world_size,
        start=StreamStart(),
        is_fresh=True,
    )


def _is_wait(value: object) -> bool:
    return isinstance(value, SupportsFloat) and 0 <= float(value) < math.inf
