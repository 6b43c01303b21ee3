"""o41td: training batches out of Parquet, deterministic, resumable at once on any number of ranks.

     training process (one per rank)              loader (one per rank)
     ┌──────────────────────────────┐   unix      ┌──────────────────────────────┐  socketpairs ┌──────────────┐
     │ BatchStream (the consumer)   │◄──socket──► │ coordinator: plan, schedule, │◄────────────►│ worker 0..n  │
     │  gathers rows into batches   │  msgpack    │ slots, leases, status        │   msgpack    │ fetch+decode │
     │  owns cursor, dropped_rows   │             │ (touches no row bytes)       │              │ into slots   │
     └──────────────┬───────────────┘             └──────────────┬───────────────┘              └──────┬───────┘
                    └───────── maps ─────────►  shared-memory arena of equal slots  ◄──────── maps ────┘

Names are loaded when first used, so that the loader's own processes, which import this package too, stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from o41td.batch import Batch
    from o41td.c_header import get_include
    from o41td.checkpoint import Checkpoint
    from o41td.config import (
        BatchStreamConfig,
        FileSource,
        ManifestSource,
        ProjectedField,
        ShardFile,
        Shuffle,
        Stage,
        StorageConfig,
    )
    from o41td.connecting import connect
    from o41td.errors import (
        BadDataBudgetError,
        ChangedDataError,
        CheckpointError,
        ConfigError,
        ConnectError,
        CoordinatorError,
        CorruptDataError,
        DataError,
        DatasetConflictError,
        MemoryBoundError,
        MissingShardError,
        NodeError,
        O41Error,
        SchemaError,
        SharedMemoryError,
        StorageError,
        StreamClosedError,
        ValueRefusedError,
        WorkerCrashError,
    )
    from o41td.input_worth import Contribution, Finding, contribution, findings, plot_shares, shares
    from o41td.nodes import Chain, Node, NodeStore, Span
    from o41td.opening import open_batch_stream, resume_batch_stream
    from o41td.planning import plan
    from o41td.rank_info import RankInfo
    from o41td.shard_node import JsonLines, MessagePack, Parquet
    from o41td.stream import BatchStream
    from o41td.writing.dataset_writer import DatasetWriter

__version__ = "0.1.0"

_HOMES = {
    "BadDataBudgetError": "o41td.errors",
    "Batch": "o41td.batch",
    "BatchStream": "o41td.stream",
    "BatchStreamConfig": "o41td.config",
    "Chain": "o41td.nodes",
    "ChangedDataError": "o41td.errors",
    "Checkpoint": "o41td.checkpoint",
    "CheckpointError": "o41td.errors",
    "ConfigError": "o41td.errors",
    "ConnectError": "o41td.errors",
    "Contribution": "o41td.input_worth",
    "CoordinatorError": "o41td.errors",
    "CorruptDataError": "o41td.errors",
    "DataError": "o41td.errors",
    "DatasetConflictError": "o41td.errors",
    "DatasetWriter": "o41td.writing.dataset_writer",
    "FileSource": "o41td.config",
    "Finding": "o41td.input_worth",
    "JsonLines": "o41td.shard_node",
    "ManifestSource": "o41td.config",
    "MemoryBoundError": "o41td.errors",
    "MessagePack": "o41td.shard_node",
    "MissingShardError": "o41td.errors",
    "Node": "o41td.nodes",
    "NodeError": "o41td.errors",
    "NodeStore": "o41td.nodes",
    "O41Error": "o41td.errors",
    "Parquet": "o41td.shard_node",
    "ProjectedField": "o41td.config",
    "RankInfo": "o41td.rank_info",
    "SchemaError": "o41td.errors",
    "ShardFile": "o41td.config",
    "SharedMemoryError": "o41td.errors",
    "Shuffle": "o41td.config",
    "Span": "o41td.nodes",
    "Stage": "o41td.config",
    "StorageConfig": "o41td.config",
    "StorageError": "o41td.errors",
    "StreamClosedError": "o41td.errors",
    "ValueRefusedError": "o41td.errors",
    "WorkerCrashError": "o41td.errors",
    "connect": "o41td.connecting",
    "contribution": "o41td.input_worth",
    "findings": "o41td.input_worth",
    "get_include": "o41td.c_header",
    "open_batch_stream": "o41td.opening",
    "plan": "o41td.planning",
    "plot_shares": "o41td.input_worth",
    "resume_batch_stream": "o41td.opening",
    "shares": "o41td.input_worth",
}

__all__ = [
    "BadDataBudgetError",
    "Batch",
    "BatchStream",
    "BatchStreamConfig",
    "Chain",
    "ChangedDataError",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "ConnectError",
    "Contribution",
    "CoordinatorError",
    "CorruptDataError",
    "DataError",
    "DatasetConflictError",
    "DatasetWriter",
    "FileSource",
    "Finding",
    "JsonLines",
    "ManifestSource",
    "MemoryBoundError",
    "MessagePack",
    "MissingShardError",
    "Node",
    "NodeError",
    "NodeStore",
    "O41Error",
    "Parquet",
    "ProjectedField",
    "RankInfo",
    "SchemaError",
    "ShardFile",
    "SharedMemoryError",
    "Shuffle",
    "Span",
    "Stage",
    "StorageConfig",
    "StorageError",
    "StreamClosedError",
    "ValueRefusedError",
    "WorkerCrashError",
    "__version__",
    "connect",
    "contribution",
    "findings",
    "get_include",
    "open_batch_stream",
    "plan",
    "plot_shares",
    "resume_batch_stream",
    "shares",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'o41td' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
