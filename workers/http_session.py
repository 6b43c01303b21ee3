"""Requests by aiohttp, through fsspec's HTTP file system, to servers whose answers are more than so many bytes.

Redirects, codings, bodies without a length, logins in URLs and in netrc files, proxies: what an HTTP library is for.
It takes 0.4 s of CPU to import, so it is imported for the first server that needs it.
"""

from __future__ import annotations

import asyncio

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from o41td.workers.http_answers import etag_of, fault_of_refusal, info_of
from o41td.workers.object_store import ObjectInfo
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.ranged_get import check_answer
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["HttpSession"]

_CONNECT_S = 15
_TOLD_BYTES = 200


class HttpSession:
    """Asks web servers.

    Called by: the storage thread's loop.
    """

    def __init__(self, *, trusts_environment: bool) -> None:
        """Connects at the first request."""
        self._filesystem = HTTPFileSystem(
            asynchronous=True,
            loop=asyncio.get_running_loop(),
            skip_instance_cache=True,
            client_kwargs={
                "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                "trust_env": trusts_environment,
            },
        )

    async def stat(self, url: URL, headers: dict[str, str]) -> ObjectInfo:
        """Looks at an object by a request for its first byte."""
        session = await self._filesystem.set_session()
        async with session.get(url, headers=headers) as answer:
            if answer.status not in (200, 206, 416):
                await _refuse(answer)
            return info_of(answer.status, answer.headers, answer.content_length)

    async def read(self, url: URL, headers: dict[str, str], info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks for what a range lacks.

        Raises:
            StoreFault: The answer is another one.
        """
        wanted = into.rest
        session = await self._filesystem.set_session()
        async with session.get(url, headers=headers) as answer:
            if answer.status not in (200, 206):
                await _refuse(answer)
            length = answer.content_length
            check_answer(answer.status, answer.headers, length, wanted=wanted, info=info, etag_of=etag_of)
            while chunk := await answer.content.readany():
                into.take(chunk)

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of aiohttp means."""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, aiohttp.InvalidURL | aiohttp.ClientConnectorCertificateError):
            return StoreFault(FaultKind.REFUSED, reason)
        is_broken = isinstance(error, aiohttp.ClientError | OSError)
        return StoreFault(FaultKind.BROKEN if is_broken else FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Closes connections."""
        session = await self._filesystem.set_session()
        await session.close()


async def _refuse(answer: aiohttp.ClientResponse) -> None:
    text = (await answer.content.read(_TOLD_BYTES)).decode("utf-8", "replace")
    raise fault_of_refusal(answer.status, answer.reason or "", text)
