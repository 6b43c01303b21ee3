"""A connection over which the bytes of ranges come into the memory they stay in: nothing copies them on their way.

An HTTP library's layers copy a body three times, and wake for every piece of 64 to 256 KiB; over fast links that takes
more CPU than all of the kernel's work. Here the loop receives into the range itself, and the kernel is told to keep
bytes back until there are enough of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

from o41td.workers.range_answer import RangeAnswer, StaleConnectionError

__all__ = ["RangeConnection"]

_WAKE_BYTES = 1 << 20
"""So many bytes of a body are waited for, or all that are still to come."""
_PATIENCE_S = 1.0
"""For so long; then whatever is there is taken, so that slow bytes count as bytes, and none is asked for again."""


class RangeConnection(asyncio.BufferedProtocol):
    """A connection to a server, for one request at a time.

    Attributes:
        is_open: It can be used for a request.
        idle_since_s: When its last answer was over, by the loop's clock.

    Called by: the storage thread's loop.
    """

    def __init__(self) -> None:
        """Is not connected yet."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None  # of a connection in clear
        self._low_water = 1
        self._timer: asyncio.TimerHandle | None = None
        self._left_before = 0
        self._answer: RangeAnswer | None = None
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._unasked = memoryview(bytearray(1))
        self.is_open = False
        self.idle_since_s = 0.0

    async def ask(self, request: bytes, answer: RangeAnswer) -> None:
        """Sends a request, and receives its answer; closes itself unless that leaves it fit for the next.

        Raises:
            NotPlainError: As `RangeAnswer`.
            StaleConnectionError: As `RangeAnswer`.
            StoreFault: As `RangeAnswer`.
        """
        if self._transport is None or not self.is_open:
            raise StaleConnectionError("the connection was closed")
        self._answer, self._done = answer, self._loop.create_future()
        try:
            self._transport.write(request)
            await self._done
        finally:
            self._answer = None
            self._rest()
            if not (answer.is_over and answer.keeps_open):
                self.close()
            self.idle_since_s = self._loop.time()

    def close(self) -> None:
        """Closes the connection, whatever is on its way."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Can be used."""
        self._transport = cast(asyncio.Transport, transport)
        # Under TLS the socket's bytes are not the body's, and waiting for more of them than there are has no end.
        self._socket = None if transport.get_extra_info("sslcontext") else transport.get_extra_info("socket")
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as many bytes as there are room for
        """Where the next bytes belong."""
        return self._unasked if self._answer is None or self._done.done() else self._answer.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        answer = self._answer
        if answer is None or self._done.done():  # nothing was asked
            self.close()
            return
        try:
            answer.advance(nbytes)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            self._done.set_exception(error)
            return
        if answer.is_over:
            self._done.set_result(None)
        elif answer.left:
            self._await(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        self.is_open = False
        if self._answer is not None and not self._done.done():
            try:
                self._answer.end()
            except Exception as error:  # noqa: BLE001 - as above
                error.__cause__ = exc
                self._done.set_exception(error)

    # ---- waiting for enough bytes ----------------------------------------------------------------------------------

    def _await(self, answer: RangeAnswer) -> None:
        self._set_low_water(min(answer.left, _WAKE_BYTES))
        if self._timer is None and self._socket is not None:
            self._left_before = answer.left
            self._timer = self._loop.call_later(_PATIENCE_S, self._lose_patience, answer)

    def _lose_patience(self, answer: RangeAnswer) -> None:
        if answer.left == self._left_before:
            self._set_low_water(1)
        self._left_before = answer.left
        self._timer = self._loop.call_later(_PATIENCE_S, self._lose_patience, answer)

    def _rest(self) -> None:
        self._set_low_water(1)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_low_water(self, num_bytes: int) -> None:
        if self._socket is not None and num_bytes != self._low_water and self.is_open:
            self._low_water = num_bytes
            with contextlib.suppress(OSError):  # a system that knows no such thing wakes more often
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)
