"""A worker: takes orders from the coordinator, decodes blocks into slots, and leaves when its socket closes.

Two threads. The listener takes messages off the socket, so that the coordinator's death is noticed even while a read
hangs: then it ends the process at once, whatever the other thread does. The other thread, the main one, does the work
in the order in which it came; before it decodes a block it asks the kernel to read ahead what the next order needs.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import holds_records
from o41td.errors import O41Error, error_to_record
from o41td.fields import FieldPlan
from o41td.order.leaving import LeavingOrder
from o41td.projection import PlanMemory
from o41td.shm.layout import ArenaLayout
from o41td.shm.segment import MappedArena, map_arena
from o41td.workers.channel import Channel, ChannelClosed
from o41td.workers.footer import read_footer
from o41td.workers.messages import (
    AttachArena,
    BlockDecoded,
    BlockFailed,
    CountGoesOn,
    DecodeBlock,
    FooterFailed,
    FooterRead,
    Message,
    PieceBegun,
    ReadFooter,
    WorkerReady,
    carries_descriptor,
)
from o41td.workers.parquet import ReaderPool, ShardReader
from o41td.workers.project import RefusedRows

if TYPE_CHECKING:
    from o41td.workers.record_reader import RecordReader

__all__ = ["Worker"]

_READ_AHEAD_PIECES = 4
_MAX_BAD_RECORDS = 16
_TELL_EVERY_S = 0.5


@dataclass(slots=True)
class _Work:
    """What one block has cost so far."""

    rows: int = 0
    read_bytes: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0


class Worker:
    """One worker process's work.

    Called by: the worker's main thread.
    """

    def __init__(self, channel: Channel) -> None:
        """Speaks over `channel`."""
        self._channel = channel
        self._orders: queue.SimpleQueue[tuple[Message, int | None]] = queue.SimpleQueue()
        self._looked_at: deque[tuple[Message, int | None]] = deque()
        self._arena: MappedArena | None = None
        self._regions: dict[str, NDArray[Any]] = {}
        self._block_rows = 0
        self._fields: list[tuple[FieldPlan, ...]] = []
        self._source_names: list[str] = []
        self._encodings: list[str] = []
        self._readers = ReaderPool()
        self._plans = PlanMemory()

    def run(self) -> None:
        """Works until the process is ended by the listener.

        Blocks: for ever.
        """
        threading.Thread(target=self._listen, name="o41td-listener", daemon=True).start()
        self._channel.send(WorkerReady(os.getpid()))
        while True:
            message, descriptor = self._looked_at.popleft() if self._looked_at else self._orders.get()
            match message:
                case ReadFooter():
                    self._answer(self._footer_of(message))
                case AttachArena():
                    assert descriptor is not None
                    self._attach(message, descriptor)
                case DecodeBlock():
                    self._read_ahead()
                    self._answer(self._decoded(message))
                case _:
                    raise AssertionError(f"{type(message).__name__} is no order for a worker")

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
                descriptor = self._channel.take_descriptor() if carries_descriptor(message) else None
            except ChannelClosed:
                os._exit(0)
            self._orders.put((message, descriptor))

    def _answer(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed:
            os._exit(0)

    def _footer_of(self, order: ReadFooter) -> Message:
        fields = [FieldPlan.from_record(record) for record in order.fields]
        if holds_records(order.encoding):
            return self._count_of(order, fields)
        try:
            footer = read_footer(None, order.uri, fields, source=order.source, plans=self._plans)
        except O41Error as error:
            return FooterFailed(order.task_id, error_to_record(error))
        return FooterRead(
            task_id=order.task_id,
            rows=footer.rows.astype("<i8").tobytes(),
            decoded_bytes=footer.decoded_bytes.astype("<i8").tobytes(),
            decoding_bytes=footer.decoding_bytes.astype("<i8").tobytes(),
            compressed_bytes=footer.compressed_bytes.astype("<i8").tobytes(),
            footer_bytes=footer.footer_bytes,
            size_bytes=footer.size_bytes,
            mtime_ns=footer.mtime_ns,
            version=footer.version,
        )

    def _count_of(self, order: ReadFooter, fields: list[FieldPlan]) -> Message:
        from o41td.workers.record_count import count_records  # it brings msgspec, isal and zstandard

        told_s = time.monotonic()

        def tell() -> None:
            nonlocal told_s
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                self._answer(CountGoesOn(order.task_id))

        try:
            count = count_records(
                order.uri,
                order.encoding,
                fields,
                known_rows=order.known_rows,
                source=order.source,
                max_row_group_bytes=order.max_row_group_bytes,
                on_progress=tell,
            )
        except O41Error as error:
            return FooterFailed(order.task_id, error_to_record(error))
        rows, decoded, compressed = (
            np.array([number] if count.num_rows else [], "<i8").tobytes()
            for number in (count.num_rows, count.text_bytes, count.size_bytes)
        )
        return FooterRead(
            task_id=order.task_id,
            rows=rows,
            decoded_bytes=decoded,
            decoding_bytes=decoded,
            compressed_bytes=compressed,
            footer_bytes=0,
            size_bytes=count.size_bytes,
            mtime_ns=count.mtime_ns,
            version=count.version,
        )

    def _attach(self, order: AttachArena, descriptor: int) -> None:
        layout = ArenaLayout.from_record(order.layout)
        try:
            self._arena = map_arena(descriptor, layout, writable=True)
        finally:
            os.close(descriptor)
        self._regions = {region.name: self._arena.region(region.name) for region in layout.fields}
        self._block_rows = layout.block_rows
        self._fields = [tuple(FieldPlan.from_record(record) for record in source) for source in order.sources]
        self._source_names = list(order.source_names)
        self._encodings = list(order.encodings)
        self._readers = ReaderPool(max_row_group_bytes=order.max_row_group_bytes)
        threading.Thread(target=self._populate, args=(self._arena,), name="o41td-populate", daemon=True).start()

    def _populate(self, arena: MappedArena) -> None:
        """Maps the arena's pages ahead of use, lowest slot first: slots are handed out in that order."""
        with contextlib.suppress(OSError):
            arena.populate(threading.Event())

    def _read_ahead(self) -> None:
        """Starts the reading of the next block, if there is an order for one."""
        with contextlib.suppress(queue.Empty):
            while not self._looked_at:
                self._looked_at.append(self._orders.get_nowait())
        for order, _descriptor in self._looked_at:
            if isinstance(order, DecodeBlock):
                for piece in order.pieces[:_READ_AHEAD_PIECES]:
                    with contextlib.suppress(O41Error):  # it is told when the block's own turn comes
                        self._reader(order.source, piece).will_need(piece[5])
                return

    def _reader(self, source: int, piece: list[Any]) -> ShardReader | RecordReader:
        uri, size_bytes, mtime_ns, num_rows = piece[1:5]
        return self._readers.reader(
            source,
            uri,
            self._fields[source],
            encoding=self._encodings[source],
            source=self._source_names[source],
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            num_rows=num_rows,
        )

    def _decoded(self, order: DecodeBlock) -> Message:
        """Decodes a block, piece by piece: what is wrong with one row group is no harm to those packed beside it.

        Raises:
            MemoryError: The system refused memory, which is no fault of the data: another worker may have more luck.
        """
        start = time.perf_counter()
        work = _Work()
        bad: list[tuple[NDArray[np.int64], O41Error]] = []
        places = None if order.leaving is None else LeavingOrder(*order.leaving).places(order.num_rows)
        for piece in order.pieces:
            if order.careful:
                self._answer(PieceBegun(order.block_id, piece[0]))
            bad.extend(self._decode_piece(order, piece, places, work))
        bad_rows = [rows.astype("<i8").tobytes() for rows, _error in bad]
        bad_errors = [error_to_record(error) for _rows, error in bad]
        if bad and work.rows == 0:
            return BlockFailed(order.block_id, bad_rows, bad_errors)
        project_s = time.perf_counter() - start - work.fetch_s - work.decode_s
        return BlockDecoded(
            block_id=order.block_id,
            rows=work.rows,
            read_bytes=work.read_bytes,
            fetch_s=work.fetch_s,
            decode_s=work.decode_s,
            project_s=project_s,
            bad_rows=bad_rows,
            bad_errors=bad_errors,
        )

    def _decode_piece(
        self, order: DecodeBlock, piece: list[Any], places: NDArray[np.int64] | None, work: _Work
    ) -> list[tuple[NDArray[np.int64], O41Error]]:
        """Decodes a piece; returns which rows of the block cannot be had, and why.

        A record that cannot be had is no harm to those behind it, so it goes on there, but not for ever: each time the
        shard is read from its beginning.
        """
        row_start, row_stop, at = piece[-3:]
        bad: list[tuple[NDArray[np.int64], O41Error]] = []
        row = row_start
        while row < row_stop:
            try:
                done, refused, error = self._decode_rows(order, piece, row, places, work)
            except O41Error as failure:
                bad.append((np.arange(at + row - row_start, at + row_stop - row_start), failure))
                break
            if refused is not None:
                bad.append((refused.rows + (at + row - row_start), refused.error))
            row += done
            if error is not None:
                first = min(row, row_stop - 1)  # what is wrong behind a shard's last record is told of that one
                row = row_stop if len(bad) >= _MAX_BAD_RECORDS else first + 1
                bad.append((np.arange(at + first - row_start, at + row - row_start), error))
        return bad

    def _decode_rows(
        self, order: DecodeBlock, piece: list[Any], row_start: int, places: NDArray[np.int64] | None, work: _Work
    ) -> tuple[int, RefusedRows | None, O41Error | None]:
        """Decodes a piece from a row on into the slot.

        Returns:
            How many rows were decoded, which of them do not fit, and why the next one, if there is one, cannot be had.
        """
        _number, uri, _size, _mtime, _rows, group, group_rows, group_bytes, shard_row, first_row, row_stop, at = piece
        begun = time.perf_counter()
        reader = self._reader(order.source, piece)
        opened = time.perf_counter()
        work.fetch_s += opened - begun
        row_stop = min(row_stop, row_start + reader.rows_at_once(group, group_bytes))
        table = reader.read_rows(group, row_start, row_stop, group_rows=group_rows, decoding_bytes=group_bytes)
        work.decode_s += time.perf_counter() - opened
        first, block_row = order.slot * self._block_rows, at + row_start - first_row
        if places is None:
            first += block_row
        else:
            places = places[block_row : block_row + table.num_rows]
        refused = reader.projector.write_fitting(
            table,
            {name: region[first:] for name, region in self._regions.items()},
            places=places,
            row_offset_in_shard=shard_row + row_start,
            row_group=group,
            shard=uri,
            source=self._source_names[order.source],
        )
        work.rows += table.num_rows - (0 if refused is None else len(refused.rows))
        work.read_bytes += table.nbytes
        error: O41Error | None = getattr(table, "error", None)  # decoded records have one, or None; tables do not
        return table.num_rows, refused, error
