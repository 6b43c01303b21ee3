"""The quarantine file: a line of JSON for the rows of a row group that could not be had and for which others stand in.

Lines are appended whole, so the loaders of several ranks may share one file; each writes down what it meets. What stood
in for a row follows from the order's rule (see `stand_ins`), and is bad itself where a later line says so.
"""

from __future__ import annotations

import errno
import json
import os
import time

import numpy as np

from o41td.coordinator.events import FoundBadRows
from o41td.error_records import error_from_record
from o41td.index import SourceIndex

__all__ = ["QuarantineFile"]


class QuarantineFile:
    """Appends to the file at `path`, which is made with the first line."""

    def __init__(self, path: str, *, loader: str) -> None:
        """`loader` names the writer in each line."""
        self.path = path
        self._loader = loader

    def write_down(self, found: FoundBadRows, index: SourceIndex) -> None:
        """Appends what was found in a unit of a source.

        Raises:
            OSError: It cannot be written.

        Blocks: on the disk.
        """
        first = int(index.unit_first_row[found.unit])
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "loader": self._loader,
            "source": index.name,
            "shard": index.shards[index.unit_shard[found.unit]].uri,
            "row_group": int(index.unit_row_group[found.unit]),
            "rows": [[first + start, first + stop] for start, stop in _runs_of(found.rows)],
            "num_rows": len(found.rows),
            "error": found.error["kind"],
            "why": str(error_from_record(found.error)),
        }
        data = json.dumps(line).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        finally:
            os.close(descriptor)


def _runs_of(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Ascending row numbers as half-open ranges."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = [0, *breaks.tolist()]
    stops = [*breaks.tolist(), len(rows)]
    return [(int(rows[start]), int(rows[stop - 1]) + 1) for start, stop in zip(starts, stops, strict=True)]
