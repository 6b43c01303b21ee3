"""S3 and what speaks like it, through s3fs, which holds session, credentials and connections.

Requests are made with the client that it holds. Its file interface is left aside: it retries by itself, caches
listings, and takes `?`, `//` and a slash at a key's end for syntax. Here a key is everything behind `s3://bucket/`,
letter by letter.

Ranges, which are nearly all requests, are asked for by links that the client signs, over a session of our own: that
takes a fifth of the client's CPU a request (0.6 of 3.3 ms), and spares a copy of what comes. Where a store takes no
signed links (a policy forbids them, a bucket is of another region) the client asks, and goes on asking.
"""

from __future__ import annotations

import asyncio
import html
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.request import getproxies

import aiohttp
import s3fs
from botocore import exceptions as boto
from botocore.httpsession import get_cert_path
from yarl import URL

from o41td.workers.object_store import (
    ObjectInfo,
    ObjectStore,
    StorageSettings,
    check_content_range,
    check_etag,
    fault_of_status,
)
from o41td.workers.range_answer import Head, NotPlainError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connections import RangeConnections
from o41td.workers.ranged_get import Headers, check_answer, range_headers
from o41td.workers.retry import FaultKind, StoreFault
from o41td.workers.s3_options import s3_options

__all__ = ["S3Store"]

_CONNECT_S = 15
_CHUNK_BYTES = 256 << 10
_LINK_VALID_S = 3600
_LINK_USED_S = 300
_MOST_LINKS = 1024
_SIGNATURE = re.compile(r"\?\S*X-Amz-\S*")
_NOT_BY_LINK = (FaultKind.DENIED, FaultKind.REFUSED)
_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired", "TokenRefreshRequired"}
)
_BUSY = frozenset({"RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"})
_BROKEN = frozenset({"InternalError", "IncompleteBody", "RequestTimeout", "RequestTimeoutException"})
_LOST = (aiohttp.ClientError, boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, OSError)
_DENIED = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound, boto.TokenRetrievalError)


class S3Store(ObjectStore):
    """Objects of an S3-compatible store."""

    def __init__(self, settings: StorageSettings) -> None:
        """Connects at the first request, and reads credentials then, if they are ambient.

        Raises:
            StoreFault: There are to be none.
        """
        self._settings = settings
        self._connections = RangeConnections(self._trusted)
        self._links: dict[str, tuple[float, URL]] = {}  # by URI: when it was made, and it
        self._without_links: set[str] = set()  # buckets
        self._filesystem = s3fs.S3FileSystem(
            **s3_options(
                settings,
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=_CONNECT_S,
                read_timeout=None,
                max_pool_connections=settings.max_requests_in_flight,
            ),
            asynchronous=True,
            loop=asyncio.get_running_loop(),
        )

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        bucket, key = _bucket_and_key(uri)
        client = await self._filesystem.set_session()
        answer = await client.head_object(Bucket=bucket, Key=key)
        return ObjectInfo(int(answer["ContentLength"]), _etag_of(answer))

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks."""
        bucket, _key = _bucket_and_key(uri)
        if bucket not in self._without_links and not self._is_proxied():
            before = into.num_received
            try:
                await self._read_by_link(await self._link(uri), info, into)
            except NotPlainError:
                pass
            except StoreFault as fault:
                if into.num_received != before or fault.kind not in _NOT_BY_LINK:
                    raise
            else:
                return
        await self._read_by_client(uri, info, into)
        self._without_links.add(bucket)

    async def _read_by_link(self, link: URL, info: ObjectInfo, into: RangeBuffer) -> None:
        wanted = into.rest

        def accept(head: Head) -> None:
            check_answer(head.status, head, head.length, wanted=wanted, info=info, etag_of=_etag_of)

        headers = range_headers(wanted, info, is_strong=True)
        await self._connections.get(link, headers, into, accept=accept, refuse=_fault_of_refusal)

    async def _read_by_client(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        bucket, key = _bucket_and_key(uri)
        wanted = into.rest
        client = await self._filesystem.set_session()
        unchanged = {} if info.etag is None else {"IfMatch": f'"{info.etag}"'}
        asked = f"bytes={wanted.start}-{wanted.stop - 1}"
        answer = await client.get_object(Bucket=bucket, Key=key, Range=asked, **unchanged)
        body = answer["Body"]
        async with body:
            check_etag(info, _etag_of(answer))
            if "ContentRange" in answer:
                check_content_range(answer["ContentRange"], wanted, info)
            elif (wanted.start, wanted.stop) != (0, answer.get("ContentLength")):
                raise StoreFault(FaultKind.WHOLE, "the store ignores ranges: all of the object comes")
            while chunk := await body.read(_CHUNK_BYTES):
                into.take(chunk)

    async def _link(self, uri: str) -> URL:
        """A signed link to an object; one is used for a while, and never for as long as credentials have to live."""
        now_s = asyncio.get_running_loop().time()
        made_s, link = self._links.get(uri, (-_LINK_USED_S, URL()))
        if now_s - made_s >= _LINK_USED_S:
            if len(self._links) >= _MOST_LINKS:
                self._links.clear()
            bucket, key = _bucket_and_key(uri)
            client = await self._filesystem.set_session()
            signed = await client.generate_presigned_url(
                "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=_LINK_VALID_S
            )
            link = URL(signed, encoded=True)
            self._links[uri] = now_s, link
        return link

    def _is_proxied(self) -> bool:
        """Whether the surroundings may name a proxy, which the client knows how to use."""
        return self._settings.ambient_credentials and bool(getproxies())

    def _trusted(self) -> ssl.SSLContext:
        """The certificates that the client trusts."""
        is_ambient = self._settings.ambient_credentials
        bundle = self._filesystem.session.get_config_variable("ca_bundle") if is_ambient else None
        return ssl.create_default_context(cafile=bundle or get_cert_path(True))

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:
        """Lists the objects whose URI begins so."""
        bucket, prefix = _bucket_and_key(prefix_uri)
        client = await self._filesystem.set_session()
        found = []
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        async for page in pages:
            for entry in page.get("Contents", ()):
                uri = f"{prefix_uri.partition('://')[0]}://{bucket}/{entry['Key']}"
                found.append((uri, ObjectInfo(int(entry["Size"]), _etag_of(entry))))
            if most is not None and len(found) >= most:
                break
        return found

    def credentials_left_s(self) -> float | None:
        """Of credentials that were found in the surroundings and are to be renewed; others do not tell."""
        signer = getattr(getattr(self._filesystem, "_s3", None), "_request_signer", None)
        ends = getattr(getattr(signer, "_credentials", None), "_expiry_time", None)
        return None if ends is None else float((ends - datetime.now(UTC)).total_seconds())

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of s3fs, botocore or aiohttp means."""
        if isinstance(error, boto.ClientError):
            return _fault_of_answer(error.response)
        reason = _SIGNATURE.sub("", f"{type(error).__name__}: {error}")
        if isinstance(error, _DENIED):
            return StoreFault(FaultKind.DENIED, reason)
        if isinstance(error, _LOST):
            return StoreFault(FaultKind.BROKEN, reason)
        return StoreFault(FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Closes connections."""
        await self._connections.close()
        creator = getattr(self._filesystem, "_s3creator", None)
        if creator is not None:
            await creator.__aexit__(None, None, None)


def _fault_of_refusal(head: Head, text: str) -> StoreFault:
    """What an answer to a link means that brings no bytes."""
    error = {key: html.unescape(value) for key, value in re.findall(r"<(Code|Message)>(.*?)</", text, re.DOTALL)}
    return _fault_of_answer({"Error": error, "ResponseMetadata": {"HTTPStatusCode": head.status}})


def _bucket_and_key(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def _etag_of(answer: Headers | Mapping[str, Any]) -> str | None:
    etag = answer.get("ETag")
    return None if etag is None else str(etag).strip('"')


def _fault_of_answer(answer: dict[str, Any]) -> StoreFault:
    error = answer.get("Error", {})
    code, status = str(error.get("Code", "")), int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    told = " ".join(f"{status} {code} {error.get('Message', '')}".split())
    for kind, codes in ((FaultKind.EXPIRED, _EXPIRED), (FaultKind.BUSY, _BUSY), (FaultKind.BROKEN, _BROKEN)):
        if code in codes:
            return StoreFault(kind, told)
    if code == "400":  # a HEAD's answer has no body to say more, and this is how credentials that expired look
        return StoreFault(FaultKind.EXPIRED, told)
    # An answer without a status is none: the connection broke before it was whole.
    return StoreFault(fault_of_status(status, "").kind, told) if status else StoreFault(FaultKind.BROKEN, told)
