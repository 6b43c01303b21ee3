"""A `StreamJob` is a resolved config without pydantic: what the coordinator works from, sent over a socket."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from o41td.encodings import NODE
from o41td.errors import ConfigError
from o41td.exclusions import NOTHING_EXCLUDED, Exclusions
from o41td.fields import FieldPlan
from o41td.listing import is_local
from o41td.order.stage import MAX_LANES

if TYPE_CHECKING:
    from o41td.chain_source import ChainSource
    from o41td.config import BatchStreamConfig, FileSource, ManifestSource, ShardFile
    from o41td.source_record import SourceRecord

__all__ = [
    "FREE_TO_CHANGE",
    "PARTS_OF_THE_STREAM",
    "ChainJob",
    "ManifestSelection",
    "SourceJob",
    "StageJob",
    "StreamJob",
    "job_of",
]


class ManifestSelection(NamedTuple):
    """Shards of a manifest: those of a split, or of some of its curriculum stages."""

    uri: str
    split: str
    curriculum_stages: tuple[str, ...]


class ChainJob(NamedTuple):
    """A chain of nodes: packed, its fingerprint, which columns of its shards it wants (None is all), and where it runs.

    The parcel is empty where the nodes' code is not at hand: nothing can be decoded then, but all can be planned.
    """

    parcel: bytes
    fingerprint: str
    columns: tuple[str, ...] | None
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceJob:
    """One source of one stage: where its shards are, and which columns they become.

    Shards are `files`, or what `manifest` selects. `encoding` is None where their names tell it, or the manifest.
    `stated` holds (path, rows, size in bytes, etag) of shards of which the config says so, None where it does not.
    """

    name: str
    files: tuple[str, ...]
    weight: float
    fields: tuple[FieldPlan, ...]
    stated: tuple[tuple[str, int | None, int | None, str | None], ...] = ()
    encoding: str | None = None
    manifest: ManifestSelection | None = None
    chain: ChainJob | None = None

    @property
    def columns(self) -> list[str] | None:
        """The columns of its shards that its nodes want; None is all."""
        return None if self.chain is None or self.chain.columns is None else list(self.chain.columns)

    def to_record(self) -> dict[str, Any]:
        """Returns a msgpack-able record."""
        return {
            "name": self.name,
            "files": list(self.files),
            "weight": self.weight,
            "fields": [field.to_record() for field in self.fields],
            "stated": [list(shard) for shard in self.stated],
            "encoding": self.encoding,
            "manifest": self.manifest,
            "chain": self.chain,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> SourceJob:
        """Returns the source of `to_record`."""
        return cls(
            name=record["name"],
            files=tuple(record["files"]),
            weight=record["weight"],
            fields=tuple(FieldPlan.from_record(field) for field in record["fields"]),
            stated=tuple((uri, rows, size, etag) for uri, rows, size, etag in record["stated"]),
            encoding=record["encoding"],
            manifest=_selection_of(record["manifest"]),
            chain=_chain_of(record["chain"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """One stage; `buffer_rows` is 0 without shuffle."""

    name: str
    sources: tuple[SourceJob, ...]
    batch_size: int
    buffer_rows: int
    infinite: bool
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """Everything that determines a loader, but for rank and credentials."""

    stages: tuple[StageJob, ...]
    seed: int
    lanes: int
    threads: int
    lookahead: int | None
    prefetch_batches: int
    block_rows: int | None
    memory_limit_bytes: int | None
    max_row_group_bytes: int
    stall_timeout_s: float
    on_bad_data: str = "raise"
    bad_data_budget: float = 0.0
    quarantine_file: str = ""
    cache_dir: str | None = None
    cache_limit_bytes: int | None = None
    cluster: str | None = None
    excluded: Exclusions = NOTHING_EXCLUDED

    def to_record(self) -> dict[str, Any]:
        """Returns a msgpack-able record."""
        return {
            "stages": [
                {
                    "name": stage.name,
                    "sources": [source.to_record() for source in stage.sources],
                    "batch_size": stage.batch_size,
                    "buffer_rows": stage.buffer_rows,
                    "infinite": stage.infinite,
                    "drop_last": stage.drop_last,
                }
                for stage in self.stages
            ],
            **{name: getattr(self, name) for name in _SCALARS},
            "excluded": [list(excluded) for excluded in self.excluded.ranges],
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> StreamJob:
        """Returns the job of `to_record`."""
        stages = tuple(
            StageJob(
                **{
                    **stage,
                    "sources": tuple(map(SourceJob.from_record, stage["sources"])),
                }
            )
            for stage in record["stages"]
        )
        excluded = Exclusions(record["excluded"])
        return cls(stages=stages, excluded=excluded, **{name: record[name] for name in _SCALARS})


PARTS_OF_THE_STREAM = ("seed", "lanes", "on_bad_data", "bad_data_budget")
"""Settings that say, beside stages, fields and exclusions, which bytes come when, or where they end."""

FREE_TO_CHANGE = (
    "threads",
    "lookahead",
    "prefetch_batches",
    "block_rows",
    "memory_limit_bytes",
    "max_row_group_bytes",
    "stall_timeout_s",
    "quarantine_file",
    "cache_dir",
    "cache_limit_bytes",
    "cluster",
)
"""Settings that say how a loader works: one that differs in these alone serves the same stream."""

_SCALARS = (*PARTS_OF_THE_STREAM, *FREE_TO_CHANGE)


def job_of(
    config: BatchStreamConfig, *, lanes: int, resolved: Mapping[tuple[int, int], SourceRecord] | None = None
) -> StreamJob:
    """Returns the job of a config.

    `resolved` gives the shards of sources by (stage, source), as a checkpoint has them.

    Raises:
        ConfigError: There are more lanes than an order has: the config leaves them to a world of that size.
    """
    if lanes > MAX_LANES:
        text = f"is left out, and {lanes} ranks are more lanes than the {MAX_LANES} that an order has; set it"
        raise ConfigError(problems=[("lanes", text)])
    stages = []
    for stage_index, stage in enumerate(config.stages):
        sources = []
        for source_index, source in enumerate(stage.sources):
            record = (resolved or {}).get((stage_index, source_index))
            sources.append(
                SourceJob(
                    name=config.source_key(stage_index, source_index),
                    weight=source.weight,
                    fields=config.field_plans(stage_index, source_index),
                    chain=_chain_job_of(source),
                    **(_shards_of(source) if record is None else {"files": record.uris, "encoding": record.encoding}),
                )
            )
        stages.append(
            StageJob(
                name=config.stage_names[stage_index],
                sources=tuple(sources),
                batch_size=stage.batch_size,
                buffer_rows=stage.shuffle.buffer_rows if stage.shuffle is not None else 0,
                infinite=stage.infinite,
                drop_last=stage.drop_last,
            )
        )
    return StreamJob(
        stages=tuple(stages),
        lanes=lanes,
        quarantine_file=os.path.abspath(config.quarantine_file),
        cache_dir=None if config.cache_dir is None else os.path.abspath(config.cache_dir),
        excluded=Exclusions(config.exclude),
        **{name: getattr(config, name) for name in _FROM_CONFIG},
    )


_FROM_CONFIG = tuple(name for name in _SCALARS if name not in ("lanes", "quarantine_file", "cache_dir", "cluster"))


def _chain_job_of(source: Any) -> ChainJob | None:
    if not hasattr(source, "nodes"):
        return None
    if source.chain is None:  # enough to plan and to trace with; whoever decodes was refused before
        return ChainJob(b"", source.fingerprint, None, None)
    from o41td.nodes.parcel import packed  # it brings the nodes, of which coordinators need nothing

    chain = source.chain
    chain.refuse_changes()  # and pins a frozen source's version, which travels with it
    return ChainJob(packed(chain), source.fingerprint, getattr(chain.nodes[0], "columns", None), chain.place)


def _shards_of(source: FileSource | ManifestSource | ChainSource) -> dict[str, Any]:
    """What a SourceJob says of a source's shards. Kinds are told apart by their keys: pydantic stays out of here."""
    if hasattr(source, "nodes"):
        chain = cast("ChainSource", source).chain
        if chain is None:
            raise ConfigError("a source is a chain of nodes, and a document holds no code")
        head = chain.nodes[0]
        encoding = getattr(head, "encoding", NODE)
        return {"files": head.files if encoding != NODE else (f"node:{head.label}",), "encoding": encoding}
    if hasattr(source, "manifest_uri"):
        chosen = cast("ManifestSource", source)
        stages = tuple(chosen.curriculum_stages or ())
        return {"files": (), "manifest": ManifestSelection(chosen.manifest_uri, chosen.split, stages)}
    return {
        "files": tuple(map(_listed, source.files)),
        "stated": tuple(
            (file.uri, file.rows, file.size_bytes, file.etag) for file in source.files if not isinstance(file, str)
        ),
        "encoding": source.encoding,
    }


def _selection_of(record: list[Any] | None) -> ManifestSelection | None:
    return None if record is None else ManifestSelection(record[0], record[1], tuple(record[2]))


def _chain_of(record: list[Any] | None) -> ChainJob | None:
    if record is None:
        return None
    parcel, fingerprint, columns, place = record
    return ChainJob(parcel, fingerprint, None if columns is None else tuple(columns), place)


def _listed(file: str | ShardFile) -> str:
    """A path as `list_files` takes it; a ShardFile's is never a glob, so its special characters are escaped."""
    if isinstance(file, str):
        return file
    return glob.escape(file.uri) if is_local(file.uri) and glob.has_magic(file.uri) else file.uri
