"""A worker's way to object stores: every request of it goes through here, on a thread of its own.

    main thread ── result_of(future) ──►┐
    listener ───── start(coroutine) ───►│ the storage thread's loop:  Storage.fetch ── patience, cap, figures
                                        │                                └► ObjectStore ── one request

Bytes are received into the memory they stay in, and a request that fails goes on behind the last of them. The thread
that decodes never runs a loop: it waits for futures, and says again and again that it does, so that nobody takes a
worker whose store is slow for one that hangs.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, NoReturn, TypeVar

from o41td.errors import ChangedDataError, MissingShardError, StorageError
from o41td.workers.object_store import ObjectInfo, ObjectStore, StorageSettings, scheme_of
from o41td.workers.range_buffer import RangeBuffer
from o41td.workers.ranges import ByteRange
from o41td.workers.retry import FaultKind, Patience, StoreFault
from o41td.workers.storage_figures import FETCHING, BlockFigures, StorageFigures

__all__ = ["Storage"]

T = TypeVar("T")

_Attempt = Callable[[ObjectStore, Callable[[int], None]], Awaitable[T]]
"""Tries something at a store once; it says how many bytes have come, each time some do."""

FIRST_BYTE_S = 60.0
"""How long a store may take to begin an answer."""
SILENCE_S = 30.0
"""How long it may send nothing in the middle of one."""
_TIMER_SLACK_S = 1.0
"""Setting a timer anew for each piece of an answer costs more than taking the piece."""
_TELL_EVERY_S = 0.5
_ALIVE_S = 60.0
"""How long the storage thread may take for a word before it is no longer vouched for."""


def open_store(scheme: str, settings: StorageSettings) -> ObjectStore:
    """Returns the store of a protocol. Each imports its library when it is first wanted: s3fs takes 0.7 s.

    Raises:
        StoreFault: There is none.
    """
    if scheme in ("s3", "s3a"):
        from o41td.workers.s3_store import S3Store

        return S3Store(settings)
    if scheme in ("http", "https"):
        from o41td.workers.http_store import HttpStore

        return HttpStore(settings)
    from o41td.workers.fsspec_store import FsspecStore

    return FsspecStore(scheme, settings)


class _Connection:
    """A store in use: closed when it was given up and its last request is over."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.num_users = 0
        self.is_given_up = False

    async def __aenter__(self) -> ObjectStore:
        self.num_users += 1
        return self.store

    async def __aexit__(self, *_: object) -> None:
        self.num_users -= 1
        await self._close_if_idle()

    async def give_up(self) -> None:
        self.is_given_up = True
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        if self.is_given_up and not self.num_users:
            await self.store.close()


class Storage:
    """Reads objects; patient with what passes, and quick to say what does not."""

    def __init__(
        self,
        settings: StorageSettings,
        *,
        on_wait: Callable[[], None] = lambda: None,
        opener: Callable[[str, StorageSettings], ObjectStore] = open_store,
    ) -> None:
        """Starts the thread; no store is connected to yet.

        Args:
            settings: How to reach stores.
            on_wait: Called twice a second by a thread that waits in `result_of`.
            opener: Makes stores.
        """
        self.settings = settings
        self.figures = StorageFigures()
        self.waited_s = 0.0
        self._answered_s = 0.0
        self._on_wait = on_wait
        self._opener = opener
        self._connections: dict[str, _Connection] = {}
        self._in_flight = asyncio.Semaphore(settings.max_requests_in_flight)
        self._draw = random.Random().random
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="o41td-storage", daemon=True)
        self._thread.start()

    # ---- for other threads -----------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Has the storage thread do something; returns at once."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def result_of(self, future: Future[T]) -> T:
        """Returns what a future brings, or raises it.

        Blocks: until the store answers, or was waited for long enough; `on_wait` is called meanwhile, as long as the
        storage thread lives.
        """
        if not future.done():
            began_s = self._answered_s = time.monotonic()
            while not wait([future], timeout=_TELL_EVERY_S).done:
                self.loop.call_soon_threadsafe(self._note_alive)
                if time.monotonic() - self._answered_s < _ALIVE_S:
                    self._on_wait()
            self.waited_s += time.monotonic() - began_s
        return future.result()

    def _note_alive(self) -> None:
        self._answered_s = time.monotonic()

    def close(self) -> None:
        """Closes connections and ends the thread.

        Blocks: a moment.
        """
        self.start(self._close()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        for connection in self._connections.values():
            await connection.store.close()
        self._connections.clear()

    # ---- on the loop -----------------------------------------------------------------------------------------------

    async def stat(self, uri: str) -> ObjectInfo:
        """Looks at an object.

        Raises:
            MissingShardError: There is none.
            StorageError: The store does not say.
        """
        return await self._persist(uri, lambda store, _on_bytes: store.stat(uri))

    async def listed(self, prefix_uri: str, most: int | None = None) -> list[tuple[str, ObjectInfo]]:
        """Lists the objects whose URI begins so: every one, or in sorted order about `most` of them.

        Raises:
            MissingShardError: There is no such bucket.
            StorageError: The store does not say, or lists nothing.
        """
        return await self._persist(prefix_uri, lambda store, _on_bytes: store.listed(prefix_uri, most))

    async def fetch(self, uri: str, wanted: ByteRange, info: ObjectInfo) -> memoryview:
        """Reads a range of an object.

        Raises:
            MissingShardError: It is gone.
            ChangedDataError: It is not what `info` says any more.
            StorageError: The store does not give it.
        """
        buffer = RangeBuffer(wanted)

        async def attempt(store: ObjectStore, on_bytes: Callable[[int], None]) -> memoryview:
            buffer.on_bytes = on_bytes
            lacking = buffer.rest.num_bytes
            if lacking:
                for figures in self._figures():
                    figures.requested_bytes += lacking
                await store.read(uri, info, buffer)
            if short := buffer.rest.num_bytes:
                raise StoreFault(FaultKind.BROKEN, f"the answer ended {short} bytes early")
            return buffer.data

        return await self._persist(uri, attempt)

    async def credentials_left_s(self, uri: str) -> float | None:
        """For how many seconds the credentials that an object is read with are good; None where they do not tell."""
        async with self._connection(uri) as store:
            return store.credentials_left_s()

    async def _persist(self, uri: str, attempt: _Attempt[T]) -> T:
        """Tries until it is done, or there is no use in trying."""
        patience = Patience(self.settings.give_up_after_s, now_s=self.loop.time(), draw=self._draw)
        while True:
            connection: _Connection | None = None
            try:
                async with self._in_flight:
                    connection = self._connection(uri)
                    async with connection as store:
                        return await self._tried(store, attempt, patience)
            except StoreFault as fault:
                pause_s = patience.pause_s(fault.kind, self.loop.time())
                if fault.kind is not FaultKind.MISSING:  # what is looked for need not be there
                    self.figures.last_fault = f"{uri}: {fault.answer}"
                if fault.kind in (FaultKind.EXPIRED, FaultKind.DENIED) and patience.may_renew():
                    await self._give_up(uri, connection)
                    pause_s = 0.0
                if pause_s is None:
                    _raise_failure(uri, fault, patience, self.loop.time())
            for figures in self._figures():
                figures.retries += 1
            await asyncio.sleep(pause_s)

    def _figures(self) -> tuple[StorageFigures | BlockFigures, ...]:
        """Where what is done now is counted."""
        block = FETCHING.get()
        return (self.figures,) if block is None else (self.figures, block)

    async def _tried(self, store: ObjectStore, attempt: _Attempt[T], patience: Patience) -> T:
        patience.attempts += 1
        every = self._figures()
        for figures in every:
            figures.requests += 1
        self.figures.in_flight += 1
        try:
            async with asyncio.timeout(FIRST_BYTE_S) as timer:

                def on_bytes(count: int) -> None:
                    now_s = self.loop.time()
                    for figures in every:
                        figures.received_bytes += count
                    patience.note_progress(now_s)
                    if abs(now_s + SILENCE_S - (timer.when() or 0.0)) > _TIMER_SLACK_S:
                        timer.reschedule(now_s + SILENCE_S)

                return await attempt(store, on_bytes)
        except TimeoutError as error:
            raise StoreFault(FaultKind.BROKEN, "the store was silent for too long") from error
        except StoreFault:
            raise
        except Exception as error:
            raise store.fault_of(error) from error
        finally:
            self.figures.in_flight -= 1

    def _connection(self, uri: str) -> _Connection:
        scheme = scheme_of(uri)
        connection = self._connections.get(scheme)
        if connection is None:
            connection = self._connections[scheme] = _Connection(self._opener(scheme, self.settings))
        return connection

    async def _give_up(self, uri: str, connection: _Connection | None) -> None:
        """Has the next request connect anew, with credentials read anew, unless one before did that already."""
        if connection is not None and self._connections.get(scheme_of(uri)) is connection:
            del self._connections[scheme_of(uri)]
            self.figures.renewals += 1
            await connection.give_up()


_TOLD = {
    FaultKind.EXPIRED: ("the credentials have expired", "Give new ones, or let `ambient_credentials` find them"),
    FaultKind.DENIED: ("access is denied", "Check the keys of the StorageConfig, and what they may read"),
    FaultKind.WHOLE: ("the store serves no ranges", "Copy the shards to a store that does"),
    FaultKind.REFUSED: ("the store cannot serve this request", "Check the URI and the StorageConfig"),
}
"""What is told of failures of a kind, and what to do about them."""


def _raise_failure(uri: str, fault: StoreFault, patience: Patience, now_s: float) -> NoReturn:
    """Raises the error that tells a user of a request's end."""
    tries = f"{patience.attempts} attempt{'' if patience.attempts == 1 else 's'}; the last answer: "
    said = (tries if patience.attempts else "") + fault.answer
    if fault.kind is FaultKind.MISSING:
        raise MissingShardError(f"the store has no such object ({said})", shard=uri) from fault
    if fault.kind is FaultKind.CHANGED:
        raise ChangedDataError(f"the shard changed after it was indexed ({said})", shard=uri) from fault
    detail, advice = _TOLD.get(fault.kind) or (
        f"the store did not serve this object for {patience.waited_s(now_s):.0f} s",
        "Check that the store is up and can be reached from here; a larger give_up_after_s waits longer",
    )
    raise StorageError(f"{detail} ({said})", uri=uri, advice=advice) from fault
