"""Which shards a source has, and what is said of them before any is opened: out of its files, or out of a manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import NODE, encoding_of, holds_records
from o41td.errors import ChangedDataError, ConfigError
from o41td.index import ShardUnits
from o41td.job import ManifestSelection, SourceJob
from o41td.listing import is_local, list_files, local_path_of
from o41td.manifest import Manifest, ManifestShard, read_manifest

__all__ = ["ListedShard", "ManifestShelf", "SourceShards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedShard:
    """One shard: its path, and what the config or the manifest states of it, None where it does not."""

    path: str
    rows: int | None = None
    size_bytes: int | None = None
    row_groups: tuple[int, ...] | None = None

    def unit_rows(self, encoding: str) -> NDArray[np.int64] | None:
        """Returns the rows of each unit where they are stated, so that the shard need not be opened; else None."""
        if not holds_records(encoding):
            return None if self.row_groups is None else np.array(self.row_groups, np.int64)
        return None if self.rows is None else np.array([self.rows] if self.rows else [], np.int64)

    def check(self, units: ShardUnits, *, source: str, stated_by: str) -> None:
        """Compares what is stated with what is so.

        Raises:
            ChangedDataError: It is not so.
        """
        entry = units.entry
        said: list[tuple[str, Any, Any]] = [
            ("rows", self.rows, entry.rows),
            ("bytes", self.size_bytes, entry.size_bytes),
        ]
        for what, was, now in said:
            if was is not None and was != now:
                raise ChangedDataError(
                    f"{stated_by} states {was} {what} for this shard; it has {now}", source=source, shard=self.path
                )
        if self.row_groups is not None and entry.rows and self.row_groups != tuple(units.rows.tolist()):
            why = f"{stated_by} states {len(self.row_groups)} row groups for this shard, which has other ones"
            raise ChangedDataError(why, source=source, shard=self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShards:
    """The shards of one source in the order of its line. `stated_by` names who states things of them, for errors."""

    encoding: str
    shards: tuple[ListedShard, ...]
    stated_by: str


class ManifestShelf:
    """Resolves sources; a manifest that several of them name is read once."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifest] = {}

    def shards_of(self, job: SourceJob) -> SourceShards:
        """Returns the shards of a source.

        Raises:
            O41Error: A file is missing, or the manifest cannot be read or does not have what is asked for.

        Blocks: On the file system.
        """
        if job.manifest is not None:
            return self._selected(job, job.manifest)
        if job.encoding == NODE:
            return SourceShards(encoding=NODE, shards=(ListedShard(path=job.files[0]),), stated_by="the config")
        _refuse_remote(job.files, job.name)
        paths = list_files(job.files, source=job.name, encoding=job.encoding)
        stated = {os.path.abspath(local_path_of(uri)): (rows, size) for uri, rows, size in job.stated}
        shards = []
        for path in paths:
            rows, size_bytes = stated.get(path, (None, None))
            shards.append(ListedShard(path=path, rows=rows, size_bytes=size_bytes))
        encoding = job.encoding or encoding_of(paths, source=job.name)
        return SourceShards(encoding=encoding, shards=tuple(shards), stated_by="the config")

    def _selected(self, job: SourceJob, selection: ManifestSelection) -> SourceShards:
        manifest = self._manifests.get(selection.uri)
        if manifest is None:
            manifest = self._manifests[selection.uri] = read_manifest(selection.uri)
        chosen = manifest.shards_of(selection.split, selection.curriculum_stages, source=job.name)
        if not chosen:
            what = ", ".join(map(repr, selection.curriculum_stages)) or "the split"
            raise ConfigError(
                f"source {job.name!r}: {what} has no shards in split {selection.split!r}", where=manifest.uri
            )
        _refuse_remote([shard.uri for shard in chosen], job.name)
        shards = tuple(map(_listed, chosen))
        return SourceShards(encoding=manifest.data_format, shards=shards, stated_by=f"manifest {manifest.uri}")


def _listed(shard: ManifestShard) -> ListedShard:
    path = os.path.abspath(local_path_of(shard.uri))
    return ListedShard(path=path, rows=shard.records, size_bytes=shard.size_bytes, row_groups=shard.row_groups)


def _refuse_remote(uris: Sequence[str], source: str) -> None:
    remote = next((uri for uri in uris if not is_local(uri)), None)
    if remote is not None:
        raise ConfigError(
            f"source {source!r}: {remote} is not a local path",
            advice="This version streams local files only; copy the shards, or mount the storage",
        )
