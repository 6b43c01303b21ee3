"""S3 and what speaks like it. A key is everything behind `s3://bucket/`, letter by letter.

Ranges, which are nearly all requests, are asked for by signed links, over connections of our own: that takes a fifth of
botocore's CPU a request, and spares every copy of what comes. Where keys, region and endpoint are given, a link is made
here, so that a worker that only reads ranges needs no client (`S3Client`, which takes 0.7 s of CPU to come up); else
the client makes it. Where a store takes no links (a policy forbids them, a bucket is of another region), or a proxy is
to be used, the client asks, and goes on asking.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import getproxies

from yarl import URL

from o41td.workers.object_store import ObjectInfo, ObjectStore, StorageSettings
from o41td.workers.range_answer import Head, NotPlainError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connections import RangeConnections
from o41td.workers.ranged_get import check_answer, range_headers
from o41td.workers.retry import FaultKind, StoreFault
from o41td.workers.s3_answers import bucket_and_key, etag_of, fault_of_refusal

if TYPE_CHECKING:
    from o41td.workers.s3_client import S3Client

__all__ = ["S3Store", "own_link"]

_LINK_VALID_S = 3600
_LINK_USED_S = 300
_MOST_LINKS = 1024
_NOT_BY_LINK = (FaultKind.DENIED, FaultKind.REFUSED)
_PLAIN_BUCKET = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


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
        self._has_client: S3Client | None = None

    @property
    def _client(self) -> S3Client:
        if self._has_client is None:
            from o41td.workers.s3_client import S3Client

            self._has_client = S3Client(self._settings)
        return self._has_client

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""
        return await self._client.stat(uri)

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks."""
        bucket, _key = bucket_and_key(uri)
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
        await self._client.read(uri, info, into)
        self._without_links.add(bucket)

    async def _read_by_link(self, link: URL, info: ObjectInfo, into: RangeBuffer) -> None:
        wanted = into.rest

        def accept(head: Head) -> None:
            check_answer(head.status, head, head.length, wanted=wanted, info=info, etag_of=etag_of)

        headers = range_headers(wanted, info, is_strong=True)
        await self._connections.get(link, headers, into, accept=accept, refuse=fault_of_refusal)

    async def _link(self, uri: str) -> URL:
        """A signed link to an object; one is used for a while, and never for as long as credentials have to live."""
        now_s = asyncio.get_running_loop().time()
        made_s, link = self._links.get(uri, (-_LINK_USED_S, URL()))
        if now_s - made_s >= _LINK_USED_S:
            if len(self._links) >= _MOST_LINKS:
                self._links.clear()
            signed = own_link(uri, self._settings, valid_s=_LINK_VALID_S)
            link = URL(signed or await self._client.link_to(uri, valid_s=_LINK_VALID_S), encoded=True)
            self._links[uri] = now_s, link
        return link

    def _is_proxied(self) -> bool:
        """Whether the surroundings may name a proxy, which the client knows how to use."""
        return self._settings.ambient_credentials and bool(getproxies())

    def _trusted(self) -> ssl.SSLContext:
        """The certificates that botocore trusts."""
        from botocore.httpsession import get_cert_path

        bundle = self._client.ca_bundle() if self._settings.ambient_credentials else None
        return ssl.create_default_context(cafile=bundle or get_cert_path(True))

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:
        """Lists the objects whose URI begins so."""
        return await self._client.listed(prefix_uri, most)

    def credentials_left_s(self) -> float | None:
        """Of credentials that were found in the surroundings and are to be renewed; others do not tell."""
        return self._client.credentials_left_s()

    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of s3fs, botocore, aiohttp or a connection means."""
        return self._client.fault_of(error)

    async def close(self) -> None:
        """Closes connections."""
        await self._connections.close()
        if self._has_client is not None:
            await self._has_client.close()


def own_link(uri: str, settings: StorageSettings, *, valid_s: int) -> str | None:
    """Returns a link that is signed here; None where it takes a client to know whom to ask, and as whom."""
    bucket, key = bucket_and_key(uri)
    has_keys = settings.access_key_id and settings.secret_access_key and not settings.virtual_hosted_style
    if not (has_keys and settings.region and settings.endpoint_url and _PLAIN_BUCKET.fullmatch(bucket)):
        return None
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    keys = Credentials(settings.access_key_id, settings.secret_access_key, settings.session_token)
    request = AWSRequest("GET", f"{settings.endpoint_url.rstrip('/')}/{bucket}/{quote(key, safe='/~')}")
    S3SigV4QueryAuth(keys, "s3", settings.region, expires=valid_s).add_auth(request)
    return str(request.url)
