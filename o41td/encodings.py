"""The encodings of shards: their names, their suffixes, and which one a list of shards is in. Pure.

A unit of a record encoding is a whole shard: one of its rows cannot be found without reading all that lie before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from o41td.errors import ConfigError

__all__ = [
    "ENCODINGS",
    "FILE_ENCODINGS",
    "FOREIGN_SUFFIXES",
    "JSON_LINES",
    "MESSAGE_PACK",
    "NODE",
    "PARQUET",
    "encoding_of",
    "foreign_format_of",
    "holds_records",
    "suffixes_of",
]

PARQUET = "parquet"
JSON_LINES = "jsonl.gz"
MESSAGE_PACK = "msgpack.zstf"
NODE = "node"  # no files: a source of the user's own, which answers spans

FILE_ENCODINGS = (PARQUET, JSON_LINES, MESSAGE_PACK)
ENCODINGS = (*FILE_ENCODINGS, NODE)

FOREIGN_SUFFIXES = {
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".jsonl.zst": "jsonl",
    ".ndjson": "jsonl",
    ".ndjson.gz": "jsonl",
    ".ndjson.zst": "jsonl",
    ".tar": "webdataset",
    ".tar.gz": "webdataset",
    ".tgz": "webdataset",
}
"""What is no shard as it is, and which of the formats it is that `o41td write` makes shards of."""

_SUFFIXES = {PARQUET: (".parquet", ".pq", ".parq"), JSON_LINES: (".jsonl.gz",), MESSAGE_PACK: (".msgpack.zstf",)}


def suffixes_of(encoding: str | None) -> tuple[str, ...]:
    """Returns the suffixes, in lower case, of an encoding's shards; those of all where it is None."""
    return _SUFFIXES[encoding] if encoding else tuple(suffix for known in _SUFFIXES.values() for suffix in known)


def foreign_format_of(uri: str) -> str | None:
    """Returns the format that a name's suffix tells, of those that are no shards; None where it tells none of them."""
    name = uri.rpartition("/")[2].lower()
    found = [suffix for suffix in FOREIGN_SUFFIXES if name.endswith(suffix)]
    return FOREIGN_SUFFIXES[max(found, key=len)] if found else None


def holds_records(encoding: str) -> bool:
    """Whether a shard is a run of records, one unit, and not row groups of columns."""
    return encoding in (JSON_LINES, MESSAGE_PACK)


def encoding_of(uris: Iterable[str], *, source: str) -> str:
    """Returns the encoding that the suffixes of a source's shards tell; Parquet's where they tell nothing.

    Raises:
        ConfigError: They tell different ones. The same rows are often kept in several encodings side by side, so a
            folder of both is no reason to read both.
    """
    first: dict[str, str] = {}
    for uri in uris:
        first.setdefault(_encoding_of_name(uri), uri)
        if len(first) > 1:
            (one, one_uri), (other, other_uri) = first.items()
            raise ConfigError(
                f"source {source!r} names shards of two encodings: {one_uri} is {one}, {other_uri} is {other}",
                advice="State `encoding`, name files of one encoding, or make it two sources",
            )
    return next(iter(first), PARQUET)


def _encoding_of_name(uri: str) -> str:
    name = uri.lower()
    return next((encoding for encoding, known in _SUFFIXES.items() if name.endswith(known)), PARQUET)
