"""Opening streams: `open_batch_stream` and `resume_batch_stream`, as far as that is before all else.

A loader's coordinator takes a few tenths of a second to start, most of them imports, and what this process needs for a
stream takes nearly as long to import, NumPy with it. So both do it at once: here the coordinator is started as soon as
the arguments make sense, and the rest is imported then, from `stream_opening`.

That import is a thread's, where no Ctrl-C arrives: a process in which NumPy's import was interrupted can never import
it again ("cannot load module more than once per process"), and would have to be started anew.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from o41td.chain_source import with_chains
from o41td.checkpoint import Checkpoint, refuse_order_version
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import CoordinatorProcess, Progress
from o41td.counted import kind_text
from o41td.errors import ConfigError
from o41td.nodes import Chain, Node
from o41td.path_argument import path_text
from o41td.rank_info import check_rank

if TYPE_CHECKING:
    from o41td.stream import BatchStream

__all__ = ["open_batch_stream", "refuse_other_config", "refuse_other_storage", "resume_batch_stream"]

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
    refuse_other_storage(storage)
    cluster = _cluster_of(engine)

    with _coordinator_of(config) as process:
        _import_undisturbed()
        from o41td.stream_opening import fresh_stream

        return fresh_stream(config, rank, world_size, storage, cluster=cluster, process=process, progress=progress)


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
    _check_config(config, engine)
    refuse_other_storage(storage)
    cluster = _cluster_of(engine)

    with _coordinator_of(config) as process:
        _import_undisturbed()
        from o41td.stream_opening import resumed_stream

        return resumed_stream(
            checkpoint, config, rank, world_size, storage, cluster=cluster, process=process, progress=progress
        )


@contextmanager
def _coordinator_of(config: BatchStreamConfig) -> Iterator[CoordinatorProcess]:
    """Starts a coordinator, which is left running where all goes well."""
    process = CoordinatorProcess(config.threads)
    try:
        yield process
    except BaseException:
        process.kill()  # it may be at its imports, and would not hear us
        process.end()
        raise


def _import_undisturbed() -> None:
    """Imports `stream_opening` in another thread; the caller imports it again, and hears what is wrong."""

    def import_it() -> None:
        with suppress(Exception):
            import o41td.stream_opening  # noqa: F401

    if "o41td.stream_opening" not in sys.modules:
        thread = threading.Thread(target=import_it, name="o41td-import")
        thread.start()
        thread.join()


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
            f"config is {kind_text(config)}, not a BatchStreamConfig",
            advice="Use BatchStreamConfig.load(path) for a file, BatchStreamConfig.from_document(d) for a dict",
        )


def refuse_other_storage(storage: object) -> None:
    """Refuses what is no storage.

    Raises:
        ConfigError: Its value is not shown, as it may be secret.
    """
    if not isinstance(storage, StorageConfig | None):
        problem = f"{kind_text(storage)} is not a StorageConfig"  # its values may be secret
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
