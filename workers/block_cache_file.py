"""One file of the block cache: the decoded rows of a unit, in parts that are read and checked one by one.

    part 0 │ part 1 │ … │ index (msgpack) │ length of the index, its checksum, magic

A part is some rows: an Arrow IPC stream for each of its tables, end to end, uncompressed, so that nothing is decoded
when it is read. Of Parquet rows there is one table, of records one for each of their layers.

Parts are read into memory that is ours and checked there, not mapped: a mapped file that somebody cuts short, or whose
disk fails, is a SIGBUS at the first touch, however well it was checked before. Measured on token lists in the page
cache (µs a row of 3.4 KB and core): 0.4 read and checked where it is mapped, 0.8 where it is copied, of 4 to 5 with the
projection. A part costs a third of a millisecond whatever its size: 8.4 MiB of token lists take 7.8, 6.8 and 5.8 ms of
CPU from the page cache to the slot in parts of 2, 4 and 8 MiB, and 9 to 16 in such as a core's own cache would hold.

The checksum is CRC-32 as isal computes it, 9 GB/s; zlib's takes four times as long, BLAKE2b fifteen times. It tells of
accidents. Nothing here keeps out somebody who may write into the folder.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import pyarrow as pa
from isal import isal_zlib

__all__ = ["BrokenUnit", "CachedUnit", "DecodedPart", "cut_parts", "parts_of", "write_unit"]

PART_BYTES = 4 << 20
"""What a part's rows take, about; a row that takes more is a part of its own."""

_MAGIC = b"o41td\x00b1"
_END = struct.Struct("<II8s")
_TAIL_BYTES = 4 << 10

DecodedPart = tuple[int, list[Any]]
"""Consecutive decoded rows: how many, and a `pyarrow.Table` for each layer of fields."""


class BrokenUnit(Exception):
    """A cached file is not what was written: damaged, cut short, or another one's."""


@dataclass(frozen=True, slots=True)
class _Part:
    rows: int
    offset: int
    length: int
    checksum: int


def parts_of(table: Any) -> list[DecodedPart]:
    """Cuts a table into parts of about `PART_BYTES`, without the schema's metadata; nothing is copied."""
    table = table.replace_schema_metadata(None)
    num_rows = table.num_rows
    part_rows = max(1, num_rows * PART_BYTES // max(1, table.nbytes))
    slices = [table.slice(row, part_rows) for row in range(0, num_rows, part_rows)]
    return [(part.num_rows, [part]) for part in slices]


def cut_parts(parts: Iterable[DecodedPart], row_start: int, row_stop: int) -> Iterator[DecodedPart]:
    """Yields rows [row_start, row_stop) of parts that lie end to end from row 0 on; nothing is copied."""
    row = 0
    for num_rows, tables in parts:
        start, stop = max(0, row_start - row), min(num_rows, row_stop - row)
        if start < stop:
            yield stop - start, [table.slice(start, stop - start) for table in tables]
        row += num_rows


def write_unit(descriptor: int, key: bytes, parts: Sequence[DecodedPart]) -> int:
    """Writes a whole file, in pieces as Arrow has them in memory; returns its bytes.

    Raises:
        OSError: The disk does not take it.
        pyarrow.ArrowException: Arrow has no IPC form for some type.
    """
    file = _CheckedFile(descriptor)
    sink = pa.PythonFile(file, mode="w")
    written = []
    for num_rows, tables in parts:
        start = file.begin_part()
        for table in tables:
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        written.append([num_rows, start, file.num_bytes - start, file.checksum])
    index = bytes(msgpack.packb([key, written]))
    file.write(index + _END.pack(len(index), isal_zlib.crc32(index), _MAGIC))
    return file.num_bytes


class CachedUnit:
    """An open file of the cache.

    Args:
        descriptor: The file, which is closed by `close`.
        key: What it must be the rows of.

    Raises:
        BrokenUnit: It is not that, or not whole.
    """

    def __init__(self, descriptor: int, key: bytes) -> None:
        self._descriptor = descriptor
        try:
            self._parts = _index_of(descriptor, key)
        except (OSError, ValueError, TypeError, struct.error, msgpack.UnpackException) as error:
            raise BrokenUnit(str(error)) from error

    def parts(self, row_start: int, row_stop: int) -> Iterator[DecodedPart]:
        """Yields rows [row_start, row_stop) of the unit; a part is read when its turn comes.

        Raises:
            BrokenUnit: A part is not what was written.

        Blocks: On the disk.
        """
        row = 0
        for part in self._parts:
            start, stop = max(0, row_start - row), min(part.rows, row_stop - row)
            if start < stop:
                tables = self._read(part)
                yield stop - start, [table.slice(start, stop - start) for table in tables]
            row += part.rows

    def will_need(self, row_start: int, row_stop: int) -> None:
        """Asks the kernel to read these rows ahead."""
        row, needed = 0, []
        for part in self._parts:
            if row < row_stop and row + part.rows > row_start:
                needed.append(part)
            row += part.rows
        if needed:
            length = needed[-1].offset + needed[-1].length - needed[0].offset
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, needed[0].offset, length, os.POSIX_FADV_WILLNEED)

    def bytes_of(self, row_start: int, row_stop: int) -> int:
        """What is read for rows [row_start, row_stop)."""
        row = num_bytes = 0
        for part in self._parts:
            if row < row_stop and row + part.rows > row_start:
                num_bytes += part.length
            row += part.rows
        return num_bytes

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _read(self, part: _Part) -> list[Any]:
        try:
            buffer = _read_at(self._descriptor, part.offset, part.length)
            if isal_zlib.crc32(buffer) != part.checksum:
                raise BrokenUnit("the checksum of a part differs")
            source = pa.BufferReader(buffer)
            tables = []
            while source.tell() < part.length:
                tables.append(pa.ipc.open_stream(source).read_all())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise BrokenUnit(str(error)) from error
        if any(table.num_rows != part.rows for table in tables):
            raise BrokenUnit("a part has other rows than its index says")
        return tables


class _CheckedFile:
    """What Arrow writes to: counts and checks what goes by, and hands it to the system as it is."""

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.num_bytes = 0
        self.checksum = 0

    def begin_part(self) -> int:
        """Begins a new checksum; returns where the part begins."""
        self.checksum = 0
        return self.num_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.checksum = isal_zlib.crc32(view, self.checksum)
        written = 0
        while written < view.nbytes:
            written += os.write(self._descriptor, view[written:])
        self.num_bytes += written
        return written

    def flush(self) -> None:
        """Has nothing to do: nothing is buffered."""

    def close(self) -> None:
        """Leaves the descriptor to its owner."""


def _index_of(descriptor: int, key: bytes) -> list[_Part]:
    """Reads and checks a file's index."""
    size = os.fstat(descriptor).st_size
    tail_start = max(0, size - _TAIL_BYTES)
    tail = _read_at(descriptor, tail_start, size - tail_start).to_pybytes()
    length, checksum, magic = _END.unpack(tail[-_END.size :])
    if magic != _MAGIC or length > size - _END.size:
        raise ValueError("the end of the file is missing")
    start = size - _END.size - length
    index = tail[-_END.size - length : -_END.size] if start >= tail_start else None
    if index is None:
        index = _read_at(descriptor, start, length).to_pybytes()
    if isal_zlib.crc32(index) != checksum:
        raise ValueError("the checksum of the index differs")
    found_key, records = msgpack.unpackb(index)
    if found_key != key:
        raise ValueError("it is another unit's")
    parts = [_Part(*record) for record in records]
    ends = [0, *(part.offset + part.length for part in parts)]
    if [*(part.offset for part in parts), start] != ends:
        raise ValueError("its parts do not lie end to end")
    return parts


def _read_at(descriptor: int, offset: int, length: int) -> Any:
    """Returns so many bytes of a file as a buffer of Arrow's pool, which reuses memory that is mapped already.

    Raises:
        ValueError: The file ends before.
    """
    buffer = pa.allocate_buffer(length)
    view = memoryview(buffer)
    done = 0
    while done < length:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            raise ValueError("the file is cut short")
        done += count
    return buffer
