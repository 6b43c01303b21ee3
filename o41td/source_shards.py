"""Which shards a source has, and what is said of them before any is opened: out of its files, or out of a manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from o41td.encodings import NODE, encoding_of, holds_records
from o41td.errors import ChangedDataError, ConfigError
from o41td.index import ShardUnits, unit_rows_of_source
from o41td.job import ManifestSelection, SourceJob
from o41td.listing import is_local, list_files, local_path_of, refuse_repeats
from o41td.manifest import Manifest, ManifestShard, read_manifest

__all__ = ["ListedShard", "ManifestShelf", "RemoteFiles", "SourceShards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedShard:
    """One shard: its path, and what the config or the manifest states of it, None where it does not.

    `seen` is (size in bytes, etag) of a remote shard when it was listed, or as it is stated in full.
    """

    path: str
    rows: int | None = None
    size_bytes: int | None = None
    etag: str | None = None
    row_groups: tuple[int, ...] | None = None
    seen: tuple[int, str | None] | None = None

    def unit_rows(self, encoding: str) -> NDArray[np.int64] | None:
        """Returns the rows of each unit where they are stated, so that the shard need not be opened; else None."""
        if encoding == NODE:
            return None if self.rows is None else unit_rows_of_source(self.rows)
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
        if self.etag is not None and entry.etag is not None and _plain(self.etag) != _plain(entry.etag):
            why = f"{stated_by} states etag {self.etag} for this shard; it has {entry.etag}"
            raise ChangedDataError(why, source=source, shard=self.path)
        if self.row_groups is not None and entry.rows and self.row_groups != tuple(units.rows.tolist()):
            why = f"{stated_by} states {len(self.row_groups)} row groups for this shard, which has other ones"
            raise ChangedDataError(why, source=source, shard=self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShards:
    """The shards of one source in the order of its line. `stated_by` names who states things of them, for errors."""

    encoding: str
    shards: tuple[ListedShard, ...]
    stated_by: str

    def to_record(self) -> dict[str, Any]:
        """Returns a msgpack-able record."""
        shards = [list(astuple(shard)) for shard in self.shards]
        return {"encoding": self.encoding, "shards": shards, "stated_by": self.stated_by}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> SourceShards:
        """Returns the shards of `to_record`."""
        shards = tuple(
            ListedShard(
                path=path,
                rows=rows,
                size_bytes=size_bytes,
                etag=etag,
                row_groups=None if row_groups is None else tuple(row_groups),
                seen=None if seen is None else (seen[0], seen[1]),
            )
            for path, rows, size_bytes, etag, row_groups, seen in record["shards"]
        )
        return cls(encoding=record["encoding"], shards=shards, stated_by=record["stated_by"])


class RemoteFiles(Protocol):
    """What resolving a source asks of stores; (size in bytes, etag) tells what an object is."""

    def matches(
        self, entries: Sequence[str], *, source: str, encoding: str | None
    ) -> Sequence[Sequence[tuple[str, tuple[int, str | None]]]]:
        """Returns the objects that each entry names."""

    def infos(self, uris: Sequence[str], *, source: str) -> Sequence[tuple[int, str | None]]:
        """Returns what each object is."""

    def read(self, uri: str, max_bytes: int) -> bytes:
        """Returns an object whole, or its first `max_bytes`."""


class ManifestShelf:
    """Resolves sources; a manifest that several of them name is read once."""

    def __init__(self, remote: RemoteFiles | None = None) -> None:
        """`remote` lists stores; without it only sources that name local files alone can be resolved."""
        self._remote = remote
        self._manifests: dict[str, Manifest] = {}

    def needs_store(self, job: SourceJob) -> bool:
        """Whether a source names something remote.

        Raises:
            ConfigError: Its manifest, a local one, cannot be read.

        Blocks: On the file system.
        """
        if job.manifest is None:
            return not all(map(is_local, job.files))
        if not is_local(job.manifest.uri):
            return True
        return not all(is_local(shard.uri) for shard in self._chosen(job, job.manifest)[1])

    def shards_of(self, job: SourceJob) -> SourceShards:
        """Returns the shards of a source.

        Raises:
            O41Error: A file is missing, or the manifest cannot be read or does not have what is asked for.

        Blocks: On the file system, or the store.
        """
        if job.manifest is not None:
            return self._selected(job, job.manifest)
        if job.encoding == NODE:
            return SourceShards(encoding=NODE, shards=(ListedShard(path=job.files[0]),), stated_by="the config")
        stated = {_place_of(uri): (rows, size, etag) for uri, rows, size, etag in job.stated}
        known = {uri for uri in job.files if _is_known(stated.get(uri))}  # what is stated in full is not looked at
        remote = [uri for uri in job.files if not is_local(uri) and uri not in known]
        named = [uri for uri in remote if uri in stated]  # never globs or prefixes
        listed = [uri for uri in remote if uri not in stated]
        found = dict(zip(listed, self._matches(listed, job), strict=True))
        found |= {uri: [(uri, info)] for uri, info in zip(named, self._infos(named, job.name), strict=True)}
        shards: list[ListedShard] = []
        for entry in job.files:
            if is_local(entry):
                paths = list_files([entry], source=job.name, encoding=job.encoding)
                shards += [ListedShard(path=path) for path in paths]
            elif entry in found:
                shards += [ListedShard(path=uri, seen=(info[0], info[1])) for uri, info in found[entry]]
            else:
                shards.append(ListedShard(path=entry))
        refuse_repeats([shard.path for shard in shards], job.name)
        for place, shard in enumerate(shards):
            rows, size_bytes, etag = stated.get(shard.path, (None, None, None))
            shards[place] = _with_what_is_seen(replace(shard, rows=rows, size_bytes=size_bytes, etag=etag))
        encoding = job.encoding or encoding_of([shard.path for shard in shards], source=job.name)
        return SourceShards(encoding=encoding, shards=tuple(shards), stated_by="the config")

    def _matches(
        self, entries: Sequence[str], job: SourceJob
    ) -> Sequence[Sequence[tuple[str, tuple[int, str | None]]]]:
        if not entries:
            return []
        assert self._remote is not None, "who resolves a remote source can list it"
        return self._remote.matches(entries, source=job.name, encoding=job.encoding)

    def _infos(self, uris: Sequence[str], source: str) -> Sequence[tuple[int, str | None]]:
        if not uris:
            return []
        assert self._remote is not None, "who resolves a remote source can look at its shards"
        return self._remote.infos(uris, source=source)

    def _chosen(self, job: SourceJob, selection: ManifestSelection) -> tuple[Manifest, tuple[ManifestShard, ...]]:
        manifest = self._manifests.get(selection.uri)
        if manifest is None:
            read_remote = None if self._remote is None else self._remote.read
            manifest = self._manifests[selection.uri] = read_manifest(selection.uri, read_remote)
        return manifest, manifest.shards_of(selection.split, selection.curriculum_stages, source=job.name)

    def _selected(self, job: SourceJob, selection: ManifestSelection) -> SourceShards:
        manifest, chosen = self._chosen(job, selection)
        if not chosen:
            what = ", ".join(map(repr, selection.curriculum_stages)) or "the split"
            raise ConfigError(
                f"source {job.name!r}: {what} has no shards in split {selection.split!r}", where=manifest.uri
            )
        shards = [_with_what_is_seen(_listed(shard)) for shard in chosen]
        unseen = [place for place, shard in enumerate(shards) if not is_local(shard.path) and shard.seen is None]
        infos = self._infos([shards[place].path for place in unseen], job.name)
        for place, info in zip(unseen, infos, strict=True):
            shards[place] = replace(shards[place], seen=(info[0], info[1]))
        return SourceShards(encoding=manifest.data_format, shards=tuple(shards), stated_by=f"manifest {manifest.uri}")


def _listed(shard: ManifestShard) -> ListedShard:
    return ListedShard(
        path=_place_of(shard.uri),
        rows=shard.records,
        size_bytes=shard.size_bytes,
        etag=shard.etag,
        row_groups=shard.row_groups,
    )


def _place_of(uri: str) -> str:
    """A shard's path, absolute where it is local."""
    return os.path.abspath(local_path_of(uri)) if is_local(uri) else uri


def _is_known(stated: tuple[int | None, int | None, str | None] | None) -> bool:
    return stated is not None and None not in stated[1:]


def _with_what_is_seen(shard: ListedShard) -> ListedShard:
    """A remote shard of which size and etag are stated is believed to be so: every answer is compared with them."""
    if is_local(shard.path) or shard.seen is not None or not _is_known((None, shard.size_bytes, shard.etag)):
        return shard
    assert shard.size_bytes is not None
    return replace(shard, seen=(shard.size_bytes, _plain(str(shard.etag))))


def _plain(etag: str) -> str:
    """An etag without the quotes that some write around it; those of a weak one are kept."""
    return etag if etag.startswith("W/") else etag.strip('"')
