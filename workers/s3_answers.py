"""What the answers of S3-compatible stores mean, and how their objects are named."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from o41td.workers.object_store import fault_of_status
from o41td.workers.range_answer import Head
from o41td.workers.ranged_get import Headers
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["bucket_and_key", "etag_of", "fault_of_answer", "fault_of_refusal"]

_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired", "TokenRefreshRequired"}
)
_BUSY = frozenset({"RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"})
_BROKEN = frozenset({"InternalError", "IncompleteBody", "RequestTimeout", "RequestTimeoutException"})


def bucket_and_key(uri: str) -> tuple[str, str]:
    """The two parts of a URI; a key is everything behind the bucket, letter by letter."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def etag_of(answer: Headers | Mapping[str, Any]) -> str | None:
    """The etag that an answer tells, without its quotes."""
    etag = answer.get("ETag")
    return None if etag is None else str(etag).strip('"')


def fault_of_refusal(head: Head, text: str) -> StoreFault:
    """What an answer to a link means that brings no bytes."""
    error = {key: html.unescape(value) for key, value in re.findall(r"<(Code|Message)>(.*?)</", text, re.DOTALL)}
    return fault_of_answer({"Error": error, "ResponseMetadata": {"HTTPStatusCode": head.status}})


def fault_of_answer(answer: dict[str, Any]) -> StoreFault:
    """What an error of botocore's shape means."""
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
