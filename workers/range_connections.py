"""Connections to the servers that ranges come from, kept from one request to the next."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress

from yarl import URL

from o41td.workers.range_answer import Head, RangeAnswer, StaleConnectionError
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connection import RangeConnection
from o41td.workers.retry import FaultKind, StoreFault

__all__ = ["RangeConnections"]

_CONNECT_S = 15.0
_NEXT_ADDRESS_S = 0.25
_KEPT_S = 15.0
"""A connection that was not used for longer may be closed at its other end by now."""
_SENDABLE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

_Server = tuple[bool, str, int]  # over TLS, host, port


class RangeConnections:
    """Asks servers for ranges over connections of its own.

    Called by: the storage thread's loop.
    """

    def __init__(self, trusted: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        """Is connected to none.

        Args:
            trusted: Returns the certificates that are trusted; called for the first server that has one.
        """
        self._trusted = trusted
        self._context: ssl.SSLContext | None = None
        self._kept: defaultdict[_Server, list[RangeConnection]] = defaultdict(list)
        self._used: set[RangeConnection] = set()

    async def get(
        self,
        url: URL,
        headers: Mapping[str, str],
        into: RangeBuffer,
        *,
        accept: Callable[[Head], None],
        refuse: Callable[[Head, str], Exception],
    ) -> None:
        """Makes one GET request, of which the body is a range; the arguments are those of `RangeAnswer`.

        Raises:
            NotPlainError: An HTTP library has to ask.
            StoreFault: The answer is another one.
            OSError: There is no connection to the server.
        """
        request = _request_of(url, headers)
        server = (url.scheme == "https", url.raw_host or "", url.port or 0)
        while (kept := self._kept_to(server)) is not None:
            with suppress(StaleConnectionError):
                await self._ask(server, kept, request, RangeAnswer(into, accept=accept, refuse=refuse))
                return
        try:
            new = await self._connected_to(server)
            await self._ask(server, new, request, RangeAnswer(into, accept=accept, refuse=refuse))
        except StaleConnectionError as error:
            raise StoreFault(FaultKind.BROKEN, str(error)) from error

    async def close(self) -> None:
        """Closes all of them."""
        for connection in [*self._used, *(each for kept in self._kept.values() for each in kept)]:
            connection.close()
        self._kept.clear()

    async def _ask(self, server: _Server, connection: RangeConnection, request: bytes, answer: RangeAnswer) -> None:
        self._used.add(connection)
        try:
            await connection.ask(request, answer)
        finally:
            self._used.discard(connection)
            if connection.is_open:
                self._kept[server].append(connection)

    def _kept_to(self, server: _Server) -> RangeConnection | None:
        """The connection to a server that was used last, of those that may still be good."""
        kept = self._kept[server]
        while kept:
            connection = kept.pop()
            if connection.is_open and asyncio.get_running_loop().time() - connection.idle_since_s < _KEPT_S:
                return connection
            connection.close()
        return None

    async def _connected_to(self, server: _Server) -> RangeConnection:
        has_tls, host, port = server
        if has_tls and self._context is None:
            self._context = self._trusted()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _transport, connection = await asyncio.get_running_loop().create_connection(
                    RangeConnection,
                    host,
                    port,
                    ssl=self._context if has_tls else None,
                    happy_eyeballs_delay=_NEXT_ADDRESS_S,
                )
        except ssl.SSLCertVerificationError as error:
            raise StoreFault(FaultKind.REFUSED, f"the certificate of {host} is not trusted: {error}") from error
        except TimeoutError as error:
            raise StoreFault(FaultKind.BROKEN, f"no connection to {host} within {_CONNECT_S:.0f} s") from error
        return connection


def _request_of(url: URL, headers: Mapping[str, str]) -> bytes:
    """A GET request.

    Raises:
        StoreFault: A header holds what none may hold; an etag that somebody made up, for one.
    """
    target = url.raw_path_qs
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if not (re.fullmatch(r"[\x21-\x7e]+", target) and all(map(_SENDABLE.fullmatch, lines))):
        raise StoreFault(FaultKind.REFUSED, "the request would hold characters that HTTP has no place for")
    told = [f"GET {target} HTTP/1.1", f"Host: {url.host_port_subcomponent}", "User-Agent: o41td", "Accept: */*", *lines]
    return ("\r\n".join(told) + "\r\n\r\n").encode("latin-1")
