"""What a stream says of itself: on the logger `o41td`, without handlers of ours, and with the rank that says it.

Ranks of a job often share one log. Where there are several, each line begins with its rank; each record has it as
`rank` and `world_size` too, for whoever formats or filters records.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["StreamLog"]


class StreamLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of one rank's stream."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Rank `rank` of `world_size`."""
        super().__init__(logging.getLogger("o41td"), {"rank": rank, "world_size": world_size})
        self._prefix = f"rank {rank} of {world_size}: " if world_size > 1 else ""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        """As logging asks of adapters: the message with the rank, and the rank's fields."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"{self._prefix}{msg}", kwargs
