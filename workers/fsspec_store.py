"""Objects of any other protocol that fsspec knows, through the file system that is installed for it.

Such a file system neither takes a condition nor tells the object's tag with an answer. So an object is looked at when a
worker opens it, and again after a read if that is some time ago: of one that was replaced no more is used than was read
meanwhile.

Those that are not asynchronous are called on threads, each with a file system of its own: one FTP connection, say,
carries one conversation.
"""

from __future__ import annotations

import asyncio
import ftplib
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem

from o41td.workers.object_store import ObjectInfo, ObjectStore, StorageSettings, check_etag, fault_of_status
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["FsspecStore"]

_TAGS = (
    "generation",  # of a version of an object's bytes; the etag of the same store is one of its metadata, too
    "ETag",
    "etag",
    "md5Hash",
    "blob_id",
    "checksum",
    "mtime",
    "LastModified",
    "last_modified",
    "modify",
    "created",
    "CRC",
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
_MOST_THREADS = 8
_LOOK_EVERY_S = 30.0
_FTP_DENIED = ("530", "532")
_FTP_MISSING = ("550",)


class FsspecStore(ObjectStore):
    """Objects of one protocol."""

    def __init__(self, scheme: str, settings: StorageSettings) -> None:
        """Makes the file system, or has threads make theirs when they are first called.

        Raises:
            StoreFault: There is none of that protocol, or its library is not installed.
        """
        if "::" in scheme:
            why = "file systems one over the other (`::`) are not read; `cache_dir` keeps blocks on local disk"
            raise StoreFault(FaultKind.REFUSED, why)
        given = settings.filesystems.get(scheme)
        is_open = settings.ambient_credentials or scheme in _ANONYMOUS or scheme in _WITHOUT_CREDENTIALS
        if given is None and not is_open:
            why = (
                f"{scheme}:// takes its credentials from its surroundings, which `ambient_credentials` allows, or from "
                f"the StorageConfig: `filesystems`, under {scheme!r}"
            )
            raise StoreFault(FaultKind.REFUSED, why)
        if given is None:
            given = {} if settings.ambient_credentials else _ANONYMOUS.get(scheme, {})
        self._options = {**given, "skip_instance_cache": True, "use_listings_cache": False}
        self._looked_s: dict[str, float] = {}
        self._own = threading.local()
        self._filesystem: AsyncFileSystem | None = None
        if scheme in ("gs", "gcs") and "endpoint_url" in given:
            # gcsfs asks by gRPC what kind of bucket it is, which an emulator or gateway leaves unanswered for minutes.
            os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            self._kind = fsspec.get_filesystem_class(scheme)
            if issubclass(self._kind, AsyncFileSystem):
                self._filesystem = self._kind(**self._options, asynchronous=True, loop=asyncio.get_running_loop())
        except (ImportError, TypeError, ValueError) as error:
            raise StoreFault(FaultKind.REFUSED, f"{scheme}:// cannot be used: {error}") from error
        num_threads = min(_MOST_THREADS, settings.max_requests_in_flight)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"o41td-{scheme}")

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        found = await self._called("info", self._path_of(uri))
        if found.get("type", "file") != "file":
            raise StoreFault(FaultKind.MISSING, f"this is a {found['type']}")
        self._looked_s[uri] = asyncio.get_running_loop().time()
        return _info_of(found)

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Reads what a range of an object lacks."""
        wanted = into.rest
        # What lies behind a range is not wanted, though a file system's cache may think so.
        keys = {} if self._filesystem is not None else {"cache_type": "none"}
        data = await self._called("cat_file", self._path_of(uri), start=wanted.start, end=wanted.stop, **keys)
        if asyncio.get_running_loop().time() - self._looked_s.get(uri, 0.0) > _LOOK_EVERY_S:
            now = await self.stat(uri)
            check_etag(info, now.etag)
            if now.size_bytes != info.size_bytes:
                raise StoreFault(FaultKind.CHANGED, f"its size was {info.size_bytes} bytes and is {now.size_bytes}")
        if len(data) > wanted.num_bytes:
            raise StoreFault(FaultKind.WHOLE, f"{len(data)} bytes came where {wanted.num_bytes} were asked for")
        into.take(data)

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
        if isinstance(error, ftplib.error_perm):
            kinds = {**dict.fromkeys(_FTP_DENIED, FaultKind.DENIED), **dict.fromkeys(_FTP_MISSING, FaultKind.MISSING)}
            return StoreFault(kinds.get(str(error)[:3], FaultKind.REFUSED), reason)
        status = _status_of(error)
        if status is not None:
            return fault_of_status(status, reason)
        is_broken = isinstance(error, OSError | EOFError | ftplib.Error)
        return StoreFault(FaultKind.BROKEN if is_broken else FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Leaves connections to the file system."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _path_of(self, uri: str) -> str:
        return str(self._kind._strip_protocol(uri))  # noqa: SLF001 - fsspec's way for those who call a file system

    async def _called(self, name: str, path: str, **keys: Any) -> Any:
        if self._filesystem is not None:
            return await getattr(self._filesystem, f"_{name}")(path, **keys)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, name, path, keys)

    def _call(self, name: str, path: str, keys: dict[str, Any]) -> Any:
        """The same on a thread."""
        filesystem = getattr(self._own, "filesystem", None)
        if filesystem is None:
            filesystem = self._own.filesystem = self._kind(**self._options)
        try:
            if name in ("find", "info"):  # some keep what they were once told of a folder, whatever they are told
                filesystem.invalidate_cache()
            return getattr(filesystem, name)(path, **keys)
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:
            self._own.filesystem = None  # its connection may be what is broken
            raise


def _info_of(found: dict[str, Any]) -> ObjectInfo:
    tag = next((found[name] for name in _TAGS if found.get(name)), None)
    if isinstance(tag, datetime):  # a list of names may tell the same as seconds
        tag = tag.timestamp()
    return ObjectInfo(int(found["size"]), None if tag is None else str(tag).strip('"'))


def _status_of(error: Exception) -> int | None:
    """The HTTP status that an exception of some library tells; None if it tells none."""
    holders = (error, getattr(error, "response", None))
    told = (getattr(each, name, None) for each in holders for name in ("status_code", "status", "code"))
    return next((int(str(each)) for each in told if re.fullmatch("[45][0-9][0-9]", str(each))), None)
