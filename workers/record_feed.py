"""Records of a shard as bytes, one after the other: lines of gzip text, or Zstandard frames behind their lengths.

A feed goes forwards only, and says at which record it stands. Nothing is parsed here: passing over records costs
decompression for `jsonl.gz`, and not even that for `msgpack.zstf`, whose lengths lead from frame to frame.

Measured on lines of token lists and of 31 columns (MB of text a second and core): isal 350 to 490, zlib-ng 300 to 340,
zlib 220, pyarrow's gzip stream 190 to 210; the size of a read does not matter. Frames of 0.3 to 3 KB: zstandard with a
context that is kept 280 to 315, pyarrow's codec 66 to 230, as it makes a context for each.
"""

from __future__ import annotations

import gzip
import io
from abc import ABC, abstractmethod
from typing import Any

import zstandard
from isal import igzip, igzip_lib

from o41td.encodings import JSON_LINES

__all__ = ["GzipLines", "RecordFeed", "UnreadableRecord", "ZstdFrames", "open_feed"]

_CHUNK_BYTES = 256 << 10
_BOM = b"\xef\xbb\xbf"
_LENGTH_BYTES = 8
_FRAME_HEADER_BYTES = 18


class UnreadableRecord(Exception):
    """Record `row` cannot be read, nor any behind it unless it `can_be_passed`; `why` says it in a phrase."""

    def __init__(self, row: int, why: str, *, can_be_passed: bool = False) -> None:
        super().__init__(why)
        self.row = row
        self.why = why
        self.can_be_passed = can_be_passed


class RecordFeed(ABC):
    """The records of one shard, forwards; those before one that cannot be read are given out first.

    Attributes:
        position: The number of the next record.
        text_bytes: Bytes of the records so far, decompressed.
    """

    def __init__(self) -> None:
        self.position = 0
        self.text_bytes = 0
        self._failure: UnreadableRecord | None = None

    def take(self, count: int, max_bytes: int) -> list[bytes]:
        """Returns the next records: at most `count`, and no more once they come to `max_bytes`; none at the end.

        Raises:
            UnreadableRecord: The next one cannot be read, until it is passed over where that can be.
        """
        taken: list[bytes] = []
        num_bytes = 0
        while len(taken) < count and num_bytes < max_bytes:
            try:
                if self._failure is not None:
                    raise self._failure
                records = self._read(count - len(taken))
            except UnreadableRecord as failure:
                self._failure = failure
                if taken:
                    break
                raise
            if not records:
                break
            taken += records
            num_bytes += sum(map(len, records))
        return taken

    def skip(self, count: int) -> int:
        """Passes over records; returns how many there were.

        Raises:
            UnreadableRecord: One of them can be neither read nor passed over.
        """
        if count == 0:
            return 0
        if self._failure is not None and not self._failure.can_be_passed:
            raise self._failure
        self._failure = None
        return self._skip(count)

    @abstractmethod
    def _skip(self, count: int) -> int:
        """Passes over records that were never given out, as `skip` says."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""

    @abstractmethod
    def _read(self, count: int) -> list[bytes]:
        """The next records, at least one but at the end, and at most `count`."""


def open_feed(file: Any, encoding: str, *, max_record_bytes: int) -> RecordFeed:
    """Returns a feed at the first record.

    Args:
        file: A binary file at its beginning, which the feed closes.
        encoding: The shard's encoding.
        max_record_bytes: A record larger than this is refused.
    """
    if encoding == JSON_LINES:
        return GzipLines(file, max_record_bytes=max_record_bytes)
    return ZstdFrames(file, max_record_bytes=max_record_bytes)


class GzipLines(RecordFeed):
    """Lines of gzip text: of one member or several, ended by LF or CRLF, the last one by nothing if it likes.

    Lines of white space are no records; a byte order mark is none of the first one's.
    """

    def __init__(self, file: Any, *, max_record_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._text: Any = igzip.IGzipFile(fileobj=file, mode="rb")  # type: ignore[no-untyped-call]
        self._max_record_bytes = max_record_bytes
        self._lines: list[bytes] = []
        self._next = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._is_first = True
        self._is_over = False

    def _read(self, count: int) -> list[bytes]:
        if not self._fill():
            return []
        lines = self._lines[self._next : self._next + count]
        limit = self._max_record_bytes
        if max(map(len, lines)) > limit:
            lines = lines[: next(place for place, line in enumerate(lines) if len(line) > limit)]
            if not lines:
                raise _too_large(self.position, len(self._lines[self._next]), limit, can_be_passed=True)
        self._pass(len(lines))
        return lines

    def _skip(self, count: int) -> int:
        left = count
        while left and self._fill():
            passed = min(left, len(self._lines) - self._next)
            self._pass(passed)
            left -= passed
        return count - left

    def close(self) -> None:
        """Closes the file."""
        self._lines.clear()
        self._text.close()
        self._file.close()

    def _pass(self, count: int) -> None:
        self._next += count
        self.position += count

    def _fill(self) -> bool:
        """Reads on until there is a line; false at the end."""
        while self._next == len(self._lines):
            if self._is_over:
                return False
            self._lines, self._next = self._more(), 0
        return True

    def _more(self) -> list[bytes]:
        try:
            chunk = self._text.read(_CHUNK_BYTES)
        except (EOFError, igzip_lib.IsalError, gzip.BadGzipFile) as error:  # type: ignore[misc]  # stubs: no class
            if isinstance(error, EOFError):
                why = "the shard ends early, in the middle of its gzip stream"
            elif self._is_first and "Not a gzipped" in str(error):
                why = "the shard is no readable gzip: it does not begin as one. `gzip` makes one of plain lines"
            else:
                why = f"the shard is no readable gzip: {error}"
            raise UnreadableRecord(self.position, why) from error
        self.text_bytes += len(chunk)
        if self._is_first and chunk:
            self._is_first = False
            chunk = chunk.removeprefix(_BOM)
        if not chunk:
            self._is_over = True
        elif b"\n" not in chunk:
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            if self._tail_bytes > self._max_record_bytes:
                raise _too_large(self.position, self._tail_bytes, self._max_record_bytes)
            return []
        lines = b"".join([*self._tail, chunk]).split(b"\n")
        self._tail = [] if self._is_over else [lines.pop()]
        self._tail_bytes = sum(map(len, self._tail))
        return [line for line in lines if line and not line.isspace()]


class ZstdFrames(RecordFeed):
    """Zstandard frames, each behind its length in eight big-endian bytes."""

    def __init__(self, file: Any, *, max_record_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)
        self._at = 0
        self._max_record_bytes = max_record_bytes
        self._decompressor = zstandard.ZstdDecompressor()

    def _read(self, count: int) -> list[bytes]:  # noqa: ARG002 - one is at most as many
        length = self._next_length()
        if length is None:
            return []
        if length > 2 * self._max_record_bytes:
            raise _too_large(self.position, length, self._max_record_bytes, can_be_passed=True)
        record = self._decompressed(self._file.read(length))
        self._pass(length, len(record))
        return [record]

    def _skip(self, count: int) -> int:
        for passed in range(count):
            length = self._next_length()
            if length is None:
                return passed
            header = self._file.read(min(length, _FRAME_HEADER_BYTES))
            self._pass(length, max(length, _stated_size(header)))
        return count

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _pass(self, length: int, record_bytes: int) -> None:
        self._at += _LENGTH_BYTES + length
        self.position += 1
        self.text_bytes += record_bytes

    def _next_length(self) -> int | None:
        """The length of the next frame, at which the file then stands; None at the end."""
        left = self._size - self._at
        if left == 0:
            return None
        self._file.seek(self._at)
        header = self._file.read(_LENGTH_BYTES)
        length = int.from_bytes(header, "big")
        if len(header) < _LENGTH_BYTES or length > left - _LENGTH_BYTES:
            why = (
                f"{left} bytes are left"
                if len(header) < _LENGTH_BYTES
                else f"its frame has {length} bytes, {left} are left"
            )
            raise UnreadableRecord(self.position, f"the shard ends early, or the length is damaged: {why}")
        return length

    def _decompressed(self, frame: bytes) -> bytes:
        size = _stated_size(frame)
        if size > self._max_record_bytes:
            raise _too_large(self.position, size, self._max_record_bytes, can_be_passed=True)
        try:
            if size >= 0:
                return bytes(self._decompressor.decompress(frame, allow_extra_data=False))
            stream = self._decompressor.decompressobj()
            record = stream.decompress(frame)
        except zstandard.ZstdError as error:
            why = f"this is no Zstandard frame, or a damaged one: {error}"
            raise UnreadableRecord(self.position, why, can_be_passed=True) from error
        if not stream.eof or stream.unused_data:
            why = "its frame is cut short, or something follows it"
            raise UnreadableRecord(self.position, why, can_be_passed=True)
        if len(record) > self._max_record_bytes:
            raise _too_large(self.position, len(record), self._max_record_bytes, can_be_passed=True)
        return bytes(record)


def _stated_size(frame: bytes) -> int:
    """What a frame says that it holds; -1 where it says nothing, or is none."""
    try:
        return int(zstandard.frame_content_size(frame))
    except zstandard.ZstdError:
        return -1


def _too_large(row: int, num_bytes: int, limit: int, *, can_be_passed: bool = False) -> UnreadableRecord:
    return UnreadableRecord(
        row,
        f"the record has {num_bytes} bytes or more, and {limit} are allowed, an eighth of max_row_group_bytes; raise "
        "max_row_group_bytes",
        can_be_passed=can_be_passed,
    )
