"""The manifest of finished shards, as `o41td.manifest` reads it. Pure: the same shards make the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from o41td.errors import ConfigError
from o41td.manifest import VERSION
from o41td.writing.saved_shard import SavedShard

__all__ = ["manifest_bytes_of", "manifest_document_of"]


def manifest_document_of(
    shards: Sequence[SavedShard],
    *,
    data_format: str,
    orders: Mapping[str, Mapping[str, Any]],
    curriculum: Mapping[str, Mapping[str, Any]],
    where: str,
) -> dict[str, Any]:
    """Returns the manifest's document.

    Args:
        shards: The finished shards, by split and id.
        data_format: The encoding of all of them.
        orders: What was registered of splits: by split `{"shards": [id, …]}`.
        curriculum: What was registered of stages: by "split/stage" `{"shards": [id, …], "metadata": {…}}`.
        where: The data set, for errors.

    Raises:
        ConfigError: There are no shards, or a registration does not fit them.
    """
    if not shards:
        raise ConfigError("no shard is finished, so there is nothing to publish", where=where)
    splits = {}
    for split, group in groupby(shards, lambda shard: shard.split):
        by_id = {shard.shard_id: shard for shard in group}
        order = _ordered(by_id, orders.get(split), f"the order of split {split!r}", where)
        splits[split] = _split(order, by_id, split, curriculum, where)
    unknown = sorted({name.partition("/")[0] for name in (*orders, *curriculum)} - set(splits))
    if unknown:
        raise ConfigError(f"split {unknown[0]!r} is registered, and has no finished shards", where=where)
    return {"version": VERSION, "data_format": data_format, "splits": splits}


def manifest_bytes_of(document: Mapping[str, Any]) -> bytes:
    """Returns a manifest as it is written."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _ordered(
    by_id: Mapping[str, SavedShard], registered: Mapping[str, Any] | None, what: str, where: str
) -> list[SavedShard]:
    if registered is None:
        return list(by_id.values())
    ids: list[str] = list(registered["shards"])
    missing, left_out = [name for name in ids if name not in by_id], sorted(set(by_id) - set(ids))
    if missing or left_out:
        why = f"names {missing[0]!r}, which is not finished" if missing else f"leaves out {left_out[0]!r}"
        raise ConfigError(f"{what} {why}", where=where)
    return [by_id[name] for name in ids]


def _split(
    order: Sequence[SavedShard],
    by_id: Mapping[str, SavedShard],
    split: str,
    curriculum: Mapping[str, Mapping[str, Any]],
    where: str,
) -> dict[str, Any]:
    stages: dict[str, tuple[list[SavedShard], Mapping[str, Any]]] = {}
    for shard in order:
        if shard.stage is not None:
            stages.setdefault(shard.stage, ([], {}))[0].append(shard)
    for name, registered in curriculum.items():
        of_split, _, stage = name.partition("/")
        if of_split != split:
            continue
        missing = next((one for one in registered["shards"] if one not in by_id), None)
        if missing is not None:
            raise ConfigError(
                f"curriculum stage {stage!r} of split {split!r} names {missing!r}, which is not finished", where=where
            )
        stages[stage] = ([by_id[one] for one in registered["shards"]], registered["metadata"])
    return {
        "records": sum(shard.records for shard in order),
        "shards": [_shard(shard) for shard in order],
        "curriculum": {
            name: {
                "records": sum(shard.records for shard in members),
                "shards": [_shard(shard) for shard in members],
                "metadata": dict(metadata),
            }
            for name, (members, metadata) in stages.items()
        },
    }


def _shard(shard: SavedShard) -> dict[str, Any]:
    found: dict[str, Any] = {"uri": shard.uri, "records": shard.records, "size_bytes": shard.size_bytes, "etag": None}
    if shard.row_groups is not None:
        found["row_groups"] = list(shard.row_groups)
    return found
