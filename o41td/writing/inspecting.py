"""What `o41td inspect` shows of a file, a manifest or a config; files are looked at in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from o41td.config import BatchStreamConfig
from o41td.config_file import read_document
from o41td.error_records import error_from_record
from o41td.errors import ConfigError, CorruptDataError
from o41td.fields import FieldPlan
from o41td.job import SourceJob, job_of
from o41td.manifest import Manifest, read_manifest
from o41td.source_shards import ManifestShelf
from o41td.workers.supervisor import describe_exit
from o41td.writing.inputs import list_inputs

__all__ = ["inspect_target"]

_CONFIG_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
_FORMATS = {"parquet": "parquet", "jsonl.gz": "jsonl", "msgpack.zstf": "msgpack"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A file to look at: as an input of some format or, with fields, as a shard of a source."""

    path: str
    format: str
    encoding: str = ""
    source: str = ""
    fields: tuple[FieldPlan, ...] = ()


def inspect_target(target: str, *, rows: int, input_format: str | None = None) -> dict[str, Any]:
    """Returns what there is to know of a target.

    Args:
        target: A config, a manifest, or a file or folder of a known format.
        rows: How many of the first rows to show.
        input_format: What a file is; a config or a manifest where it may be one, else from the suffix, if left out.

    Returns:
        `kind` ("file", "manifest", "config") and `files`, each as `inspection.facts_of` says, with its `source` for a
        config; for a manifest `splits` too.

    Raises:
        O41Error: It cannot be read, or is nothing of the kind.

    Blocks: while child processes read.
    """
    if input_format is not None or not target.lower().endswith(_CONFIG_SUFFIXES) or not os.path.isfile(target):
        files = list_inputs([target], input_format)
        return {"kind": "file", "files": [_facts_of(_Look(path=files[0].path, format=files[0].format), rows)]}
    document = read_document(target)
    if "splits" in document:
        return _of_manifest(read_manifest(os.path.abspath(target)), rows)
    if "stages" in document:
        return _of_config(BatchStreamConfig.load(target), rows)
    if "cursor" in document:
        raise ConfigError(
            "this is a checkpoint, which holds no rows",
            where=target,
            advice="`o41td trace` tells what its batches held, `o41td index` its shards; inspect takes the config",
        )
    raise ConfigError("this is neither a manifest nor a config", where=target)


def _of_manifest(manifest: Manifest, rows: int) -> dict[str, Any]:
    splits = {}
    files = []
    for name, split in manifest.splits.items():
        splits[name] = {
            "shards": len(split.shards),
            "records": sum(shard.records for shard in split.shards),
            "bytes": sum(shard.size_bytes or 0 for shard in split.shards),
            "curriculum": {
                stage: [len(found.shards), sum(shard.records for shard in found.shards)]
                for stage, found in split.curriculum.items()
            },
        }
        if split.shards:
            look = _Look(path=split.shards[0].uri, format=_FORMATS[manifest.data_format])
            files.append({"source": name, **_facts_of(look, rows)})
    return {"kind": "manifest", "data_format": manifest.data_format, "splits": splits, "files": files}


def _of_config(config: BatchStreamConfig, rows: int) -> dict[str, Any]:
    shelf = ManifestShelf()
    seen: dict[str, SourceJob] = {}
    for stage in job_of(config, lanes=config.lanes or 1).stages:
        for source in stage.sources:
            seen.setdefault(source.name.partition("/")[2] or source.name, source)
    files = []
    for name, source in seen.items():
        shards = shelf.shards_of(source)
        look = _Look(
            path=shards.shards[0].path,
            format=_FORMATS[shards.encoding],
            encoding=shards.encoding,
            source=source.name,
            fields=tuple(source.fields),
        )
        files.append({"source": name, "shards": len(shards.shards), **_facts_of(look, rows)})
    return {"kind": "config", "files": files}


def _facts_of(look: _Look, rows: int) -> dict[str, Any]:
    request: Mapping[str, Any] = {
        "path": look.path,
        "format": look.format,
        "encoding": look.encoding,
        "source": look.source,
        "fields": [field.to_record() for field in look.fields],
        "rows": rows,
    }
    command: Sequence[str] = [sys.executable, "-P", "-m", "o41td.writing.inspection"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        why = describe_exit(done.returncode)
        raise CorruptDataError(f"the process that looked at this file did not survive it: {why}", shard=look.path)
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise error_from_record(answer["error"])
    return answer
