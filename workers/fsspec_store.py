"""Objects of any other protocol that fsspec knows, through the file system that is installed for it.

Such a file system neither takes a condition nor tells the object's tag with an answer, so an object is looked at again
when a worker opens it, not with each request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem

from o41td.workers.object_store import ObjectInfo, ObjectStore, StorageSettings
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["FsspecStore"]

_TAGS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "blob_id",
    "checksum",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)
_ANONYMOUS: dict[str, dict[str, Any]] = {
    "gs": {"token": "anon"},
    "gcs": {"token": "anon"},
    "hf": {"token": False},
    "abfs": {"anon": True},
    "az": {"anon": True},
}
"""What keeps a library from looking for credentials by itself."""
_WITHOUT_CREDENTIALS = ("memory",)


class FsspecStore(ObjectStore):
    """Objects of one protocol."""

    def __init__(self, scheme: str, settings: StorageSettings) -> None:
        """Makes the file system.

        Raises:
            StoreFault: There is none of that protocol, or its library is not installed.
        """
        if not (settings.ambient_credentials or scheme in _ANONYMOUS or scheme in _WITHOUT_CREDENTIALS):
            why = f"{scheme}:// takes its credentials from its surroundings, which `ambient_credentials` allows"
            raise StoreFault(FaultKind.REFUSED, why)
        options = {} if settings.ambient_credentials else _ANONYMOUS.get(scheme, {})
        try:
            kind = fsspec.get_filesystem_class(scheme)
            if issubclass(kind, AsyncFileSystem):
                options = {**options, "asynchronous": True, "loop": asyncio.get_running_loop()}
            self._filesystem = kind(**options, skip_instance_cache=True, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreFault(FaultKind.REFUSED, f"{scheme}:// cannot be used: {error}") from error
        self._is_async = isinstance(self._filesystem, AsyncFileSystem)

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        found = await self._called("info", self._path_of(uri))
        if found.get("type", "file") != "file":
            raise StoreFault(FaultKind.MISSING, f"this is a {found['type']}")
        return _info_of(found)

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:  # noqa: ARG002 - nothing to compare with
        """Reads what a range of an object lacks."""
        wanted = into.rest
        data = await self._called("cat_file", self._path_of(uri), start=wanted.start, end=wanted.stop)
        into.take(data[: wanted.num_bytes])

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:  # noqa: ARG002
        """Lists the objects whose URI begins so; these file systems know no other way than all of them."""
        folder = prefix_uri[: prefix_uri.rfind("/") + 1]
        found = await self._called("find", self._path_of(folder), detail=True)
        root = self._path_of(folder).rstrip("/") + "/"
        listed = [(folder + path.removeprefix(root), _info_of(entry)) for path, entry in found.items()]
        return [(uri, info) for uri, info in listed if uri.startswith(prefix_uri)]

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of the file system means."""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            return StoreFault(FaultKind.MISSING, reason)
        if isinstance(error, PermissionError):
            return StoreFault(FaultKind.DENIED, reason)
        return StoreFault(FaultKind.BROKEN if isinstance(error, OSError) else FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Leaves connections to the file system."""

    def _path_of(self, uri: str) -> str:
        return str(self._filesystem._strip_protocol(uri))  # noqa: SLF001 - fsspec's way for those who call a file system

    async def _called(self, name: str, *arguments: Any, **keys: Any) -> Any:
        if self._is_async:
            return await getattr(self._filesystem, f"_{name}")(*arguments, **keys)
        return await asyncio.to_thread(getattr(self._filesystem, name), *arguments, **keys)


def _info_of(found: dict[str, Any]) -> ObjectInfo:
    tag = next((found[name] for name in _TAGS if found.get(name)), None)
    return ObjectInfo(int(found["size"]), None if tag is None else str(tag).strip('"'))
