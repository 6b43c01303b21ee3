"""A checkpoint under a config that names its shards otherwise: by another path, by a glob, or where they lie now.

Paths are no part of what a stream is: rows, sizes and versions of the shards are, and a resume compares those. So a
config that differs from a checkpoint's in nothing but `files` or `manifest_uri` is resolved anew, and the checkpoint
takes over the paths; shard for shard, what lies there must be what it was.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from o41td.checkpoint import Checkpoint, SourceRecord, differences, source_renamed
from o41td.document_differences import differences_of
from o41td.encodings import NODE
from o41td.errors import CheckpointError, O41Error
from o41td.job import SourceJob, StreamJob, job_of
from o41td.listing import is_local
from o41td.source_shards import ManifestShelf, SourceShards

if TYPE_CHECKING:
    from o41td.config import BatchStreamConfig

__all__ = ["checkpoint_under"]


def checkpoint_under(checkpoint: Checkpoint, config: BatchStreamConfig, *, told: str) -> Checkpoint:
    """Returns a checkpoint to resume from as a config has it: its settings, and its paths of the same shards.

    What the checkpoint excludes stays told, to be compared.

    Args:
        checkpoint: The checkpoint.
        config: A config that names the same rows in the same order. Lanes left out are the checkpoint's.
        told: What to tell where it does not.

    Raises:
        CheckpointError: It names other rows, or another order; what differs is named.
        O41Error: A source whose shards have another path now cannot be listed.

    Blocks: on the file system, where shards have other paths than they had.
    """
    differing = differences(checkpoint, config.to_document())
    renamed = [source_renamed(path) for path, *_values in differing]
    if None not in renamed:
        checkpoint, differing = _moved(checkpoint, config, {key for key in renamed if key is not None})
    if differing:
        raise CheckpointError(told, differences=differing, advice="Resume with the config it was taken under")
    kept = {"lanes": checkpoint.config.get("lanes"), "exclude": checkpoint.config.get("exclude", [])}
    return replace(checkpoint, config=config.to_document() | kept)


def _moved(
    checkpoint: Checkpoint, config: BatchStreamConfig, renamed: set[tuple[int, int]]
) -> tuple[Checkpoint, list[tuple[str, Any, Any]]]:
    """The checkpoint with the paths that the config gives now, and what is in the way of that."""
    gone = {(record.stage, record.source) for record in checkpoint.sources if _is_gone(record)}
    if not renamed | gone:
        return checkpoint, []
    job, shelf = job_of(config, lanes=1), ManifestShelf()
    records, differing = [], []
    for record in checkpoint.sources:
        key = (record.stage, record.source)
        source = _source_of(job, *key) if key in renamed | gone else None
        now: SourceRecord = record
        unlike: list[tuple[str, Any, Any]] = []
        if source is not None:
            with nullcontext() if key in renamed else suppress(O41Error):  # what is gone is told when it is opened
                now, unlike = _renamed(record, _listed(record, source, shelf))
        differing += unlike if key in renamed else []
        records.append(now)
    return (checkpoint if differing else replace(checkpoint, sources=tuple(records))), differing


def _is_gone(record: SourceRecord) -> bool:
    """Whether a source's files are not where they were, going by the first."""
    return record.encoding != NODE and any(is_local(uri) and not os.path.exists(uri) for uri in record.uris[:1])


def _source_of(job: StreamJob, stage: int, source: int) -> SourceJob | None:
    """A source that names files; None where there is none, or it is a chain of nodes."""
    if stage >= len(job.stages) or source >= len(job.stages[stage].sources):
        return None
    found = job.stages[stage].sources[source]
    return found if found.chain is None else None


def _listed(record: SourceRecord, source: SourceJob, shelf: ManifestShelf) -> SourceShards:
    """The shards that a source names now, all of them local."""
    if shelf.needs_store(source):
        raise CheckpointError(
            f"the config names the shards of source {record.name!r} otherwise than the checkpoint, and some are remote",
            advice="Name them as in the config it was taken under: a store is not listed to compare names",
        )
    return shelf.shards_of(source)


def _renamed(was: SourceRecord, listed: SourceShards) -> tuple[SourceRecord, list[tuple[str, Any, Any]]]:
    """The record with the listed paths; or as it was, and what differs before any shard is opened."""
    where = f"sources[{was.name}]"
    unlike = differences_of(was.encoding, listed.encoding, f"{where}.encoding")
    uris = tuple(shard.path for shard in listed.shards)
    if len(uris) != len(was.uris):
        names = [os.path.basename(uri) for uri in was.uris], [os.path.basename(uri) for uri in uris]
        unlike += differences_of(*names, f"{where}.shards")
    return (was if unlike else replace(was, uris=uris)), unlike
