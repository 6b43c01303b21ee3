"""Data manifests, o41 version 1: which shards a data set has, by split and curriculum stage. Read and checked strictly.

    {
      "version": 1,
      "data_format": "parquet",                         or "jsonl.gz", "msgpack.zstf"
      "splits": {
        "train": {
          "records": 1500,
          "shards": [{"uri": "a.parquet", "records": 1000, "size_bytes": 81234, "etag": null, "row_groups": [512, 488]},
                     {"uri": "b.parquet", "records": 500, "size_bytes": 40771}],
          "curriculum": {
            "easy": {"records": 1000, "shards": [{"uri": "a.parquet", "records": 1000, ...}], "metadata": {...}}
          }
        }
      }
    }

A manifest is small and says much, so whatever contradicts itself is refused whole: sums that do not agree, a stage's
shard that its split does not have, or has with other numbers, unknown keys. `size_bytes`, `etag`, `row_groups`,
`curriculum` and `metadata` may be absent or null; a stage may name a shard by its URI alone. Relative URIs are seen
from the manifest's own folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from o41td.encodings import FILE_ENCODINGS
from o41td.errors import ConfigError
from o41td.listing import is_local, local_path_of
from o41td.plain_json import parse_plain_json

__all__ = ["Manifest", "ManifestShard", "ManifestSplit", "ManifestStage", "parse_manifest", "read_manifest"]

VERSION = 1

_MAX_PROBLEMS = 20
_MAX_BYTES = 1 << 29  # a million shards with all that may be said of them, in a split and in a stage
_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestShard:
    """One shard. `uri` is absolute; `row_groups` are its row groups' rows in order, where they are stated."""

    uri: str
    records: int
    size_bytes: int | None = None
    etag: str | None = None
    row_groups: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestStage:
    """One curriculum stage of a split: its shards in order."""

    shards: tuple[ManifestShard, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSplit:
    """One split: all its shards, and its curriculum stages by name."""

    shards: tuple[ManifestShard, ...]
    curriculum: Mapping[str, ManifestStage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole manifest."""

    uri: str
    data_format: str
    splits: Mapping[str, ManifestSplit]

    def shards_of(
        self, split: str, curriculum_stages: Sequence[str] = (), *, source: str = ""
    ) -> tuple[ManifestShard, ...]:
        """Returns the shards of a split, or of some of its curriculum stages in the order given, each shard once.

        Args:
            split: The split.
            curriculum_stages: The stages; none stands for the whole split.
            source: The source that asks, for errors.

        Raises:
            ConfigError: There is no such split or stage; those that there are are named.
        """
        found = self.splits.get(split)
        if found is None:
            raise self._unknown("split", split, self.splits, source)
        if not curriculum_stages:
            return found.shards
        chosen: dict[str, ManifestShard] = {}
        for name in curriculum_stages:
            stage = found.curriculum.get(name)
            if stage is None:
                raise self._unknown(f"curriculum stage of split {split!r}", name, found.curriculum, source)
            for shard in stage.shards:
                chosen.setdefault(shard.uri, shard)
        return tuple(chosen.values())

    def _unknown(self, what: str, name: str, known: Mapping[str, object], source: str) -> ConfigError:
        names = ", ".join(map(repr, known)) or "none"
        asks = f"source {source!r}: " if source else ""
        return ConfigError(f"{asks}the manifest has no {what} named {name!r}; it has {names}", where=self.uri)


def read_manifest(uri: str, read_remote: Callable[[str, int], bytes] | None = None) -> Manifest:
    """Reads a manifest.

    Args:
        uri: Its path or URI.
        read_remote: Reads a remote object, or as many bytes of it; None where none can be read.

    Raises:
        ConfigError: It cannot be read, or is no manifest; every problem names split, stage and shard.
        O41Error: What `read_remote` raises.

    Blocks: On the store.
    """
    if is_local(uri):
        return parse_manifest(_bytes_of(uri), local_path_of(uri))
    assert read_remote is not None, "who resolves a remote manifest can read it"
    return parse_manifest(read_remote(uri, _MAX_BYTES + 1), uri)  # one byte too many is told as such


def parse_manifest(data: bytes, uri: str) -> Manifest:
    """Returns the manifest in these bytes, read from `uri`.

    Raises:
        ConfigError: They are no manifest; every problem names split, stage and shard.
    """
    try:
        document = parse_plain_json(data, max_bytes=_MAX_BYTES)
    except ValueError as error:
        raise ConfigError(f"the manifest is no JSON, or not plain: {error}", where=uri) from None
    reading = _Reading(uri)
    manifest = reading.manifest(document)
    if reading.problems:
        more = len(reading.problems) - _MAX_PROBLEMS
        problems = reading.problems[:_MAX_PROBLEMS] + ([("", f"and {more} more")] if more > 0 else [])
        raise ConfigError("the manifest does not make sense", where=uri, problems=problems)
    return manifest


def _bytes_of(uri: str) -> bytes:
    try:
        with open(local_path_of(uri), "rb") as file:
            return file.read(_MAX_BYTES + 1)  # one byte too many is told as such
    except IsADirectoryError as error:
        raise ConfigError(
            "the manifest cannot be read: it is a folder",
            where=uri,
            advice=f"Name the manifest in it, as `o41td write` does: {uri.rstrip('/')}/data-manifest-v1.json",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the manifest cannot be read: {error.strerror or error}", where=uri, advice="Check the path"
        ) from error


class _Reading:
    """One manifest being read; what is wrong with it is collected in `problems` as (place, what is wrong)."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._folder = uri.rpartition("/")[0] + "/" if "/" in uri else ""
        self.problems: list[tuple[str, str]] = []

    def manifest(self, document: object) -> Manifest:
        table = self._table(document, "", required=("version", "data_format", "splits"))
        version, data_format = table.get("version"), table.get("data_format")
        if table and (version != VERSION or isinstance(version, bool)):
            self._add("version", f"{version!r} is not {VERSION}, the only version that is known")
        if table and data_format not in FILE_ENCODINGS:
            self._add("data_format", f"{data_format!r} is none of {', '.join(FILE_ENCODINGS)}")
        splits = self._table(table.get("splits", {}), "splits")
        return Manifest(
            uri=self._uri,
            data_format=str(data_format),
            splits={name: self._split(value, f"splits[{name!r}]") for name, value in splits.items()},
        )

    def _split(self, value: object, at: str) -> ManifestSplit:
        table = self._table(value, at, required=("records", "shards"), optional=("curriculum",))
        shards = self._shards(table.get("shards", []), f"{at}.shards", {})
        self._check_sum(table, shards, at)
        known = {shard.uri: shard for shard in shards}
        curriculum = self._table(table.get("curriculum") or {}, f"{at}.curriculum")
        stages = {name: self._stage(stage, f"{at}.curriculum[{name!r}]", known) for name, stage in curriculum.items()}
        return ManifestSplit(shards=shards, curriculum=stages)

    def _stage(self, value: object, at: str, known: Mapping[str, ManifestShard]) -> ManifestStage:
        table = self._table(value, at, required=("records", "shards"), optional=("metadata",))
        shards = self._shards(table.get("shards", []), f"{at}.shards", known)
        self._check_sum(table, shards, at)
        return ManifestStage(shards=shards, metadata=self._table(table.get("metadata") or {}, f"{at}.metadata"))

    def _shards(self, value: object, at: str, known: Mapping[str, ManifestShard]) -> tuple[ManifestShard, ...]:
        """The shards in a list; those of a stage are the split's own, which `known` holds."""
        if not isinstance(value, list):
            self._add(at, f"{_shown(value)} is not a list of shards")
            return ()
        is_stage = at.count("curriculum[") > 0
        shards: dict[str, ManifestShard] = {}
        for number, item in enumerate(value):
            here = f"{at}[{number}]"
            if is_stage and isinstance(item, str):
                shard = known.get(self._absolute(item))
                if shard is None:
                    self._add(here, f"{item!r} is no shard of its split")
                    continue
            else:
                shard = self._shard(item, here)
                if shard is None:
                    continue
                here = f"{here} ({shard.uri})"
                if is_stage:
                    self._check_known(shard, known.get(shard.uri), here)
                    shard = known.get(shard.uri, shard)
            if shard.uri in shards:
                self._add(here, "the shard is listed twice, so its rows would come twice")
            shards[shard.uri] = shard
        return tuple(shards.values())

    def _shard(self, value: object, at: str) -> ManifestShard | None:
        before = len(self.problems)
        table = self._table(value, at, required=("uri", "records"), optional=("size_bytes", "etag", "row_groups"))
        uri, etag, groups = table.get("uri"), table.get("etag"), table.get("row_groups")
        records, size_bytes = table.get("records"), table.get("size_bytes")
        where = f"{at} ({uri})" if isinstance(uri, str) else at
        if table and (not isinstance(uri, str) or not uri.strip() or "\0" in uri):
            self._add(at, f"`uri` is {_shown(uri)}, not a path or URI")
        if table and not _is_count(records):
            self._add(where, f"`records` is {_shown(records)}, not a whole number")
        if size_bytes is not None and not _is_count(size_bytes):
            self._add(where, f"`size_bytes` is {_shown(size_bytes)}, not a whole number")
        if etag is not None and not isinstance(etag, str):
            self._add(where, f"`etag` is {_shown(etag)}, not text")
        if groups is not None:
            if not isinstance(groups, list) or not all(map(_is_count, groups)):
                self._add(where, "`row_groups` is not a list of row counts")
            elif _is_count(records) and sum(groups) != records:
                self._add(where, f"`records` is {records}, and its `row_groups` add up to {sum(groups)}")
        if len(self.problems) > before or not isinstance(uri, str) or not isinstance(records, int):
            return None
        return ManifestShard(
            uri=self._absolute(uri),
            records=records,
            size_bytes=size_bytes,
            etag=etag,
            row_groups=None if groups is None else tuple(groups),
        )

    def _check_known(self, shard: ManifestShard, own: ManifestShard | None, at: str) -> None:
        """A stage's shard must be its split's; what it leaves out is the split's too."""
        if own is None:
            self._add(at, "this is no shard of its split")
            return
        for name in ("records", "size_bytes", "etag", "row_groups"):
            said, known = getattr(shard, name), getattr(own, name)
            if said is not None and known is not None and said != known:
                self._add(at, f"`{name}` is {said}, and {known} in its split")

    def _check_sum(self, table: Mapping[str, Any], shards: Sequence[ManifestShard], at: str) -> None:
        records = table.get("records")
        total = sum(shard.records for shard in shards)
        if table and not _is_count(records):
            self._add(at, f"`records` is {_shown(records)}, not a whole number")
        elif table and records != total and not any(place.startswith(f"{at}.shards") for place, _ in self.problems):
            self._add(at, f"`records` is {records}, and its {len(shards)} shards add up to {total}")

    def _table(
        self, value: object, at: str, *, required: Sequence[str] = (), optional: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """A JSON object with these keys (any, where none are given); {} and a problem where it is not one."""
        if not isinstance(value, dict):
            self._add(at, f"{_shown(value)} is not a JSON object")
            return {}
        if not required:
            return value
        missing = [key for key in required if key not in value]
        unknown = [key for key in value if key not in (*required, *optional)]
        for word, keys in (("lacks", missing), ("has unknown", unknown)):
            if keys:
                self._add(at, f"it {word} {', '.join(f'`{key}`' for key in keys)}")
        return {} if missing or unknown else value

    def _absolute(self, uri: str) -> str:
        """A URI as seen from the manifest's folder."""
        return uri if "://" in uri or uri.startswith("/") else self._folder + uri

    def _add(self, at: str, problem: str) -> None:
        self.problems.append((at, problem))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
