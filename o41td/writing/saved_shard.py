"""A shard that is done: its completion record, the small document that makes it part of a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from o41td.errors import CorruptDataError
from o41td.listing import RECORDS_FOLDER
from o41td.plain_json import parse_plain_json

__all__ = ["RECORDS_FOLDER", "SavedShard", "record_name_of"]

_VERSION = 1
_MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShard:
    """One finished shard.

    Attributes:
        split: Its split.
        stage: The curriculum stage it was saved for, or None.
        shard_id: Its id, one of its kind in the split.
        uri: Where it lies, as seen from the manifest's folder.
        records: Its rows.
        size_bytes: Its size.
        sha256: The digest of its bytes.
        row_groups: The rows of its row groups; None where it holds records.
        notes: What whoever wrote it wants to know of it again.
    """

    split: str
    stage: str | None
    shard_id: str
    uri: str
    records: int
    size_bytes: int
    sha256: str
    row_groups: tuple[int, ...] | None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The completion record; the same for the same shard."""
        groups = None if self.row_groups is None else list(self.row_groups)
        document = {"version": _VERSION, **asdict(self), "row_groups": groups, "notes": dict(self.notes)}
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Self:
        """The shard of a completion record.

        Raises:
            CorruptDataError: It is no such record.
        """
        try:
            document = parse_plain_json(data, max_bytes=_MAX_BYTES)
            known = {name: document[name] for name in ("version", *(each.name for each in fields(cls)))}
            groups = known["row_groups"]
            known["row_groups"] = None if groups is None else tuple(groups)
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(where, str(error)) from error
        if known.pop("version") != _VERSION:
            raise _unreadable(where, "its version is not known")
        return cls(**known)

    @property
    def record_name(self) -> str:
        """Where its completion record lies."""
        return record_name_of(self.split, self.shard_id)


def record_name_of(split: str, shard_id: str) -> str:
    """Returns where the completion record of a shard lies, as seen from the manifest's folder."""
    return f"{RECORDS_FOLDER}/shards/{split}/{shard_id}.json"


def _unreadable(where: str, why: str) -> CorruptDataError:
    return CorruptDataError(
        f"this is no completion record: {why}", shard=where, advice="Remove it, and save the shard again"
    )
