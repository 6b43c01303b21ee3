"""A `Channel` carries messages over one connected unix socket, in frames of a 4-byte length and a msgpack payload.

A descriptor rides with the first byte of its frame (SCM_RIGHTS). The kernel keeps descriptors in order, and which
messages carry one is part of their type, so the receiver pairs them by counting.

Two ways of use, never both on one channel: blocking `send`/`receive` (workers, the consumer), and `queue`/`flush`/
`receive_available` on a non-blocking socket inside a selector loop (the coordinator, which must never wait for one
peer).

What is no frame, or no message, ends the conversation for good: a peer that has lost its place in the stream cannot be
trusted to find it again. A frame takes memory as its bytes arrive, not when its length is announced.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from array import array
from collections import deque
from collections.abc import Iterator

from o41td.workers.message_codec import decode_message, encode_message
from o41td.workers.messages import Message

__all__ = ["Channel", "ChannelClosed", "NotOurProtocol", "channel_pair", "peer_pid", "peer_uid"]

_LENGTH = struct.Struct("<I")
_MAX_FRAME_BYTES = 1 << 30
_RECEIVE_BYTES = 1 << 18
_MAX_DESCRIPTORS = 4


class ChannelClosed(ConnectionError):
    """The other end is gone."""


class NotOurProtocol(ChannelClosed):
    """The other end sent what is no frame or no message, which ends the conversation as well."""


class Channel:
    """One end of a conversation.

    Called by: one receiving thread; `send` may be called from several threads.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        blocking: bool,
        max_frame_bytes: int = _MAX_FRAME_BYTES,
        takes_descriptors: bool = True,
    ) -> None:
        """Takes over `connection`; closing the channel closes it.

        `max_frame_bytes` is the largest payload that is taken from the peer. Where not `takes_descriptors`, the kernel
        closes what the peer sends, so it cannot fill our table.
        """
        self._socket = connection
        self._max_frame_bytes = max_frame_bytes
        self._takes_descriptors = takes_descriptors
        self._broken: str | None = None  # what the peer sent that was no message
        self._socket.setblocking(blocking)
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._send_lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        """Returns the socket's descriptor, for selectors."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether `flush` has something left to do."""
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that are queued because the peer does not read."""
        return sum(len(frame) for frame, _ in self._unsent)

    @property
    def peer_pid(self) -> int:
        """The process that connected, or made the pair, as the kernel knows it."""
        return peer_pid(self._socket)

    def hang_up(self) -> None:
        """Ends the conversation for both sides, who notice when they read next; `close` is still to be called."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed its end, or died; what it sent before may not have been read yet."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLHUP)
        return any(events & select.POLLHUP for _, events in poll.poll(0))

    # ---- sending ---------------------------------------------------------------------------------------------------

    def send(self, *messages: Message, descriptor: int | None = None) -> None:
        """Sends messages whole, and wakes the peer once for them; `descriptor` is the first one's.

        Blocks: while the peer does not read and the socket's buffer is full.

        Raises:
            ChannelClosed: The peer is gone.
        """
        frames = memoryview(b"".join(map(_frame_of, messages)))
        with self._send_lock:
            try:
                while frames:
                    frames = frames[self._send_some(frames, descriptor) :]
                    descriptor = None
            except OSError as error:
                raise ChannelClosed(str(error)) from error

    def queue(self, message: Message, descriptor: int | None = None) -> None:
        """Puts a message behind those not sent yet; the descriptor must stay open until it is flushed."""
        self._unsent.append((memoryview(_frame_of(message)), descriptor))

    def flush(self) -> None:
        """Sends what the socket takes without waiting.

        Raises:
            ChannelClosed: The peer is gone.
        """
        while self._unsent:
            frame, descriptor = self._unsent[0]
            try:
                sent = self._send_some(frame, descriptor)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if sent == len(frame):
                self._unsent.popleft()
            else:
                self._unsent[0] = (frame[sent:], None)

    def _send_some(self, frame: memoryview, descriptor: int | None) -> int:
        if descriptor is None:
            return self._socket.send(frame, socket.MSG_NOSIGNAL)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        return self._socket.sendmsg([frame], rights, socket.MSG_NOSIGNAL)

    # ---- receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float | None = None) -> Message:
        """Returns the next message.

        Blocks: until one is there or the peer is gone; the peer's death closes the socket, so this cannot hang on a
        corpse. A peer that was stopped is silent: `timeout_s` is how long at most.

        Raises:
            ChannelClosed: The peer is gone.
            TimeoutError: It has said nothing for `timeout_s`.
        """
        while True:
            for message in self._parsed(limit=1):
                return message
            if timeout_s is not None and not self._can_receive(timeout_s):
                raise TimeoutError(f"no message for {timeout_s:g} s")
            self._receive_some()

    def _can_receive(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def received(self) -> Iterator[Message]:
        """Yields whole messages that are here already, for which no selector would wake; does not ask the socket."""
        yield from self._parsed()

    def receive_available(self, *, fully: bool = False) -> Iterator[Message]:
        """Yields what has arrived, without waiting.

        Where not `fully`, what is left for a selector to tell of again may stay: asking the socket once more whether
        that was all costs as much as a small message.

        Raises:
            ChannelClosed: The peer is gone; everything that it sent was yielded before.
        """
        may_have_more = True
        while may_have_more or fully:
            try:
                may_have_more = self._receive_some() == _RECEIVE_BYTES
            except BlockingIOError:
                yield from self._parsed()
                return
            except ChannelClosed:
                yield from self._parsed()
                raise
            yield from self._parsed()

    def take_descriptor(self) -> int:
        """Returns the descriptor that came with the message just received; the caller closes it.

        Raises:
            ChannelClosed: None came (the peer's descriptor table was full, or ours is).
        """
        if not self._descriptors:
            raise ChannelClosed(
                "a message came without its descriptor: is the limit on open files reached (ulimit -n)?"
            )
        return self._descriptors.popleft()

    def _receive_some(self) -> int:
        """Waits on a blocking socket; returns how many bytes came."""
        if self._broken is not None:
            raise NotOurProtocol(self._broken)
        try:
            data = self._receive_with_descriptors() if self._takes_descriptors else self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("the other end closed the connection")
        self._received += data
        return len(data)

    def _receive_with_descriptors(self) -> bytes:
        data, ancillary, _flags, _address = self._socket.recvmsg(
            _RECEIVE_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self._descriptors.extend(numbers)
        if len(self._descriptors) > _MAX_DESCRIPTORS:
            raise self._break_off("more descriptors came than messages that carry one")
        return data

    def _parsed(self, limit: int = -1) -> Iterator[Message]:
        """Yields complete frames and keeps the rest; a frame leaves the buffer before it is yielded."""
        while limit != 0 and len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > self._max_frame_bytes:
                raise self._break_off(f"a frame of {size} bytes was announced, of at most {self._max_frame_bytes}")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            payload = bytes(memoryview(self._received)[_LENGTH.size : end])
            del self._received[:end]
            try:
                message = decode_message(payload)
            except ValueError as error:
                raise self._break_off(str(error)) from None
            limit -= 1
            yield message

    def _break_off(self, reason: str) -> NotOurProtocol:
        """Believes nothing more of what the peer sends or has sent; returns the error to raise."""
        self._broken = reason
        self._received.clear()
        self._close_descriptors()
        return NotOurProtocol(reason)

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def close(self) -> None:
        """Closes the socket and every descriptor not taken; idempotent."""
        if not self._closed:
            self._closed = True
            self._socket.close()
            self._close_descriptors()


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected, non-inheritable stream sockets with roomy buffers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, theirs


def peer_uid(connection: socket.socket) -> int:
    """Returns the user at the other end of a connected unix socket, as the kernel knows it."""
    return _credentials_of(connection)[1]


def peer_pid(connection: socket.socket) -> int:
    """Returns the process at the other end of a connected unix socket, as the kernel knows it."""
    return _credentials_of(connection)[0]


def _credentials_of(connection: socket.socket) -> tuple[int, int]:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", credentials)
    return int(pid), int(uid)


def _frame_of(message: Message) -> bytes:
    payload = encode_message(message)
    return _LENGTH.pack(len(payload)) + payload
