"""Storage for the child processes that look at a few rows for a command, and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from o41td.listing import is_local

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["objects_of"]


def objects_of(record: dict[str, Any], paths: Sequence[str]) -> RemoteObjects | None:
    """Returns what reads remote shards; None where all paths are local. Empties the environment as a worker does.

    Args:
        record: A StorageSettings record.
        paths: What will be read.
    """
    if all(map(is_local, paths)):
        return None
    from o41td.workers.object_store import StorageSettings
    from o41td.workers.remote_objects import RemoteObjects
    from o41td.workers.storage import Storage
    from o41td.workers.surroundings import forget_surroundings

    settings = StorageSettings.from_record(record)
    if not settings.ambient_credentials:
        forget_surroundings()
    return RemoteObjects(Storage(settings))
