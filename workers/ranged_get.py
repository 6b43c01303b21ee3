"""A GET of a range, which is how the bytes of objects come: what is asked, and what an answer has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from o41td.workers.object_store import ObjectInfo, check_content_range, check_etag
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["PLAIN", "Headers", "check_answer", "range_headers"]

PLAIN = {"Accept-Encoding": "identity"}
"""Asks for an object's bytes as they are."""


class Headers(Protocol):
    """An answer's headers, by name in any case."""

    def get(self, name: str, /) -> str | None:
        """Returns one; None if there is none."""


EtagOf = Callable[[Headers], str | None]


def range_headers(wanted: ByteRange, info: ObjectInfo, *, is_strong: bool) -> dict[str, str]:
    """Returns the headers that ask for a range; `is_strong` says whether the etag can be made a condition."""
    headers = {**PLAIN, "Range": f"bytes={wanted.start}-{wanted.stop - 1}"}
    if info.etag is not None and is_strong:
        headers["If-Match"] = f'"{info.etag}"'
    return headers


def check_answer(
    status: int,
    headers: Headers,
    content_length: int | None,
    *,
    wanted: ByteRange,
    info: ObjectInfo,
    etag_of: EtagOf,
) -> None:
    """Compares the head of a 200 or 206 with what was asked for.

    Raises:
        StoreFault: It is of another object, or another range.
    """
    check_etag(info, etag_of(headers))
    if status == 206:
        check_content_range(headers.get("Content-Range"), wanted, info)
    elif (wanted.start, wanted.stop) != (0, content_length):
        raise StoreFault(FaultKind.WHOLE, "the store ignores ranges: all of the object comes")
