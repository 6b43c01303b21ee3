"""A column chunk of lists as a Parquet file of their values alone, which Arrow decodes in half the time.

Arrow makes a repetition and a definition level of each value, and goes through them to find where lists begin and what
is null. Where nothing is null and no list is empty, the definition levels are one run, and the repetition levels one or
two a list, which `list_levels` reads as such. What is left is a column of plain required values. So the pages are taken
apart, and put together again without levels, under a footer that says so; what the values are, in any encoding, is
Arrow's to decode as ever. Measured, of one row group of the benchmark's lists (ms, whole, values alone, and of that
decompression): tokens 10.0, 5.4, 3.6; of docs, tokens 3.1, 1.8, 1.1; images 18.0, 9.5, 8.7.

Whatever is not as expected, a null, a damaged byte, an encoding of levels from 2013, is `NotFlat`: the chunk is read as
ever then, and what is wrong with it is told by whoever told it before.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from o41td.workers.list_levels import are_all, list_starts
from o41td.workers.thrift_compact import BINARY, I32, I64, LIST, STRUCT, read_struct, struct_bytes

__all__ = ["FLAT_TYPES", "FlatChunk", "NotFlat", "flat_chunk"]

_BOOLEAN, _INT32, _INT64, _FLOAT, _DOUBLE = 0, 1, 2, 4, 5
_PHYSICAL_NAMES = {"BOOLEAN": _BOOLEAN, "INT32": _INT32, "INT64": _INT64, "FLOAT": _FLOAT, "DOUBLE": _DOUBLE}
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_RLE = 3
_MARK = b"PAR1"
_SPARE_BYTES = 4096
"""For the footer, and headers that are longer than they were."""
_FEWEST_PAGE_VALUES = 1 << 14
"""A page costs some 40 microseconds of Python here, and Arrow 2 ns a value more."""
_OF_DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)
"""What fields of other kinds than they should be, and pages of other lengths, come to."""
_FIRST_PAGES = 4
"""So many pages are looked at before they are found to be small."""

FLAT_TYPES: dict[Any, tuple[int, int | None]] = {
    pa.bool_(): (_BOOLEAN, None),
    pa.float32(): (_FLOAT, None),
    pa.float64(): (_DOUBLE, None),
    pa.uint8(): (_INT32, 11),
    pa.uint16(): (_INT32, 12),
    pa.uint32(): (_INT32, 13),
    pa.uint64(): (_INT64, 14),
    pa.int8(): (_INT32, 15),
    pa.int16(): (_INT32, 16),
    pa.int32(): (_INT32, None),
    pa.int64(): (_INT64, None),
}
"""Arrow's types of values that are decoded so: their physical type in Parquet, and their converted one."""

_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd"}


class NotFlat(Exception):
    """The chunk has to be decoded with its levels."""


@dataclass(frozen=True, slots=True)
class FlatChunk:
    """A chunk's values as a Parquet file (a `pyarrow.Buffer`) of one required column; where lists begin: int64."""

    file: Any
    starts: NDArray[np.int64]


def flat_chunk(chunk: memoryview, column: Any, value_type: Any, *, max_definition_level: int) -> FlatChunk:
    """Returns a column chunk of lists, of one level, without its levels.

    Args:
        chunk: Its bytes in the file.
        column: What the footer says of it, a `pyarrow.parquet.ColumnChunkMetaData`.
        value_type: The Arrow type of the values, of `FLAT_TYPES`.
        max_definition_level: That of a value that is there.

    Raises:
        NotFlat: Something is null or empty, damaged, or written in a way that is not known here.
    """
    physical, _converted = FLAT_TYPES[value_type]
    if _PHYSICAL_NAMES.get(column.physical_type) != physical or column.compression not in _CODECS:
        raise NotFlat(f"{column.physical_type}, {column.compression}")
    codec = _CODECS[column.compression]
    try:
        pages = _Pages(
            codec, max_definition_level, largest=column.total_uncompressed_size, most_values=column.num_values
        )
        at = 0
        while pages.num_values < column.num_values:
            at = pages.take(chunk, at)
    except _OF_DAMAGE as error:
        raise NotFlat(str(error)) from None
    if pages.num_values != column.num_values:
        raise NotFlat(f"{pages.num_values} values of {column.num_values}")
    starts = np.concatenate(pages.starts) if pages.starts else np.empty(0, np.int64)
    if not len(starts) or starts[0]:
        raise NotFlat("values before the first list")
    return FlatChunk(pages.closed(value_type), starts)


class _Pages:
    """The file in the making, in memory of Arrow's: it is used again and again, where new memory costs most of this."""

    def __init__(self, codec: str | None, max_definition_level: int, *, largest: int, most_values: int) -> None:
        """`largest` bounds the pages, decompressed, with their headers, and `most_values` what they hold."""
        self._buffer = pa.allocate_buffer(largest + _SPARE_BYTES)
        self._out = memoryview(self._buffer).cast("B")
        self._size = 0
        self._append(_MARK)
        self.num_values = 0
        self._num_pages = 0
        self.starts: list[NDArray[np.int64]] = []
        self._codec = None if codec is None else pa.Codec(codec)
        self._max_level = max_definition_level
        self._largest = largest
        self._most_values = most_values
        self._dictionary_at: int | None = None
        self._data_at: int | None = None
        self._encodings: set[int] = {_RLE}

    def take(self, chunk: memoryview, at: int) -> int:
        """Takes the page that begins at a place of the chunk; returns the place behind it."""
        header, at = read_struct(chunk, at)
        size = int(header[3])
        stop = at + size
        if size < 0 or stop > len(chunk) or not 0 <= header[2] <= self._largest:
            raise NotFlat("a page is larger than its chunk")
        body = chunk[at:stop]
        if 4 in header and zlib.crc32(body) != header[4] & 0xFFFFFFFF:
            raise NotFlat("a page is not what its checksum says")
        kind = header[1]
        if kind == _DATA_PAGE:
            self._take_first_version(header, body)
        elif kind == _DATA_PAGE_V2:
            self._take_second_version(header, body)
        elif kind == _DICTIONARY_PAGE:
            self._take_dictionary(header, body)
        elif kind != _INDEX_PAGE:
            raise NotFlat(f"a page of kind {kind}")
        return stop

    def _take_dictionary(self, header: dict[int, Any], body: memoryview) -> None:
        if self._dictionary_at is not None or self._data_at is not None:
            raise NotFlat("a dictionary behind what needs it")
        self._dictionary_at = self._size
        of_page = header[7]
        fields = [(1, I32, of_page[1]), (2, I32, of_page[2])]
        self._put(_DICTIONARY_PAGE, (7, STRUCT, struct_bytes(fields)), self._plain(body, header[2]))

    def _take_first_version(self, header: dict[int, Any], body: memoryview) -> None:
        of_page = header[5]
        if (of_page[3], of_page[4]) != (_RLE, _RLE):
            raise NotFlat("levels in another encoding than runs")
        page = self._plain(body, header[2])
        repetitions, page = _prefixed(page)
        definitions, values = _prefixed(page)
        self._put_data(of_page[1], of_page[2], repetitions, definitions, values)

    def _take_second_version(self, header: dict[int, Any], body: memoryview) -> None:
        of_page = header[8]
        num_definition_bytes, num_repetition_bytes = of_page[5], of_page[6]
        num_level_bytes = num_repetition_bytes + num_definition_bytes
        if min(num_definition_bytes, num_repetition_bytes) < 0 or num_level_bytes > min(len(body), header[2]):
            raise NotFlat("levels are longer than their page")
        values = body[num_level_bytes:]
        if of_page.get(7, True):
            values = self._plain(values, header[2] - num_level_bytes)
        repetitions, definitions = body[:num_repetition_bytes], body[num_repetition_bytes:num_level_bytes]
        self._put_data(of_page[1], of_page[4], repetitions, definitions, values)

    def _plain(self, body: memoryview, size: int) -> memoryview:
        if self._codec is None or not size:
            if len(body) != size:
                raise NotFlat("a page is not as long as it says")
            return body
        return memoryview(self._codec.decompress(body, decompressed_size=size)).cast("B")

    def _put_data(
        self, num_values: int, encoding: int, repetitions: memoryview, definitions: memoryview, values: memoryview
    ) -> None:
        if not 0 <= num_values <= self._most_values - self.num_values:
            raise NotFlat("more values than the footer says")
        if not are_all(definitions, num_values, self._max_level):
            raise NotFlat("not all is there")
        self.starts.append(list_starts(repetitions, num_values) + self.num_values)
        self.num_values += num_values
        self._num_pages += 1
        if self._num_pages > _FIRST_PAGES and self.num_values < self._num_pages * _FEWEST_PAGE_VALUES:
            raise NotFlat("pages are small")
        if self._data_at is None:
            self._data_at = self._size
        self._encodings.add(encoding)
        fields = [(1, I32, num_values), (2, I32, encoding), (3, I32, _RLE), (4, I32, _RLE)]
        self._put(_DATA_PAGE, (5, STRUCT, struct_bytes(fields)), values)

    def _put(self, kind: int, of_kind: tuple[int, int, bytes], content: memoryview) -> None:
        size = len(content)
        self._append(struct_bytes([(1, I32, kind), (2, I32, size), (3, I32, size), of_kind]))
        self._append(content)

    def _append(self, content: bytes | memoryview) -> None:
        stop = self._size + len(content)
        if stop > len(self._out):
            raise NotFlat("the pages take more than the footer says")
        self._out[self._size : stop] = content
        self._size = stop

    def closed(self, value_type: Any) -> Any:
        """Puts the footer behind the pages; returns the file."""
        physical, converted = FLAT_TYPES[value_type]
        size = self._size - len(_MARK)
        assert self._data_at is not None
        leaf = [(1, I32, physical), (3, I32, 0), (4, BINARY, b"x")]
        root = [(4, BINARY, b"root"), (5, I32, 1)]
        column = [
            (1, I32, physical),
            (2, LIST, (I32, sorted(self._encodings))),
            (3, LIST, (BINARY, [b"x"])),
            (4, I32, 0),
            (5, I64, self.num_values),
            (6, I64, size),
            (7, I64, size),
            (9, I64, self._data_at),
        ]
        if converted is not None:
            leaf.append((6, I32, converted))
        if self._dictionary_at is not None:
            column.append((11, I64, self._dictionary_at))
        chunk = struct_bytes([(2, I64, len(_MARK)), (3, STRUCT, struct_bytes(column))])
        group = struct_bytes([(1, LIST, (STRUCT, [chunk])), (2, I64, size), (3, I64, self.num_values)])
        footer = struct_bytes(
            [
                (1, I32, 2),
                (2, LIST, (STRUCT, [struct_bytes(root), struct_bytes(leaf)])),
                (3, I64, self.num_values),
                (4, LIST, (STRUCT, [group])),
            ]
        )
        self._append(footer + struct.pack("<I", len(footer)) + _MARK)
        return self._buffer.slice(0, self._size)


def _prefixed(page: memoryview) -> tuple[memoryview, memoryview]:
    """Returns what a page begins with, of the length that is told before it, and the rest."""
    (size,) = struct.unpack_from("<I", page)
    stop = 4 + size
    if stop > len(page):
        raise NotFlat("levels are longer than their page")
    return page[4:stop], page[stop:]
