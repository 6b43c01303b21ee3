"""What shards are, for whatever fields: what `o41td index FILES` starts, so that a bad file can hurt no one else.

``python -P -m o41td.workers.bare_shard`` reads one JSON document from standard input, ``{"encoding", "paths"}``, and
prints a line for each path, in order, once it is done: ``{"rows", "row_groups", "bytes", "version", "columns"}`` or
``{"error": text}``. A file that ends this process is the one whose line is missing.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow.parquet as pq

from o41td.encodings import holds_records
from o41td.errors import O41Error
from o41td.projection import packed_dtypes_of
from o41td.workers.footer import read_footer
from o41td.workers.lost_handles import again_if_lost
from o41td.workers.record_count import count_records
from o41td.workers.shard_file import open_shard_file

__all__ = ["describe_shard"]

_NOUNS = {"b": "bools", "f": "floats", "i": "integers", "u": "integers"}
"""What packed dtypes hold, by their first letters; how wide they are differs from shard to shard."""


def describe_shard(path: str, encoding: str) -> dict[str, Any]:
    """Returns a shard's figures, and its columns as (name, type) pairs; of records, which have no schema, none.

    Raises:
        DataError: It cannot be read.

    Blocks: On the disk; a shard of records is gone through to its end.
    """
    if holds_records(encoding):
        count = count_records(path, encoding, [])
        rows, groups, size_bytes, version = count.num_rows, int(count.num_rows > 0), count.size_bytes, count.version
        columns = []
    else:
        footer = read_footer(None, path, [])
        rows, groups, size_bytes, version = footer.num_rows, len(footer.rows), footer.size_bytes, footer.version
        columns = again_if_lost(lambda: _columns_of(path))
    return {"rows": rows, "row_groups": groups, "bytes": size_bytes, "version": version, "columns": columns}


def _columns_of(path: str) -> list[list[str]]:
    with open_shard_file(path) as file:
        schema = pq.ParquetFile(file).schema_arrow
        return [
            [column.name, str(column.type) if packed is None else f"list of {_NOUNS[packed[0]]}, packed"]
            for column, packed in zip(schema, packed_dtypes_of(schema), strict=True)
        ]


def _answer(path: str, encoding: str) -> dict[str, Any]:
    try:
        return describe_shard(path, encoding)
    except O41Error as error:
        return {"error": str(error)}


def _main() -> None:
    request = json.load(sys.stdin)
    for path in request["paths"]:
        sys.stdout.write(json.dumps(_answer(path, request["encoding"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
