"""What a worker has asked of object stores: counted on its storage thread, told to the coordinator now and then.

What is asked for a block is counted for that block as well, whichever thread asks: tasks of the storage thread inherit
the context of who began them.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["FETCHING", "BlockFigures", "StorageFigures"]


@dataclass(slots=True)
class BlockFigures:
    """Counts of one block: requests, those that followed one that failed, bytes asked for, bytes that came."""

    requests: int = 0
    retries: int = 0
    requested_bytes: int = 0
    received_bytes: int = 0


FETCHING: ContextVar[BlockFigures | None] = ContextVar("FETCHING", default=None)
"""The figures of the block that something is fetched for."""


@dataclass(slots=True)
class StorageFigures:
    """Counts since the worker's start.

    Attributes:
        requests: Requests, each attempt one.
        retries: Those that followed one that failed.
        renewals: How often connections were made anew for new credentials.
        requested_bytes: Bytes that were asked for.
        received_bytes: Bytes that came.
        in_flight: Requests that are under way.
        last_fault: The last thing that went wrong: the object, and what its store said.
    """

    requests: int = 0
    retries: int = 0
    renewals: int = 0
    requested_bytes: int = 0
    received_bytes: int = 0
    in_flight: int = 0
    last_fault: str | None = None
