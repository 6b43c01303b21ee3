"""Opening streams, from the arguments on: what is asked of the loader, and the stream that it serves.

`opening` has the public functions; this is imported while the coordinator that they started does its own imports.
"""

from __future__ import annotations

import os
from dataclasses import replace

from o41td.checkpoint import Checkpoint
from o41td.checkpointing import (
    carried_digest,
    cursor_of,
    exclusion_differences,
    refuse_missing_shards,
)
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import CoordinatorProcess, Progress
from o41td.errors import CheckpointError
from o41td.exclusions import Exclusions
from o41td.job import StreamJob, job_of
from o41td.service import LoaderRequest, start_loader
from o41td.stream import BatchStream, StreamStart

__all__ = ["fresh_stream", "request_of", "request_to_resume", "resumed_stream"]


def fresh_stream(
    config: BatchStreamConfig,
    rank: int,
    world_size: int,
    storage: StorageConfig | None,
    *,
    cluster: str | None,
    process: CoordinatorProcess,
    progress: Progress | None,
) -> BatchStream:
    """Returns the stream that `open_batch_stream` does, by a coordinator that is started; `cluster` is Ray's.

    Raises:
        O41Error: As there; the coordinator is left to the caller.
    """
    job = replace(job_of(config, lanes=config.lanes or world_size), cluster=cluster)
    return _open(config, request_of(job, rank, world_size, storage), StreamStart(), process, progress)


def resumed_stream(
    checkpoint: Checkpoint,
    config: BatchStreamConfig,
    rank: int,
    world_size: int,
    storage: StorageConfig | None,
    *,
    cluster: str | None,
    process: CoordinatorProcess,
    progress: Progress | None,
) -> BatchStream:
    """Returns the stream that `resume_batch_stream` does; `config` is the checkpoint's, but for what it excludes.

    Raises:
        O41Error: As there; the coordinator is left to the caller.
    """
    differing = exclusion_differences(checkpoint, Exclusions(config.exclude))
    if differing:
        raise CheckpointError(
            "`exclude` would change what is behind the checkpoint",
            differences=differing,
            advice="Exclude batches that are still to come, or resume from an earlier checkpoint",
        )
    start = StreamStart(cursor_of(checkpoint), carried_digest(checkpoint, rank, world_size))
    request = request_to_resume(checkpoint, config, rank, world_size, storage)
    request = replace(request, job=replace(request.job, cluster=cluster))
    return _open(config, request, start, process, progress)


def request_to_resume(
    checkpoint: Checkpoint, config: BatchStreamConfig, rank: int, world_size: int, storage: StorageConfig | None
) -> LoaderRequest:
    """Returns the request for a checkpoint's own shards, which must be what they were; `config` is the checkpoint's.

    Raises:
        CheckpointError: It lacks the shards of a source.
        ConfigError: The config asks for something that this version does not have.
    """
    refuse_missing_shards(checkpoint, config)
    resolved = {(source.stage, source.source): source for source in checkpoint.sources}
    expected = [
        {
            "stage": source.stage,
            "source": source.source,
            "shards": [
                list(shard) for shard in zip(source.uris, source.rows, source.size_bytes, source.versions, strict=True)
            ],
        }
        for source in checkpoint.sources
    ]
    job = job_of(config, lanes=config.lanes or checkpoint.world_size, resolved=resolved)
    return replace(request_of(job, rank, world_size, storage), expected_sources=expected)


def request_of(job: StreamJob, rank: int, world_size: int, storage: StorageConfig | None) -> LoaderRequest:
    """Returns the request for a job's loader."""
    return LoaderRequest(
        job=job,
        ranks=(rank,),
        world_size=world_size,
        name=f"pid{os.getpid()}-rank{rank}",
        storage=None if storage is None else storage.secret_record(),
    )


def _open(
    config: BatchStreamConfig,
    request: LoaderRequest,
    start: StreamStart,
    process: CoordinatorProcess,
    progress: Progress | None,
) -> BatchStream:
    loader = start_loader(request, progress=progress, process=process)
    known = replace(request, known_sources=[source.to_record() for source in loader.sources], expected_sources=None)
    return BatchStream(
        config=config,
        job=request.job,
        loader=loader,
        restart=lambda _is_given_up: start_loader(known),
        rank=request.ranks[0],
        world_size=request.world_size,
        start=start,
        is_fresh=request.expected_sources is None,
    )
