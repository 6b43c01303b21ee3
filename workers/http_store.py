"""Objects of web servers, through fsspec's HTTP file system: it holds the connections, requests are made on them.

A URL is a URL: percent-encoded, with a query if it likes. Servers list nothing that is worth being relied on.
"""

from __future__ import annotations

import asyncio

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from o41td.workers.object_store import (
    ObjectInfo,
    ObjectStore,
    StorageSettings,
    fault_of_status,
)
from o41td.workers.range_answer import Head, NotPlainError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connections import RangeConnections
from o41td.workers.ranged_get import PLAIN, Headers, check_answer, get_by_session, range_headers
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
        self._is_ambient = settings.ambient_credentials
        self._connections = RangeConnections()
        self._not_plain: set[str] = set()  # servers
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

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks."""
        session = await self._filesystem.set_session()
        url = self._filesystem.encode_url(uri)
        wanted = into.rest
        is_strong = info.etag is not None and not info.etag.startswith(_NOT_STRONG)
        headers = range_headers(wanted, info, is_strong=is_strong)
        if self._is_plain(url):

            def accept(head: Head) -> None:
                check_answer(head.status, head, head.length, wanted=wanted, info=info, etag_of=_etag_of)

            try:
                await self._connections.get(url, headers, into, accept=accept, refuse=_fault_of_refusal)
            except NotPlainError:
                self._not_plain.add(url.raw_authority)
            else:
                return
        await get_by_session(session, url, headers, info, into, etag_of=_etag_of, refuse=_refuse)

    def _is_plain(self, url: URL) -> bool:
        """Whether nothing is to be done for a URL that only aiohttp does: proxies, netrc, a login, redirects."""
        is_plain = not (self._is_ambient or url.raw_user or url.raw_password)
        return is_plain and url.raw_authority not in self._not_plain

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
        await self._connections.close()


async def _refuse(answer: aiohttp.ClientResponse) -> None:
    if answer.status not in (200, 206):
        text = (await answer.content.read(_TOLD_BYTES)).decode("utf-8", "replace")
        raise _fault_of_refusal(answer.status, answer.reason or "", text)


def _fault_of_refusal(status: int, reason: str, text: str) -> StoreFault:
    return fault_of_status(status, f"{reason} {text[:_TOLD_BYTES]}")


def _etag_of(headers: Headers) -> str | None:
    """The etag, of a strong one without its quotes; where there is none, the time of the last change stands in."""
    etag, changed = headers.get("ETag"), headers.get("Last-Modified")
    if etag is None:
        return None if changed is None else _CHANGED + changed
    return etag if etag.startswith("W/") else etag.strip('"')
