"""An HTTP answer that brings a range, as it comes out of a socket; it does no I/O.

head ──► 200, 206: accepted ──► body, into the memory of the range
     └──► any other ──► its text, as http.client reads it ──► what it means
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, cast

from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["Head", "NotPlainError", "RangeAnswer", "StaleConnectionError"]

_MOST_HEAD_BYTES = 64 << 10
_MOST_TOLD_BYTES = 4 << 10
_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_STATUS = re.compile(r"HTTP/1\.([01]) (\d{3})(?: (.*))?")


class NotPlainError(Exception):
    """An answer that takes an HTTP library to make sense of: a redirect, a coding, a body of no stated length."""


class StaleConnectionError(Exception):
    """The connection ended before the answer began, as one may that was kept for the next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What an answer begins with.

    Attributes:
        status: Its status.
        reason: What the server calls it.
        length: Of its body; None if it states none.
        is_coded: The body is more than the bytes that are meant.
        will_close: The connection ends with it.
    """

    status: int
    reason: str
    length: int | None
    is_coded: bool
    will_close: bool
    fields: Mapping[str, str]

    @classmethod
    def of(cls, data: str) -> Head:
        """Reads the lines of a head.

        Raises:
            StoreFault: They make no sense.
        """
        first, *lines = data.split("\r\n")
        found = _STATUS.fullmatch(first)
        fields: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                continue
            key = name.strip().lower()
            fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
        length = fields.get("content-length")
        if found is None or not (length is None or re.fullmatch("[0-9]{1,18}", length)):
            raise StoreFault(FaultKind.BROKEN, f"the answer makes no sense: {first[:80]!r}, {length} bytes")
        is_chunked = "transfer-encoding" in fields
        keeps = fields.get("connection", "keep-alive" if found[1] == "1" else "close").lower()
        return cls(
            status=int(found[2]),
            reason=found[3] or "",
            length=None if is_chunked or length is None else int(length),
            is_coded=is_chunked or fields.get("content-encoding", "identity") != "identity",
            will_close="close" in keeps,
            fields=fields,
        )

    def get(self, name: str, /) -> str | None:
        """Returns a header."""
        return self.fields.get(name.lower())


class RangeAnswer:
    """One answer, to a request for a range.

    Attributes:
        is_over: All of it has come.
        keeps_open: Its connection can be used for the next request, once it is over.
        left: How many bytes of its body are still to come.
    """

    def __init__(
        self,
        into: RangeBuffer,
        *,
        accept: Callable[[Head], None],
        refuse: Callable[[Head, str], Exception],
    ) -> None:
        """Nothing has come.

        Args:
            into: Where its body belongs.
            accept: Looks at a head that promises bytes; raises a StoreFault if they are not what was asked for.
            refuse: Returns the exception that a head with any other status means, and the text behind it.
        """
        self._into = into
        self._accept = accept
        self._refuse = refuse
        self._raw = bytearray(_MOST_HEAD_BYTES)
        self._num_raw = 0
        self._head: Head | None = None
        self._head_bytes = 0
        self.is_over = False
        self.keeps_open = False
        self.left = 0

    def buffer(self) -> memoryview:
        """Where the next bytes are to be written; never empty before it is over."""
        return self._into.free[: self.left] if self.left else memoryview(self._raw)[self._num_raw :]

    def advance(self, count: int) -> None:
        """Notes that so many bytes were written to the beginning of `buffer()`.

        Raises:
            NotPlainError: See there.
            StoreFault: It is not what was asked for, or makes no sense.
        """
        if self.left:
            self._into.note(count)
            self._pass(count)
            return
        self._num_raw += count
        if self._head is None:
            self._find_head()
        elif self._is_told():
            self._tell()

    def end(self) -> NoReturn:
        """Raises what it means that the connection ended here.

        Raises:
            StaleConnectionError: It ended before the answer began.
            StoreFault: In the midst of it.
        """
        if not self._num_raw:
            raise StaleConnectionError("the connection ended without an answer")
        if self._head is not None and not self._is_good():
            self._tell()
        raise StoreFault(FaultKind.BROKEN, "the connection ended in the midst of an answer")

    def _find_head(self) -> None:
        while (at := self._raw.find(_END, 0, self._num_raw)) >= 0:
            self._head_bytes = at + len(_END)
            if self._raw[9:10] != b"1":
                self._begin(Head.of(self._raw[:at].decode("latin-1")))
                return
            self._num_raw -= self._head_bytes  # 1xx: the answer comes behind it
            self._raw[: self._num_raw] = self._raw[self._head_bytes : self._head_bytes + self._num_raw]
        if self._num_raw == len(self._raw):
            raise StoreFault(FaultKind.BROKEN, "the answer's head has no end")

    def _begin(self, head: Head) -> None:
        self._head = head
        if not self._is_good():
            if 300 <= head.status < 400:
                raise NotPlainError(f"the answer is {head.status}")
            if self._is_told():
                self._tell()
            return
        if head.length is None or head.is_coded:
            raise NotPlainError("the answer's body is coded, or of no stated length")
        self._accept(head)
        if head.length > len(self._into.free):
            raise StoreFault(FaultKind.REFUSED, "more bytes came than were asked for")
        begun = self._raw[self._head_bytes : self._num_raw]
        if len(begun) > head.length:
            raise StoreFault(FaultKind.BROKEN, "more bytes came than the answer's head says")
        self.left = head.length
        self._into.take(begun)
        self._pass(len(begun))

    def _pass(self, count: int) -> None:
        self.left -= count
        if not self.left:
            self.is_over = True
            self.keeps_open = self._head is not None and not self._head.will_close

    def _is_good(self) -> bool:
        return self._head is not None and self._head.status in (200, 206)

    def _is_told(self) -> bool:
        """Whether as much of a refusal has come as is looked at."""
        head, told = self._head, self._num_raw - self._head_bytes
        assert head is not None
        is_whole = told == head.length or (head.length is None and self._raw.endswith(_LAST_CHUNK, 0, self._num_raw))
        self.keeps_open = is_whole and not head.will_close
        return is_whole or told >= _MOST_TOLD_BYTES

    def _tell(self) -> NoReturn:
        """Raises what a refusal means."""
        self.is_over = True
        said = http.client.HTTPResponse(cast(socket.socket, _Said(bytes(self._raw[: self._num_raw]))), method="GET")
        try:
            said.begin()
            text = said.read(_MOST_TOLD_BYTES)
        except http.client.IncompleteRead as error:
            text = error.partial
        except (http.client.HTTPException, ValueError):
            text = b""
        assert self._head is not None
        raise self._refuse(self._head, text.decode("utf-8", "replace"))


class _Said:
    """What a server said, as http.client takes it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)
