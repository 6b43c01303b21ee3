"""Whole records of a shard as Arrow tables: what a node gets where no field says which keys are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from o41td.encodings import JSON_LINES
from o41td.errors import ChangedDataError, CorruptDataError
from o41td.workers.record_feed import RecordFeed, UnreadableRecord, open_feed
from o41td.workers.record_reader import open_record_file
from o41td.workers.shard_file import raise_failure

if TYPE_CHECKING:
    from o41td.workers.object_store import ObjectInfo
    from o41td.workers.remote_objects import RemoteObjects

__all__ = ["RecordTables", "first_odd_value"]

_MAX_RECORD_BYTES = 64 << 20
_STRIDE_BYTES = 16 << 20


class RecordTables:
    """One shard of records, read from any row on; going on costs nothing, going back begins anew.

    Args:
        path: The shard.
        encoding: Its encoding.
        columns: The keys to answer with; those that any record of the rows has if None.
        source: The source's name, for errors.
        objects: Where it is read, if it is remote.
        info: What it was when it was listed, if it is remote.
    """

    def __init__(
        self,
        path: str,
        encoding: str,
        *,
        columns: Sequence[str] | None = None,
        source: str | None = None,
        objects: RemoteObjects | None = None,
        info: ObjectInfo | None = None,
    ) -> None:
        self._path = path
        self._encoding = encoding
        self._columns = columns
        self._source = source
        self._objects = objects
        self._info = info
        codec = msgspec.json if encoding == JSON_LINES else msgspec.msgpack
        self._decoder = codec.Decoder(dict[str, Any])
        self._feed: RecordFeed | None = None

    def count(self) -> int:
        """Returns how many records there are.

        Blocks: on the file, as long as that is.
        """
        feed = self._feed_at(0)
        try:
            while feed.skip(4096):
                pass
        except UnreadableRecord as error:
            raise self._corrupt(error) from error
        return feed.position

    def read_rows(self, start: int, stop: int) -> Any:
        """Returns records [start, stop) as a `pyarrow.Table`.

        Raises:
            ChangedDataError: There are not so many.
            CorruptDataError: One cannot be read, or is no map of names.

        Blocks: on the file.
        """
        rows: list[dict[str, Any]] = []
        try:
            feed = self._feed_at(start)
            while len(rows) < stop - start:
                records = feed.take(stop - start - len(rows), _STRIDE_BYTES)
                if not records:
                    break
                rows.extend(self._decoded(records, start + len(rows)))
        except UnreadableRecord as error:
            raise self._corrupt(error) from error
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a record is that shard's error
            raise_failure(error, source=self._source, shard=self._path)
        if len(rows) < stop - start:
            why = f"the shard has {start + len(rows)} records, and record {stop - 1} was asked for"
            raise ChangedDataError(why, source=self._source, shard=self._path)
        names = self._columns or dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: self._column_of(name, [row.get(name) for row in rows], start) for name in names})

    def close(self) -> None:
        """Closes the file."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _feed_at(self, row: int) -> RecordFeed:
        if self._feed is None or self._feed.position > row:
            self.close()
            self._feed = open_feed(
                open_record_file(self._path, self._objects, self._info),
                self._encoding,
                max_record_bytes=_MAX_RECORD_BYTES,
            )
        self._feed.skip(row - self._feed.position)
        return self._feed

    def _decoded(self, records: Sequence[bytes], first_row: int) -> Iterable[dict[str, Any]]:
        for row, record in enumerate(records, first_row):
            try:
                yield self._decoder.decode(record)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                why = f"the record is no map of names: {error}"
                raise CorruptDataError(why, source=self._source, shard=self._path, row=row) from error

    def _column_of(self, name: str, values: list[Any], first_row: int) -> Any:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            told = " ".join(str(error).split())
            raise CorruptDataError(
                f"the value is of another type than those before it: {told}",
                source=self._source,
                shard=self._path,
                row=first_row + first_odd_value(values),
                column=name,
                advice="Mend the records, or name the `columns` that the nodes need: other keys may hold anything",
            ) from error

    def _corrupt(self, error: UnreadableRecord) -> CorruptDataError:
        return CorruptDataError(error.why, source=self._source, shard=self._path, row=error.row)


def first_odd_value(values: list[Any], kind: Any = None) -> int:
    """Returns the place of the first value that Arrow does not take together with those before it, or as a type.

    Args:
        values: Values that it does not take together.
        kind: The type; the one that the values have if None.
    """
    most, fewest = len(values), 0  # so many are refused, so many are taken
    while most - fewest > 1:
        middle = (most + fewest) // 2
        try:
            pa.array(values[:middle], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            most = middle
        else:
            fewest = middle
    return most - 1
