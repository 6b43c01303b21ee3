"""What reading needs of a store: to look at an object, to read a range of it, to list names. Nothing is retried here.

Each protocol is one subclass: it turns its library's exceptions into `StoreFault`s and does no more than one request a
call, so that patience, caps and figures have one place, `o41td.workers.storage`. Everything runs on that place's loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "StorageSettings",
    "check_content_range",
    "check_etag",
    "compares_answers",
    "fault_of_status",
    "scheme_of",
]

MAX_REQUESTS_IN_FLIGHT = 64
GIVE_UP_AFTER_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """A `StorageConfig` without pydantic, as workers get it over their socket; what it shows holds no secrets."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    virtual_hosted_style: bool = False
    anonymous: bool = False
    ambient_credentials: bool = False
    max_requests_in_flight: int = MAX_REQUESTS_IN_FLIGHT
    give_up_after_s: float = GIVE_UP_AFTER_S
    filesystems: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_record(cls, record: dict[str, Any] | None) -> StorageSettings:
        """Returns the settings that `StorageConfig.secret_record` describes; the defaults for None."""
        return cls(**(record or {}))


class ObjectInfo(NamedTuple):
    """An object's size, and the tag that changes with its content, where the store has one."""

    size_bytes: int
    etag: str | None


class ObjectStore(ABC):
    """One protocol's objects.

    Called by: the storage thread's loop.
    """

    @abstractmethod
    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object."""

    @abstractmethod
    async def read(self, uri: str, info: ObjectInfo, into: RangeBuffer) -> None:
        """Asks once for what a range of an object lacks, and has it come there.

        It may end early without saying so.

        Raises:
            StoreFault: The object is not as `info` says, or anything else is wrong.
        """

    @abstractmethod
    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:
        """Lists the objects whose URI begins so: every one, or in sorted order about `most` of them.

        Raises:
            StoreFault: `REFUSED` where such a store lists nothing.
        """

    def credentials_left_s(self) -> float | None:
        """For how many seconds its credentials are good; None where they do not tell."""
        return None

    @abstractmethod
    def fault_of(self, error: Exception) -> StoreFault:
        """Returns what an exception of the library means."""

    @abstractmethod
    async def close(self) -> None:
        """Closes connections."""


def scheme_of(uri: str) -> str:
    """The protocol of a remote URI, in lower case."""
    return uri.partition("://")[0].lower()


def compares_answers(uri: str) -> bool:
    """Whether a store tells with each answer of which object it is; others are asked when a shard is opened."""
    return scheme_of(uri) in ("s3", "s3a", "http", "https")


def check_etag(info: ObjectInfo, etag: str | None) -> None:
    """Compares an answer's etag with the one that the object had.

    Raises:
        StoreFault: It is another one.
    """
    if info.etag is not None and etag is not None and etag != info.etag:
        raise StoreFault(FaultKind.CHANGED, f"its etag was {info.etag} and is {etag}")


def check_content_range(header: str | None, wanted: ByteRange, info: ObjectInfo) -> None:
    """Compares the range that an answer brings (`bytes 0-9/100`) with the one that was asked for.

    Raises:
        StoreFault: It is another one, or the object has another size.
    """
    try:
        unit, _, rest = (header or "").partition(" ")
        bounds, _, total = rest.partition("/")
        first, last = map(int, bounds.split("-"))
        size_bytes = info.size_bytes if total == "*" else int(total)
    except ValueError:
        raise StoreFault(FaultKind.REFUSED, f"the answer's Content-Range makes no sense: {header!r}") from None
    if size_bytes != info.size_bytes:
        raise StoreFault(FaultKind.CHANGED, f"its size was {info.size_bytes} bytes and is {size_bytes}")
    if unit != "bytes" or first != wanted.start or last >= wanted.stop:
        raise StoreFault(FaultKind.REFUSED, f"bytes {wanted.start}-{wanted.stop - 1} were asked for, {header!r} came")


def fault_of_status(status: int, answer: str) -> StoreFault:
    """Returns what an HTTP status means; `answer` is what came with it."""
    if status in (429, 503):
        kind = FaultKind.BUSY
    elif status >= 500 or status == 408:
        kind = FaultKind.BROKEN
    elif status in (404, 410):
        kind = FaultKind.MISSING
    elif status in (401, 403):
        kind = FaultKind.DENIED
    elif status in (412, 416):
        kind = FaultKind.CHANGED
    else:
        kind = FaultKind.REFUSED
    return StoreFault(kind, " ".join(f"{status} {answer}".split()))
