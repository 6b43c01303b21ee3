"""What s3fs does for us: it holds session, credentials and connections, and requests are made with the client it has.

Its file interface is left aside: it retries by itself, caches listings, and takes `?`, `//` and a slash at a key's end
for syntax. It and its client take 0.7 s of CPU to come up, so a worker has one only if it needs it.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

import aiohttp
import s3fs
from botocore import exceptions as boto

from o41td.workers.object_store import (
    ObjectInfo,
    StorageSettings,
    check_content_range,
    check_etag,
)
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.retry import FaultKind, StoreFault
from o41td.workers.s3_answers import bucket_and_key, etag_of, fault_of_answer
from o41td.workers.s3_options import s3_options

__all__ = ["S3Client"]

_CONNECT_S = 15
_CHUNK_BYTES = 256 << 10
_SIGNATURE = re.compile(r"\?\S*X-Amz-\S*")
_LOST = (aiohttp.ClientError, boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, OSError)
_DENIED = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.ProfileNotFound, boto.TokenRetrievalError)


class S3Client:
    """Asks an S3-compatible store as botocore does.

    Called by: the storage thread's loop.
    """

    def __init__(self, settings: StorageSettings) -> None:
        """Connects at the first request, and reads credentials then, if they are ambient.

        Raises:
            StoreFault: There are to be none.
        """
        self._settings = settings
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
        bucket, key = bucket_and_key(uri)
        client = await self._filesystem.set_session()
        answer = await client.head_object(Bucket=bucket, Key=key)
        return ObjectInfo(int(answer["ContentLength"]), etag_of(answer))

    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks."""
        bucket, key = bucket_and_key(uri)
        wanted = into.rest
        client = await self._filesystem.set_session()
        unchanged = {} if info.etag is None else {"IfMatch": f'"{info.etag}"'}
        asked = f"bytes={wanted.start}-{wanted.stop - 1}"
        answer = await client.get_object(Bucket=bucket, Key=key, Range=asked, **unchanged)
        body = answer["Body"]
        async with body:
            check_etag(info, etag_of(answer))
            if "ContentRange" in answer:
                check_content_range(answer["ContentRange"], wanted, info)
            elif (wanted.start, wanted.stop) != (0, answer.get("ContentLength")):
                raise StoreFault(FaultKind.WHOLE, "the store ignores ranges: all of the object comes")
            while chunk := await body.read(_CHUNK_BYTES):
                into.take(chunk)

    async def link_to(self, uri: str, *, valid_s: int) -> str:
        """A link to an object that the client signs."""
        bucket, key = bucket_and_key(uri)
        client = await self._filesystem.set_session()
        signed = await client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=valid_s
        )
        return str(signed)

    def ca_bundle(self) -> str | None:
        """The file of trusted certificates that the surroundings name."""
        bundle = self._filesystem.session.get_config_variable("ca_bundle")
        return None if bundle is None else str(bundle)

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:
        """Lists the objects whose URI begins so."""
        bucket, prefix = bucket_and_key(prefix_uri)
        client = await self._filesystem.set_session()
        found = []
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        async for page in pages:
            for entry in page.get("Contents", ()):
                uri = f"{prefix_uri.partition('://')[0]}://{bucket}/{entry['Key']}"
                found.append((uri, ObjectInfo(int(entry["Size"]), etag_of(entry))))
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
            return fault_of_answer(error.response)
        reason = _SIGNATURE.sub("", f"{type(error).__name__}: {error}")
        if isinstance(error, _DENIED):
            return StoreFault(FaultKind.DENIED, reason)
        if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in reason:
            return StoreFault(FaultKind.REFUSED, reason)
        if isinstance(error, _LOST):
            return StoreFault(FaultKind.BROKEN, reason)
        return StoreFault(FaultKind.REFUSED, reason)

    async def close(self) -> None:
        """Closes connections."""
        creator = getattr(self._filesystem, "_s3creator", None)
        if creator is not None:
            await creator.__aexit__(None, None, None)
