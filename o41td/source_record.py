"""One source's shards as a checkpoint keeps them: `SourceRecord`, compact on paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any, Self

from o41td.checked_document import count_in, expect_keys, is_count, list_in, text_in
from o41td.encodings import ENCODINGS, PARQUET
from o41td.errors import CheckpointError

__all__ = ["SourceRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One source's resolved shards, in the order of its line.

    Attributes:
        name: The source's name in the whole stream, the key of `Checkpoint.epochs`.
        stage: The stage's index.
        source: The source's index in its stage.
        uris: [shards] paths or URIs.
        rows: [shards] row counts.
        size_bytes: [shards] sizes, None where unknown.
        versions: [shards] content versions, None where unknown.
        encoding: The shards' encoding.
    """

    name: str
    stage: int
    source: int
    uris: tuple[str, ...]
    rows: tuple[int, ...]
    size_bytes: tuple[int | None, ...]
    versions: tuple[str | None, ...]
    encoding: str = PARQUET

    def __post_init__(self) -> None:
        lengths = {len(self.uris), len(self.rows), len(self.size_bytes), len(self.versions)}
        assert len(lengths) == 1, f"one entry a shard in each list, not {lengths}"

    def to_document(self) -> dict[str, Any]:
        """A new JSON-able dict; what the URIs begin and end with in common stands once."""
        prefix = _common_prefix(self.uris)
        rests = [uri[len(prefix) :] for uri in self.uris]
        suffix = _common_prefix([rest[::-1] for rest in rests])[::-1]
        return {
            "name": self.name,
            "stage": self.stage,
            "source": self.source,
            "encoding": self.encoding,
            "prefix": prefix,
            "suffix": suffix,
            "uris": [rest[: len(rest) - len(suffix)] for rest in rests],
            "rows": [int(rows) for rows in self.rows],
            "size_bytes": [None if size is None else int(size) for size in self.size_bytes],
            "versions": list(self.versions),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The record that `to_document` described.

        Raises:
            CheckpointError: It is no such document.
        """
        keys = ("name", "stage", "source", "encoding", "prefix", "suffix", "uris", "rows", "size_bytes", "versions")
        expect_keys(document, keys, "sources[]")
        prefix, suffix = text_in(document, "prefix"), text_in(document, "suffix")
        record = {
            "uris": tuple(f"{prefix}{uri}{suffix}" for uri in list_in(document, "uris")),
            "rows": tuple(list_in(document, "rows")),
            "size_bytes": tuple(list_in(document, "size_bytes")),
            "versions": tuple(list_in(document, "versions")),
        }
        if document["encoding"] not in ENCODINGS:
            raise CheckpointError(f"source {document['name']!r} of the checkpoint has an encoding that is not known")
        if len({len(values) for values in record.values()}) != 1:
            raise CheckpointError(
                f"source {short_repr(document['name'])} of the checkpoint has lists of different lengths"
            )
        counts = (*record["rows"], *(size for size in record["size_bytes"] if size is not None))
        texts = (*list_in(document, "uris"), *(version for version in record["versions"] if version is not None))
        if not (all(map(is_count, counts)) and all(isinstance(text, str) for text in texts)):
            raise CheckpointError(
                f"source {short_repr(document['name'])} of the checkpoint has values of the wrong kind"
            )
        return cls(
            name=text_in(document, "name"),
            stage=count_in(document, "stage"),
            source=count_in(document, "source"),
            encoding=text_in(document, "encoding"),
            **record,
        )


def _common_prefix(texts: Sequence[str]) -> str:
    """What all texts begin with: all that the first and the last of them in sorted order share."""
    low, high = min(texts, default=""), max(texts, default="")
    length = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    return low[:length]
