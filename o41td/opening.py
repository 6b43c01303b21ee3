"""Opening streams: `open_batch_stream`, `resume_batch_stream`, and `plan`'s reading of the index."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from o41td.chain_source import with_chains
from o41td.checkpoint import Checkpoint
from o41td.checkpointing import (
    carried_digest,
    cursor_of,
    exclusion_differences,
    refuse_missing_shards,
    refuse_order_version,
)
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.errors import CheckpointError, ConfigError
from o41td.exclusions import Exclusions
from o41td.job import StreamJob, job_of
from o41td.nodes import Chain, Node
from o41td.path_argument import path_text
from o41td.rank_info import check_rank
from o41td.service import LoaderRequest, start_loader
from o41td.stream import BatchStream, StreamStart

__all__ = ["open_batch_stream", "refuse_other_config", "request_of", "request_to_resume", "resume_batch_stream"]

Progress = Callable[[int, int], None]
_TO_RESUME_FROM = "Give a Checkpoint or the path of a saved one; Checkpoint.from_document makes one of a state_dict()"


def open_batch_stream(
    config: BatchStreamConfig,
    rank: int = 0,
    world_size: int = 1,
    storage: StorageConfig | None = None,
    engine: str = "local",
    *,
    progress: Progress | None = None,
) -> BatchStream:
    """Opens a stream with a private loader: a coordinator and its workers, which end with the stream.

    Args:
        config: What to stream.
        rank: This process's number, 0 to world_size - 1.
        world_size: How many processes read the stream together.
        storage: How to reach remote storage.
        engine: Where decoding runs: "local" is this host, "ray" the Ray cluster that it is part of.
        progress: Called with (footers read, footers in all) while opening.

    Blocks: until every footer is read and shared memory is reserved.

    Raises:
        O41Error: The config, the data or this host does not allow it; the message says what to do.
    """
    rank, world_size = check_rank(rank, world_size)
    _check_config(config, engine)
    job = replace(job_of(config, lanes=config.lanes or world_size), cluster=_cluster_of(engine))
    request = request_of(job, rank, world_size, storage)
    return _open(config, request, StreamStart(), progress)


def resume_batch_stream(
    checkpoint: Checkpoint | str | os.PathLike[str],
    rank: int = 0,
    world_size: int = 1,
    storage: StorageConfig | None = None,
    engine: str = "local",
    *,
    exclude: Iterable[tuple[int, int]] | None = None,
    chains: Mapping[str, Chain | Node] | None = None,
    progress: Progress | None = None,
) -> BatchStream:
    """Opens a stream where a checkpoint was taken, on any rank of any world size, at a cost that is the same anywhere.

    Args:
        checkpoint: A `Checkpoint`, or the path of a saved one.
        rank: As for `open_batch_stream`.
        world_size: As for `open_batch_stream`; it need not be the checkpoint's.
        storage: As for `open_batch_stream`; a checkpoint holds no credentials.
        engine: As for `open_batch_stream`.
        exclude: Ranges of global batches to pass over instead of those in the checkpoint's config. Behind the
            checkpoint they must be the same: what was delivered was delivered.
        chains: By the source's name the chains of nodes that the stream's sources are: a checkpoint holds no code.
        progress: As for `open_batch_stream`.

    Raises:
        CheckpointError: It cannot be read, is of another order version, or `exclude` would rewrite its history.
        ConfigError: It is neither a checkpoint nor a path.
        ChangedDataError: Shards are no longer what they were; each is named.
        O41Error: As `open_batch_stream`.
    """
    rank, world_size = check_rank(rank, world_size)
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint.load(path_text(checkpoint, "checkpoint", advice=_TO_RESUME_FROM))
    refuse_order_version(checkpoint)
    document = checkpoint.config if exclude is None else {**checkpoint.config, "exclude": _listed(exclude)}
    config = BatchStreamConfig.from_document(with_chains(document, chains or {}))
    differing = exclusion_differences(checkpoint, Exclusions(config.exclude))
    if differing:
        raise CheckpointError(
            "`exclude` would change what is behind the checkpoint",
            differences=differing,
            advice="Exclude batches that are still to come, or resume from an earlier checkpoint",
        )
    _check_config(config, engine)
    start = StreamStart(cursor_of(checkpoint), carried_digest(checkpoint, rank, world_size))
    request = request_to_resume(checkpoint, config, rank, world_size, storage)
    request = replace(request, job=replace(request.job, cluster=_cluster_of(engine)))
    return _open(config, request, start, progress)


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
    """Returns the request for a job's loader.

    Raises:
        ConfigError: `storage` is something else.
    """
    _refuse_other_storage(storage)
    return LoaderRequest(
        job=job,
        ranks=(rank,),
        world_size=world_size,
        name=f"pid{os.getpid()}-rank{rank}",
        storage=None if storage is None else storage.secret_record(),
    )


def _open(
    config: BatchStreamConfig, request: LoaderRequest, start: StreamStart, progress: Progress | None
) -> BatchStream:
    loader = start_loader(request, progress=progress)
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


def _listed(exclude: object) -> object:
    """Any iterable of ranges as a list; what is none is left to the config to refuse."""
    return list(exclude) if isinstance(exclude, Iterable) and not isinstance(exclude, str | bytes) else exclude


def refuse_other_config(config: object) -> None:
    """Refuses what is no config.

    Raises:
        ConfigError: It says how one is made of a file or a dict.
    """
    if not isinstance(config, BatchStreamConfig):
        raise ConfigError(
            f"config is a {type(config).__name__}, not a BatchStreamConfig",
            advice="Use BatchStreamConfig.load(path) for a file, BatchStreamConfig.from_document(d) for a dict",
        )


def _refuse_other_storage(storage: object) -> None:
    if not isinstance(storage, StorageConfig | None):
        problem = f"a {type(storage).__name__} is not a StorageConfig"  # its values may be secret
        raise ConfigError("this storage does not make sense", problems=[("storage", problem)])


def _check_config(config: object, engine: str) -> None:
    refuse_other_config(config)
    if engine not in ("local", "ray"):
        raise ConfigError("this engine is not available", problems=[("engine", f"{engine!r} is not 'local' or 'ray'")])
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise ConfigError('engine "ray" needs Ray', advice='Install it here and on the nodes: pip install "o41td[ray]"')


def _cluster_of(engine: str) -> str | None:
    """Returns the address of the Ray cluster to decode on: that which this program is connected to, or this host's."""
    if engine != "ray":
        return None
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "auto"
    return str(ray.get_runtime_context().gcs_address)
