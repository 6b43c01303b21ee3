"""Objects in this process's memory, behind the storage thread: what needs no server and no other process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import fsspec

from o41td.workers.object_store import StorageSettings
from o41td.workers.remote_objects import RemoteObjects
from o41td.workers.storage import Storage


@contextlib.contextmanager
def memory_objects(contents: Mapping[str, bytes]) -> Iterator[RemoteObjects]:
    """Puts objects at `memory://` URIs of folders of their own, and takes them away again."""
    memory = fsspec.filesystem("memory")
    for uri, data in contents.items():
        memory.pipe_file(uri, data)
    storage = Storage(StorageSettings())
    try:
        yield RemoteObjects(storage)
    finally:
        storage.close()
        for uri in contents:
            memory.rm(uri)
