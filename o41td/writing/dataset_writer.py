"""Writing a data set: shards, each whole or absent, from any number of processes, and a manifest last of all.

    save ──► draft ──► <split>/<shard id>-<digest>.parquet ──► _o41td/shards/<split>/<shard id>.json
                                                                    │   the completion record: made once
    register_split_order, register_curriculum ──► _o41td/…          ▼
    commit_manifest ◄── build_manifest ◄── all completion records and registrations

A shard's name holds the digest of its bytes, so two processes that save different records under one id write different
files, and the completion record, which only one of them can make, says whose counts. What has no completion record is
no part of the data set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from o41td.encodings import FILE_ENCODINGS, PARQUET, suffixes_of
from o41td.errors import ConfigError, DatasetConflictError
from o41td.listing import is_local, local_path_of
from o41td.manifest import parse_manifest
from o41td.plain_json import parse_plain_json
from o41td.storage_config import StorageConfig
from o41td.writing.data_folder import DataFolder, open_folder, told_as_storage
from o41td.writing.layout import BALANCED, Layout, layout_named
from o41td.writing.manifest_document import manifest_bytes_of, manifest_document_of
from o41td.writing.record_batches import record_batches
from o41td.writing.row_spool import RowSpool
from o41td.writing.saved_shard import RECORDS_FOLDER, SavedShard, record_name_of
from o41td.writing.shard_encoding import encode_shard

__all__ = ["DatasetWriter", "Recovery"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,199}")
_DIGEST_LETTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What `DatasetWriter.recover` found.

    Attributes:
        shards: The finished shards, by split and id.
        forgotten: Names of completion records whose shard is gone or has another size: they will be saved again.
        removed: Names of files that no completion record knows and that no process can still be about to finish.
    """

    shards: tuple[SavedShard, ...]
    forgotten: tuple[str, ...]
    removed: tuple[str, ...]


class DatasetWriter:
    """Writes the shards of a data set and, at the end, its manifest.

    Several processes on several machines may each have one for the same manifest. What is done stays done: a job that
    starts again passes over its finished shards without looking at their records.

    Args:
        manifest_uri: The manifest that `commit_manifest` writes, such as "data/data-manifest-v1.json"; shards lie
            beside it.
        encoding: The encoding of all shards.
        storage: How to reach an object store.
        layout: How Parquet is laid out: "balanced", "fast", "lists", or a `Layout`.
        schema: The `pyarrow.Schema` of the rows; what they have if left out.

    Attributes:
        encoding: The encoding of all shards.
    """

    def __init__(
        self,
        manifest_uri: str | Path,
        encoding: str = PARQUET,
        storage: StorageConfig | None = None,
        *,
        layout: str | Layout = BALANCED,
        schema: Any = None,
    ) -> None:
        if encoding not in FILE_ENCODINGS:
            raise ConfigError(f"{encoding!r} is no encoding; give one of {', '.join(FILE_ENCODINGS)}")
        uri = str(manifest_uri)
        folder, _, self._manifest_name = (local_path_of(uri) if is_local(uri) else uri).rpartition("/")
        if not self._manifest_name.endswith(".json"):
            raise ConfigError(f"the manifest's name is to end in .json, and {self._manifest_name!r} does not")
        self._folder: DataFolder = open_folder(folder or ("/" if uri.startswith("/") else "."), storage)
        self.encoding = encoding
        self._layout = layout_named(layout) if isinstance(layout, str) else layout
        self._schema = schema

    @property
    def manifest_uri(self) -> str:
        """The manifest's absolute path or URI."""
        return self._folder.at(self._manifest_name)

    @property
    def folder(self) -> DataFolder:
        """The folder of manifest and shards."""
        return self._folder

    def saved(self, split: str, shard_id: str) -> SavedShard | None:
        """Returns a finished shard, None where it is not finished.

        Blocks: on the store.
        """
        name = record_name_of(_checked("split", split), _checked("shard_id", shard_id))
        data = self._folder.read(name)
        return None if data is None else SavedShard.from_bytes(data, where=self._folder.at(name))

    def save(
        self,
        split: str,
        stage: str | None,
        records: Any,
        *,
        shard_id: str,
        notes: Mapping[str, Any] | None = None,
    ) -> SavedShard:
        """Writes one shard, unless it is finished already: then its records are not even begun.

        Args:
            split: The split, such as "train".
            stage: The curriculum stage that the shard belongs to; None for none.
            records: Dicts, `pyarrow` tables or record batches: one, or an iterable of them.
            shard_id: The shard's id, one of its kind in the split; the shards of a split are in the order of their ids
                unless `register_split_order` says otherwise.
            notes: Plain values that are kept in the completion record.

        Returns:
            The finished shard.

        Raises:
            DatasetConflictError: Another process has finished a shard of this id with other rows or in another stage.
            O41Error: The records, or the store, do not allow it. Nothing of the shard is visible then.

        Blocks: until the shard is durable.
        """
        stage = None if stage is None else _checked("stage", stage)
        done = self.saved(split, shard_id)
        if done is not None:
            return self._same_place(done, stage)
        with self._folder.draft() as draft, RowSpool(draft.parent) as spool:
            for batch in record_batches(records, self._schema):
                with told_as_storage(draft):
                    spool.add(batch)
            if not spool.num_rows:
                raise ConfigError(f"shard {shard_id!r} of split {split!r} has no records; leave it out")
            with told_as_storage(draft):
                encoded = encode_shard(spool, draft, encoding=self.encoding, layout=self._layout)
                size_bytes, sha256 = _size_and_digest_of(draft)
            name = f"{split}/{shard_id}-{sha256[:_DIGEST_LETTERS]}{suffixes_of(self.encoding)[0]}"
            shard = SavedShard(
                split=split,
                stage=stage,
                shard_id=shard_id,
                uri=name,
                records=encoded.rows,
                size_bytes=size_bytes,
                sha256=sha256,
                row_groups=encoded.row_groups,
                notes=dict(notes or {}),
            )
            self._folder.publish(draft, name)
        return self._completed(shard)

    def register_curriculum(
        self, split: str, stage: str, shard_ids: Sequence[str], *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Says which shards of a split a curriculum stage has, in order; no data are copied.

        It stands in the place of what `save` said of the stage, so a shard may be in several stages or in none.

        Raises:
            DatasetConflictError: The stage was registered before, and otherwise.
        """
        document = {"shards": _checked_ids(shard_ids), "metadata": dict(metadata or {})}
        self._register(f"curriculum/{_checked('split', split)}/{_checked('stage', stage)}", document)

    def register_split_order(self, split: str, shard_ids: Sequence[str]) -> None:
        """Says in which order the shards of a split are; all of them must be there by the time of the manifest.

        Raises:
            DatasetConflictError: The split's order was registered before, and otherwise.
        """
        self._register(f"order/{_checked('split', split)}", {"shards": _checked_ids(shard_ids)})

    def recover(self) -> Recovery:
        """Cleans up after processes that ended in the middle, and says what is done.

        A completion record is forgotten if its shard is gone or has another size. Files that lost to another of the
        same id are removed, and drafts that were left an hour ago. Safe while others are writing.

        Blocks: on the store.
        """
        sizes = self._folder.sizes("")
        shards, forgotten = [], []
        for shard in self._finished():
            if sizes.get(shard.uri) == shard.size_bytes:
                shards.append(shard)
            else:
                self._folder.remove(shard.record_name)
                forgotten.append(shard.record_name)
        removed = [name for shard in shards for name in self._losers(shard, sizes)]
        for name in removed:
            self._folder.remove(name)
        self._folder.remove_old_drafts()
        return Recovery(shards=tuple(shards), forgotten=tuple(forgotten), removed=tuple(removed))

    def build_manifest(self) -> dict[str, Any]:
        """Returns the manifest of all shards that are finished now, as a plain document; nothing is written.

        Raises:
            ConfigError: There are none, or a registration names shards that are not there.

        Blocks: on the store: a small read for each shard.
        """
        return manifest_document_of(
            self._finished(),
            data_format=self.encoding,
            orders=self._registrations("order"),
            curriculum=self._registrations("curriculum"),
            where=self._folder.uri,
        )

    def commit_manifest(self) -> str:
        """Writes the manifest: from then on the data set can be read.

        To commit the same again does nothing.

        Returns:
            The manifest's URI.

        Raises:
            DatasetConflictError: There is a manifest of that name, and it says something else.
            ConfigError: As for `build_manifest`.

        Blocks: on the store.
        """
        data = manifest_bytes_of(self.build_manifest())
        parse_manifest(data, self.manifest_uri)  # what is published has passed the reader's own checks
        if not self._folder.create(self._manifest_name, data):
            there = self._folder.read(self._manifest_name)
            if there != data:
                raise DatasetConflictError(
                    "there is a manifest of this name already, and it is another one",
                    where=self.manifest_uri,
                    advice="A published manifest is never changed: commit under another name, such as one with -v2",
                )
        return self.manifest_uri

    def _completed(self, shard: SavedShard) -> SavedShard:
        """Makes the completion record; where another process was faster, its shard must be the same."""
        if not self._folder.create(shard.record_name, shard.to_bytes()):
            done = self.saved(shard.split, shard.shard_id)
            if done is not None and done.uri != shard.uri:
                self._folder.remove(shard.uri)
                raise self._conflict(done, "with other records")
            return shard if done is None else self._same_place(done, shard.stage)
        for name in self._losers(shard, self._folder.sizes(f"{shard.split}/")):
            self._folder.remove(name)
        return shard

    def _same_place(self, done: SavedShard, stage: str | None) -> SavedShard:
        if done.stage != stage:
            raise self._conflict(done, f"in stage {done.stage!r}, not {stage!r}")
        return done

    def _conflict(self, done: SavedShard, how: str) -> DatasetConflictError:
        return DatasetConflictError(
            f"shard {done.shard_id!r} of split {done.split!r} is finished already, {how}",
            where=self._folder.at(done.uri),
            advice="Give it another id, or start the data set anew in an empty folder",
        )

    def _losers(self, winner: SavedShard, sizes: Mapping[str, int]) -> list[str]:
        """Files of the same id with other bytes: of processes that ended before they could finish, or lost."""
        stem, suffix = f"{winner.split}/{winner.shard_id}-", suffixes_of(self.encoding)[0]
        pattern = re.compile(f"{re.escape(stem)}[0-9a-f]{{{_DIGEST_LETTERS}}}{re.escape(suffix)}")
        return [name for name in sizes if name != winner.uri and pattern.fullmatch(name)]

    def _finished(self) -> list[SavedShard]:
        """Every finished shard, by split and id."""
        names = sorted(self._folder.sizes(f"{RECORDS_FOLDER}/shards/"))
        found = ((name, self._folder.read(name)) for name in names)
        shards = [SavedShard.from_bytes(data, where=self._folder.at(name)) for name, data in found if data is not None]
        return sorted(shards, key=lambda shard: (shard.split, shard.shard_id))

    def _register(self, name: str, document: Mapping[str, Any]) -> None:
        at = f"{RECORDS_FOLDER}/{name}.json"
        data = json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"
        if not self._folder.create(at, data) and self._folder.read(at) != data:
            raise DatasetConflictError(
                f"{name.replace('/', ' ')} is registered already, and otherwise",
                where=self._folder.at(at),
                advice="Remove that file if the old registration was a mistake",
            )

    def _registrations(self, kind: str) -> dict[str, dict[str, Any]]:
        """By the name below `kind`, what was registered."""
        prefix = f"{RECORDS_FOLDER}/{kind}/"
        found = {}
        for name in sorted(self._folder.sizes(prefix)):
            data = self._folder.read(name)
            if data is not None:
                found[name[len(prefix) : -len(".json")]] = parse_plain_json(data, max_bytes=1 << 28)
        return found


def _checked(what: str, name: object) -> str:
    """A name that is safe in a path on any store."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} is no good name for a file",
            advice="Use letters, digits and any of . _ = + -, a letter or digit first, 200 characters at most",
        )
    return name


def _checked_ids(shard_ids: Sequence[str]) -> list[str]:
    ids = [_checked("shard_id", shard_id) for shard_id in shard_ids]
    if len(set(ids)) < len(ids):
        twice = next(shard_id for shard_id in ids if ids.count(shard_id) > 1)
        raise ConfigError(f"shard {twice!r} stands twice, so its rows would come twice")
    return ids


def _size_and_digest_of(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
