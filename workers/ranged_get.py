"""One GET of a range over an aiohttp session, which is how the bytes of objects come, whatever signs the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from yarl import URL

from o41td.workers.object_store import ObjectInfo, check_content_range, check_etag
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["PLAIN", "get_range"]

PLAIN = {"Accept-Encoding": "identity"}
"""Asks for an object's bytes as they are."""


async def get_range(
    session: aiohttp.ClientSession,
    url: URL,
    wanted: ByteRange,
    info: ObjectInfo,
    sink: Callable[[bytes], None],
    *,
    is_strong: bool,
    etag_of: Callable[[Mapping[str, str]], str | None],
    refuse: Callable[[aiohttp.ClientResponse], Awaitable[None]],
) -> None:
    """Asks for a range of an object once, and hands what comes to `sink`.

    Args:
        session: Makes the request.
        url: The object's, encoded.
        wanted: The range.
        info: What the object must be.
        sink: Takes what comes.
        is_strong: Whether its etag can be made a condition of the request.
        etag_of: Returns the etag that an answer's headers tell.
        refuse: Raises the fault of an answer that is neither 200 nor 206.

    Raises:
        StoreFault: The answer is another one.
    """
    headers = {**PLAIN, "Range": f"bytes={wanted.start}-{wanted.stop - 1}"}
    if info.etag is not None and is_strong:
        headers["If-Match"] = f'"{info.etag}"'
    async with session.get(url, headers=headers) as answer:
        await refuse(answer)
        check_etag(info, etag_of(answer.headers))
        if answer.status == 206:
            check_content_range(answer.headers.get("Content-Range"), wanted, info)
        elif (wanted.start, wanted.stop) != (0, answer.content_length):
            raise StoreFault(FaultKind.WHOLE, "the store ignores ranges: all of the object comes")
        while chunk := await answer.content.readany():
            sink(chunk)
