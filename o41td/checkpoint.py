"""Where a stream is, as one small document: `Checkpoint`.

It carries all that a resume needs and nothing it can work out: the resolved config without credentials, each source's
shard list with row counts and versions, the cursor (runs of (stage, batches)), and counts to compare with. Its JSON
form is canonical and ends in a checksum over every byte before it:

    {
    "format": "o41td-checkpoint",
    "format_version": 1,
    ...                                one key a line, in a fixed order
    "checksum": "0123456789abcdef"     blake2b-64 of all the bytes above this line
    }

so a text that was cut or changed anywhere is refused. Later format versions keep the first lines and the checksum, so
that an older reader can tell "newer" from "damaged".

A checkpoint may come from anywhere, and a checksum keeps nobody from writing one: so what is read is plain data within
bounds, each part checked, and whatever is wrong with it is a `CheckpointError`.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from reprlib import repr as short_repr
from typing import Any, Self

from o41td.checked_document import count_in, expect_keys, is_count, list_in, text_in
from o41td.checkpoint_file import read_text, replace_text
from o41td.counted import kind_text
from o41td.document_differences import differences_of
from o41td.errors import CheckpointError
from o41td.order_version import ORDER_VERSION
from o41td.path_argument import path_text
from o41td.plain_json import parse_plain_json, refuse_deep_nesting
from o41td.source_record import SourceRecord

__all__ = [
    "CHECKPOINT_FORMAT_VERSION",
    "ORDER_KEYS",
    "Checkpoint",
    "SourceRecord",
    "differences",
    "is_checkpoint_file",
    "refuse_order_version",
    "source_renamed",
]

CHECKPOINT_FORMAT_VERSION = 1
ORDER_KEYS = ("seed", "lanes", "fields", "stages")  # of a config: what names the rows and their order

_FORMAT = "o41td-checkpoint"
_HEAD = f'{{\n"format": "{_FORMAT}"'
_TAIL = re.compile(r'\n"checksum": "([0-9a-f]{16})"\n\}\n\Z', re.ASCII)
_MAX_BYTES = 1 << 28  # a million shards take about 65 MB
_NAMES_SHARDS = re.compile(r"stages\[(\d+)\]\.sources\[(\d+)\]\.(?:files|manifest_uri)\b", re.ASCII)
_COUNTS = ("batches_yielded", "rows_yielded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a stream after a delivered batch, before the first, or after the last.

    Attributes:
        order_version: The version of the order it was taken under.
        config: The resolved config's document (lanes filled in), without credentials.
        sources: Each source's resolved shards.
        cursor: The history: runs of (stage index, batches taken), over all ranks.
        batches_yielded: Batches delivered on all ranks.
        rows_yielded: Rows delivered on all ranks.
        epochs: The epoch that each source is in, by its name in the whole stream.
        order_digest: The rank's own additive digest of all delivered coordinates, 0 to 2^64-1. With the rank and world
            size it belongs to, it is all that differs between the ranks' checkpoints of the same step.
        rank: The rank that took it.
        world_size: Its world size.
        format_version: The version of this document's form.
    """

    order_version: int
    config: dict[str, Any]
    sources: tuple[SourceRecord, ...]
    cursor: tuple[tuple[int, int], ...]
    batches_yielded: int
    rows_yielded: int
    epochs: dict[str, int] = field(default_factory=dict)
    order_digest: int = 0
    rank: int = 0
    world_size: int = 1
    format_version: int = CHECKPOINT_FORMAT_VERSION

    def __post_init__(self) -> None:
        assert 0 <= self.order_digest < 2**64, f"a 64-bit digest, not {self.order_digest}"

    def to_document(self) -> dict[str, Any]:
        """A new plain JSON-able dict, as `state_dict()` gives it."""
        return {
            "format": _FORMAT,
            "format_version": self.format_version,
            "order_version": int(self.order_version),
            "batches_yielded": int(self.batches_yielded),
            "rows_yielded": int(self.rows_yielded),
            "cursor": [[int(stage), int(batches)] for stage, batches in self.cursor],
            "epochs": {name: int(epoch) for name, epoch in self.epochs.items()},
            "config": deepcopy(self.config),
            "sources": [source.to_document() for source in self.sources],
            "order_digest": {
                "rank": int(self.rank),
                "world_size": int(self.world_size),
                "value": f"{self.order_digest:016x}",
            },
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Builds a checkpoint from what `to_document` gave.

        Raises:
            CheckpointError: It is no checkpoint, of a newer format, or not whole.
        """
        given: object = document
        if not isinstance(given, Mapping) or given.get("format") != _FORMAT:
            raise CheckpointError(
                f"this is not an o41td checkpoint: its `format` is not {_FORMAT!r}",
                advice="Give what checkpoint() or state_dict() returned",
            )
        try:
            refuse_deep_nesting(document)
        except ValueError as error:
            raise CheckpointError(f"this is not an o41td checkpoint: {error}") from None
        version = document.get("format_version")
        if not is_count(version) or version < 1:
            raise CheckpointError(
                f"the checkpoint's `format_version` is {short_repr(version)}, not an integer of 1 or more"
            )
        if version > CHECKPOINT_FORMAT_VERSION:
            raise CheckpointError(
                f"the checkpoint has format version {version}; this o41td reads up to {CHECKPOINT_FORMAT_VERSION}",
                advice="Resume with the o41td that wrote it, or a newer one",
            )
        expect_keys(document, _DOCUMENT_KEYS, "")
        own = document["order_digest"]
        if not isinstance(own, Mapping):
            raise CheckpointError("the checkpoint's `order_digest` is not a table")
        expect_keys(own, ("rank", "world_size", "value"), "order_digest")
        digest = text_in(own, "value")
        if not re.fullmatch(r"[0-9a-f]{16}", digest, re.ASCII):
            raise CheckpointError(f"the checkpoint's `order_digest` is {short_repr(digest)}, not 16 hexadecimal digits")
        epochs, config = document["epochs"], document["config"]
        if not isinstance(epochs, Mapping) or not all(is_count(epoch) for epoch in epochs.values()):
            raise CheckpointError("the checkpoint's `epochs` is not a table of integers")
        if not isinstance(config, Mapping):
            raise CheckpointError("the checkpoint's `config` is not a table")
        rank, world_size = count_in(own, "rank"), count_in(own, "world_size")
        if rank >= world_size:
            raise CheckpointError(f"the checkpoint's `order_digest` is of rank {rank} of {world_size}, which is none")
        return cls(
            format_version=version,
            order_version=count_in(document, "order_version"),
            config=deepcopy(dict(config)),
            sources=tuple(SourceRecord.from_document(source) for source in list_in(document, "sources")),
            cursor=_runs(list_in(document, "cursor")),
            epochs={str(name): epoch for name, epoch in epochs.items()},
            order_digest=int(digest, 16),
            rank=rank,
            world_size=world_size,
            **{name: count_in(document, name) for name in _COUNTS},
        )

    def to_json(self) -> str:
        """The canonical text: ASCII, keys in a fixed order, one newline at the end."""
        lines = (
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'), allow_nan=False)}"
            for key, value in self.to_document().items()
        )
        body = "{\n" + ",\n".join(lines) + ","
        return f'{body}\n"checksum": "{_digest_of(body)}"\n}}\n'

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads what `to_json` wrote.

        Args:
            text: The whole text, unchanged to the byte.

        Raises:
            CheckpointError: It is empty, cut short, changed, of a newer format, or no checkpoint; the error says which.
        """
        return cls.from_document(_verified(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the checkpoint to a file so that the file is always the old or the new one, never half.

        Blocks: on the disk, until the text and its name are there.

        Args:
            path: The file. An existing one keeps its mode.

        Raises:
            CheckpointError: It cannot be written; an earlier file is untouched.
            ConfigError: This is not a path.
        """
        path = path_text(path)
        try:
            replace_text(path, self.to_json())
        except OSError as error:
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"the checkpoint cannot be saved: {reason}", path=path, advice="Is its folder there and writable?"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that `save` wrote.

        Raises:
            CheckpointError: There is no such file, or `from_json` refuses it; the error names the file.
            ConfigError: This is not a path.
        """
        path = path_text(path)
        data = read_text(path, max_bytes=_MAX_BYTES)
        try:
            return cls.from_json(data)
        except CheckpointError as error:
            detail, advice = error.detail, error.advice
        raise CheckpointError(detail, path=path, advice=advice)


_DOCUMENT_KEYS = tuple(
    Checkpoint(order_version=1, config={}, sources=(), cursor=(), batches_yielded=0, rows_yielded=0).to_document()
)


def differences(
    checkpoint: Checkpoint, config_document: Mapping[str, Any], *, keys: Iterable[str] = ORDER_KEYS
) -> list[tuple[str, Any, Any]]:
    """How another config differs from a checkpoint's.

    Args:
        checkpoint: The checkpoint.
        config_document: The other config's `to_document()`. Lanes left out there take the checkpoint's.
        keys: The config's keys to compare; by default those that name the rows and their order, since threads, memory
            and the like may change on a resume.

    Returns:
        (path such as `stages[0].batch_size`, value in the checkpoint, value in the other); empty if they agree.
    """
    chosen = list(keys)
    old = {key: checkpoint.config.get(key) for key in chosen}
    new = {key: config_document.get(key) for key in chosen}
    if "lanes" in new and new["lanes"] is None:
        new["lanes"] = old["lanes"]
    stages, others = old.get("stages") or [], new.get("stages") or []
    left, places = list(range(len(stages))), list[int]()
    for other in others:
        place = next((place for place in left if stages[place] == other), None)
        if place is None:
            break
        left.remove(place)
        places.append(place)
    if len(places) == len(stages) == len(others):  # place by place, nearly all of every stage would seem to differ
        names = [stage.get("name") or f"stage{place}" for place, stage in enumerate(stages)]
        old["stages"], new["stages"] = names, [names[place] for place in places]
    return differences_of(old, new)


def source_renamed(path: str) -> tuple[int, int] | None:
    """The (stage, source) of which a place that `differences` names says where the shards lie; None of any other."""
    found = _NAMES_SHARDS.match(path)
    return None if found is None else (int(found[1]), int(found[2]))


def refuse_order_version(checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint that was taken under another order.

    Raises:
        CheckpointError: Its ORDER_VERSION is not ours.
    """
    if checkpoint.order_version != ORDER_VERSION:
        raise CheckpointError(
            "the checkpoint was taken under another version of the order, so the rest of its rows would differ",
            differences=[("order_version", checkpoint.order_version, ORDER_VERSION)],
            advice="Resume with the o41td that wrote it, or start a new stream",
        )


def is_checkpoint_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a checkpoint does, whole or not: what tells it from a config in JSON."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_HEAD)) == _HEAD.encode("ascii")
    except OSError:
        return False


def _digest_of(body: str) -> str:
    """The checksum of the text above the checksum's line."""
    return hashlib.blake2b(body.encode("ascii"), digest_size=8).hexdigest()


def _verified(text: str | bytes) -> dict[str, Any]:
    """The document in a text whose checksum is right."""
    if not isinstance(text, str | bytes | bytearray | memoryview):
        raise CheckpointError(f"this is not an o41td checkpoint: it is not text but {kind_text(text)}")
    if len(text) > _MAX_BYTES:
        raise CheckpointError(f"this is not an o41td checkpoint: it is longer than {_MAX_BYTES} bytes")
    data = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
    begins_right = data.startswith(_HEAD.encode("ascii"))
    if not data.isascii():
        if begins_right:
            raise CheckpointError("the checkpoint is damaged: it holds bytes that are not ASCII", advice=_USE_ANOTHER)
        raise CheckpointError("this is not an o41td checkpoint: it is not ASCII text")
    whole = data.decode("ascii")
    if not whole.strip():
        raise CheckpointError("the checkpoint is empty", advice=_USE_ANOTHER)
    tail = _TAIL.search(whole)
    if tail is None:
        if begins_right or _HEAD.startswith(whole):
            raise CheckpointError("the checkpoint is cut short: its end is missing", advice=_USE_ANOTHER)
        raise CheckpointError(
            "this is not an o41td checkpoint: it does not begin and end like one",
            advice="Give a file that --checkpoint or Checkpoint.save wrote",
        )
    found, expected = tail[1], _digest_of(whole[: tail.start()])
    if found != expected:
        raise CheckpointError(
            f"the checkpoint is damaged: its checksum is {found}, its content gives {expected}", advice=_USE_ANOTHER
        )
    try:
        document: dict[str, Any] = parse_plain_json(whole, max_bytes=_MAX_BYTES)
    except ValueError as error:
        raise CheckpointError(f"this is not an o41td checkpoint: {error}") from None
    del document["checksum"]  # what begins and ends as this does is an object that has one
    return document


_USE_ANOTHER = "Use an older checkpoint, or copy this one again from where it was saved"


def _runs(value: list[Any]) -> tuple[tuple[int, int], ...]:
    """The cursor's runs."""
    for run in value:
        if not (isinstance(run, list | tuple) and len(run) == 2 and all(is_count(part) for part in run)):
            raise CheckpointError(f"the checkpoint's `cursor` has {short_repr(run)}, not a run of (stage, batches)")
    return tuple((run[0], run[1]) for run in value)
