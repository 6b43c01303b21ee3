"""What the answers of web servers tell of objects."""

from __future__ import annotations

from o41td.workers.object_store import ObjectInfo, fault_of_status
from o41td.workers.ranged_get import Headers
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["etag_of", "fault_of_refusal", "info_of", "is_strong"]

_TOLD_CHARACTERS = 200
_CHANGED = "modified "
_NOT_STRONG = ("W/", _CHANGED)


def etag_of(headers: Headers) -> str | None:
    """The etag, of a strong one without its quotes; where there is none, the time of the last change stands in."""
    etag, changed = headers.get("ETag"), headers.get("Last-Modified")
    if etag is None:
        return None if changed is None else _CHANGED + changed
    return etag if etag.startswith("W/") else etag.strip('"')


def is_strong(etag: str | None) -> bool:
    """Whether it can be made a condition of a request."""
    return etag is not None and not etag.startswith(_NOT_STRONG)


def info_of(status: int, headers: Headers, content_length: int | None) -> ObjectInfo:
    """Returns what an answer of 200, 206 or 416 tells of an object, of which the first byte was asked for.

    Raises:
        StoreFault: It does not tell the size.
    """
    if status == 416:  # an empty object has no first byte
        return ObjectInfo(0, etag_of(headers))
    if status == 200:
        if content_length is None:
            raise StoreFault(FaultKind.REFUSED, "the server tells no size, and serves no ranges")
        return ObjectInfo(content_length, etag_of(headers))
    total = (headers.get("Content-Range") or "").rpartition("/")[2]
    if not total.isdigit():
        raise StoreFault(FaultKind.REFUSED, f"the server tells no size: {total!r}")
    return ObjectInfo(int(total), etag_of(headers))


def fault_of_refusal(status: int, reason: str, text: str) -> StoreFault:
    """Returns what any other answer means."""
    return fault_of_status(status, f"{reason} {text[:_TOLD_CHARACTERS]}")
