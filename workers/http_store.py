"""Objects of web servers. Nearly all requests are made over connections of our own; what is left is aiohttp's.

A URL is a URL: percent-encoded, with a query if it likes. Servers list nothing that is worth being relied on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from yarl import URL

from o41td.workers.http_answers import etag_of, fault_of_refusal, info_of, is_strong
from o41td.workers.object_store import ObjectInfo, ObjectStore, StorageSettings
from o41td.workers.range_answer import Head, NotPlainError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connections import RangeConnections
from o41td.workers.ranged_get import check_answer, range_headers
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

if TYPE_CHECKING:
    from o41td.workers.http_session import HttpSession

__all__ = ["HttpStore"]

_FIRST_BYTE = ByteRange(0, 1)


class _SeenError(Exception):
    """The head of an answer told all that was asked."""


class HttpStore(ObjectStore):
    """Objects of web servers."""

    def __init__(self, settings: StorageSettings) -> None:
        """Connects at the first request."""
        self._is_ambient = settings.ambient_credentials
        self._connections = RangeConnections()
        self._not_plain: set[str] = set()  # servers
        self._session: HttpSession | None = None

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        url = _url_of(uri)
        # One byte is asked for: a HEAD is often refused, and tells nothing of whether ranges are served.
        headers = range_headers(_FIRST_BYTE, ObjectInfo(0, None), is_strong=False)
        if self._is_plain(url):
            heads: list[Head] = []

            def accept(head: Head) -> None:
                heads.append(head)
                if head.status == 200:  # all of the object would come
                    raise _SeenError

            def refuse(head: Head, text: str) -> Exception:
                heads.append(head)
                return _SeenError() if head.status == 416 else fault_of_refusal(head.status, head.reason, text)

            try:
                await self._connections.get(url, headers, RangeBuffer(_FIRST_BYTE), accept=accept, refuse=refuse)
            except NotPlainError:
                self._not_plain.add(url.raw_authority)
                heads.clear()
            except _SeenError:
                pass
            if heads:
                return info_of(heads[-1].status, heads[-1], heads[-1].length)
        return await self._library().stat(url, headers)

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks."""
        url = _url_of(uri)
        wanted = into.rest
        headers = range_headers(wanted, info, is_strong=is_strong(info.etag))
        if self._is_plain(url):

            def accept(head: Head) -> None:
                check_answer(head.status, head, head.length, wanted=wanted, info=info, etag_of=etag_of)

            def refuse(head: Head, text: str) -> StoreFault:
                return fault_of_refusal(head.status, head.reason, text)

            try:
                await self._connections.get(url, headers, into, accept=accept, refuse=refuse)
            except NotPlainError:
                self._not_plain.add(url.raw_authority)
            else:
                return
        await self._library().read(url, headers, info, into)

    def _is_plain(self, url: URL) -> bool:
        """Whether nothing is to be done for a URL that only a library does: proxies, netrc, a login, redirects."""
        is_plain = not (self._is_ambient or url.raw_user or url.raw_password)
        return is_plain and url.raw_authority not in self._not_plain

    def _library(self) -> HttpSession:
        if self._session is None:
            from o41td.workers.http_session import HttpSession

            self._session = HttpSession(trusts_environment=self._is_ambient)
        return self._session

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:  # noqa: ARG002
        """Refuses: name each shard, or a manifest."""
        raise StoreFault(FaultKind.REFUSED, "web servers list no files; name each shard, or use a manifest")

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of a connection means."""
        if self._session is not None:
            return self._session.fault_of(error)
        reason = f"{type(error).__name__}: {error}"
        return StoreFault(FaultKind.BROKEN if isinstance(error, OSError) else FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Closes connections."""
        await self._connections.close()
        if self._session is not None:
            await self._session.close()


def _url_of(uri: str) -> URL:
    """A URL, with what has to be percent-encoded encoded.

    Raises:
        StoreFault: It is none.
    """
    try:
        url = URL(uri)
    except ValueError as error:
        raise StoreFault(FaultKind.REFUSED, f"this is no URL: {error}") from error
    if not url.host:
        raise StoreFault(FaultKind.REFUSED, "this URL names no server")
    return url
