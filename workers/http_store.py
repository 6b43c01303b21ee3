"""Objects of web servers, through fsspec's HTTP file system: it holds the connections, requests are made on them.

A URL is a URL: percent-encoded, with a query if it likes. Servers list nothing that is worth being relied on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp
from fsspec.implementations.http import HTTPFileSystem

from o41td.workers.object_store import (
    ObjectInfo,
    ObjectStore,
    StorageSettings,
    fault_of_status,
)
from o41td.workers.ranged_get import PLAIN, get_range
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["HttpStore"]

_CONNECT_S = 15
_TOLD_BYTES = 200
_CHANGED = "modified "
_NOT_STRONG = ("W/", _CHANGED)


class HttpStore(ObjectStore):
    """Objects of web servers."""

    def __init__(self, settings: StorageSettings) -> None:
        """Connects at the first request."""
        self._filesystem = HTTPFileSystem(
            asynchronous=True,
            loop=asyncio.get_running_loop(),
            skip_instance_cache=True,
            client_kwargs={
                "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                "trust_env": settings.ambient_credentials,
            },
        )

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        session = await self._filesystem.set_session()
        # One byte is asked for: a HEAD is often refused, and tells nothing of whether ranges are served.
        async with session.get(self._filesystem.encode_url(uri), headers={**PLAIN, "Range": "bytes=0-0"}) as answer:
            if answer.status == 416:  # an empty object has no first byte
                return ObjectInfo(0, _etag_of(answer.headers))
            await _refuse(answer)
            if answer.status == 200:
                if answer.content_length is None:
                    raise StoreFault(FaultKind.REFUSED, "the server tells no size, and serves no ranges")
                return ObjectInfo(answer.content_length, _etag_of(answer.headers))
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if not total.isdigit():
                raise StoreFault(FaultKind.REFUSED, f"the server tells no size: {total!r}")
            return ObjectInfo(int(total), _etag_of(answer.headers))

    async def read(self, uri: str, wanted: ByteRange, info: ObjectInfo, sink: Callable[[bytes], None]) -> None:
        """Asks for a range of an object once."""
        session = await self._filesystem.set_session()
        await get_range(
            session,
            self._filesystem.encode_url(uri),
            wanted,
            info,
            sink,
            is_strong=info.etag is not None and not info.etag.startswith(_NOT_STRONG),
            etag_of=_etag_of,
            refuse=_refuse,
        )

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:  # noqa: ARG002
        """Refuses: name each shard, or a manifest."""
        raise StoreFault(FaultKind.REFUSED, "web servers list no files; name each shard, or use a manifest")

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of aiohttp means."""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, aiohttp.InvalidURL):
            return StoreFault(FaultKind.REFUSED, reason)
        is_broken = isinstance(error, aiohttp.ClientError | OSError)
        return StoreFault(FaultKind.BROKEN if is_broken else FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Closes connections."""
        session = await self._filesystem.set_session()
        await session.close()


async def _refuse(answer: aiohttp.ClientResponse) -> None:
    if answer.status not in (200, 206):
        text = (await answer.content.read(_TOLD_BYTES)).decode("utf-8", "replace")
        raise fault_of_status(answer.status, f"{answer.reason or ''} {text}")


def _etag_of(headers: Mapping[str, str]) -> str | None:
    """The etag, of a strong one without its quotes; where there is none, the time of the last change stands in."""
    etag, changed = headers.get("ETag"), headers.get("Last-Modified")
    if etag is None:
        return None if changed is None else _CHANGED + changed
    return etag if etag.startswith("W/") else etag.strip('"')
