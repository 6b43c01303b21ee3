"""Connections that bring ranges, against a server of this process: kept, found stale, slow, over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import Awaitable, Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from o41td.workers.object_store import fault_of_status
from o41td.workers.range_answer import Head
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.range_connections import RangeConnections
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, StoreFault

BODY = bytes(range(251)) * 9000  # above what a socket is asked to hold back
HEAD = f"HTTP/1.1 206 x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def fetched(
    connections: RangeConnections, url: str, into: RangeBuffer | None = None, **headers: str
) -> RangeBuffer:
    """One range, whatever its head says."""
    buffer = into or RangeBuffer(ByteRange(0, len(BODY)))
    target = URL(url, encoded=True)
    await connections.get(target, headers, buffer, accept=lambda _head: None, refuse=fault_of_status_alone)
    return buffer


def fault_of_status_alone(head: Head, _text: str) -> StoreFault:
    """What a status means."""
    return fault_of_status(head.status, "")


def run(
    talk: Talk, work: Callable[[RangeConnections, str], Awaitable[None]], *, tls: ssl.SSLContext | None = None
) -> None:
    """Runs `work` with connections and the URL of a server that says what `talk` says; both end as it does."""

    async def both() -> None:
        talks = set()

        async def until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.add(asyncio.current_task())
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await talk(reader, writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(until_it_ends, "127.0.0.1", 0, ssl=tls)
        async with server:
            port = server.sockets[0].getsockname()[1]
            connections = RangeConnections()
            await asyncio.wait_for(work(connections, f"http{'s' if tls else ''}://127.0.0.1:{port}/a%20b?c=%2F#d"), 60)
            await connections.close()
            await asyncio.gather(*talks)

    asyncio.run(both())


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request of a connection with the body."""
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(HEAD + BODY)


def test_connections_are_kept():
    """Requests one after the other come over one connection; side by side, over as many; the target is as it was."""
    asked: list[bytes] = []
    opened = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while request := await reader.readuntil(b"\r\n\r\n"):
            asked.append(request)
            writer.write(HEAD + BODY)

    async def work(connections: RangeConnections, url: str) -> None:
        for _ in range(3):
            assert bytes((await fetched(connections, url, Range="bytes=0-9")).data) == BODY
        assert opened == 1
        for buffer in await asyncio.gather(*(fetched(connections, url) for _ in range(3))):
            assert bytes(buffer.data) == BODY
        assert opened == 3

    run(talk, work)
    first = asked[0].decode().split("\r\n")
    assert first[0] == "GET /a%20b?c=%2F HTTP/1.1"
    assert "Range: bytes=0-9" in first


def test_a_kept_connection_that_was_closed_is_not_a_failure():
    """A server that closes after each answer without a word, or at the next request, is asked over a new connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + BODY)
        await reader.read(1)
        writer.transport.abort()

    async def work(connections: RangeConnections, url: str) -> None:
        for _ in range(3):
            assert bytes((await fetched(connections, url)).data) == BODY

    run(talk, work)


def test_a_server_that_never_answers_is_a_failure():
    """A new connection that ends without an answer is a fault that passes."""

    async def talk(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        pass

    async def work(connections: RangeConnections, url: str) -> None:
        with pytest.raises(StoreFault) as caught:
            await fetched(connections, url)
        assert caught.value.kind is FaultKind.BROKEN

    run(talk, work)


def test_few_bytes_are_taken_though_more_are_waited_for():
    """Bytes of a server that pauses in the midst are received before it goes on."""
    buffer = RangeBuffer(ByteRange(0, len(BODY)))
    half = len(BODY) // 2 + 1234
    has_half = asyncio.Event()
    buffer.on_bytes = lambda _count: has_half.set() if buffer.num_received >= half else None

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + BODY[:half])
        await has_half.wait()
        writer.write(BODY[half:])

    async def work(connections: RangeConnections, url: str) -> None:
        await fetched(connections, url, buffer)
        assert bytes(buffer.data) == BODY

    run(talk, work)


def test_who_gives_up_leaves_nothing_behind():
    """A request that is cancelled in the midst of its answer closes its connection."""
    buffer = RangeBuffer(ByteRange(0, len(BODY)))
    has_begun = asyncio.Event()
    buffer.on_bytes = lambda _count: has_begun.set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + BODY[:1000])
        assert await reader.read() == b""

    async def work(connections: RangeConnections, url: str) -> None:
        task = asyncio.ensure_future(fetched(connections, url, buffer))
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(talk, work)


def test_an_etag_cannot_smuggle_a_header_in():
    """Text with a line break in it is refused before anything is sent."""

    async def work(connections: RangeConnections, url: str) -> None:
        with pytest.raises(StoreFault, match="no place") as caught:
            await fetched(connections, url, **{"If-Match": '"x"\r\nX: y'})
        assert caught.value.kind is FaultKind.REFUSED

    run(answer_all, work)


def test_over_tls(tmp_path):
    """The same bytes come over TLS; a certificate that is not trusted is no fault that passes."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = dt.datetime.now(dt.UTC)
    own = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "cert.pem"
    pem.write_bytes(
        own.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pem)

    async def work(connections: RangeConnections, url: str) -> None:
        with pytest.raises(StoreFault, match="certificate") as caught:
            await fetched(connections, url)
        assert caught.value.kind is FaultKind.REFUSED
        trusting = RangeConnections(lambda: ssl.create_default_context(cafile=pem))
        for _ in range(2):
            assert bytes((await fetched(trusting, url)).data) == BODY
        await trusting.close()

    run(answer_all, work, tls=tls)
