"""What happens between a loader's start and its first batch: shards listed, footers read, the index checked.

`IndexReading` plans and keeps the results; the server gives its tasks to workers. A footer is read in a worker, never
here:
asking pyarrow about an encrypted column aborts the process that asks, and a worker is the one that may die.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from o41td.errors import ChangedDataError, ConfigError, MissingShardError, O41Error
from o41td.index import ShardEntry, ShardUnits, SourceIndex, index_source
from o41td.index_cache import FileIdentity, IndexCache, default_cache_folder, file_identity
from o41td.job import SourceJob, StreamJob
from o41td.listing import is_local, list_files, local_path_of
from o41td.workers.messages import FooterRead, ReadFooter

__all__ = ["IndexReading"]

_MAX_ERRORS_TOLD = 5


@dataclass(slots=True)
class _Wanted:
    """One shard under one set of fields; several sources may want the same."""

    path: str
    source: SourceJob
    identity: FileIdentity
    cache: IndexCache
    units: ShardUnits | None = None
    error: O41Error | None = None


class IndexReading:
    """The index of a job in the making."""

    def __init__(
        self, job: StreamJob, *, storage: dict[str, Any] | None, expected: Sequence[dict[str, Any]] | None
    ) -> None:
        """Lists the shards of every source, and takes from the cache what is there.

        Raises:
            O41Error: A source names no file, or a file that is not there.
        """
        self._job = job
        self._storage = storage
        self._expected = {(record["stage"], record["source"]): record for record in expected or ()}
        self._wanted: dict[tuple[str, str], _Wanted] = {}
        self._of_source: dict[tuple[int, int], list[_Wanted]] = {}
        self._caches: dict[str, IndexCache] = {}
        for stage, stage_job in enumerate(job.stages):
            for number, source in enumerate(stage_job.sources):
                self._of_source[stage, number] = self._wanted_by(source)
        self._tasks = [wanted for wanted in self._wanted.values() if wanted.units is None]
        self.num_shards = len(self._wanted)

    @property
    def num_done(self) -> int:
        """Shards whose footer is known (or known to be bad)."""
        return sum(wanted.units is not None or wanted.error is not None for wanted in self._wanted.values())

    def tasks(self) -> Iterator[ReadFooter]:
        """Yields what workers have to read."""
        for task_id, wanted in enumerate(self._tasks):
            yield ReadFooter(
                task_id=task_id,
                source=wanted.source.name,
                uri=wanted.path,
                fields=[field.to_record() for field in wanted.source.fields],
                storage=self._storage,
            )

    def shard_of(self, task_id: int) -> tuple[str, str]:
        """Returns (source, shard) that a task is about."""
        return self._tasks[task_id].source.name, self._tasks[task_id].path

    def footer_read(self, message: FooterRead) -> None:
        """Takes a worker's answer."""
        wanted = self._tasks[message.task_id]
        value = [
            message.rows,
            message.decoded_bytes,
            message.compressed_bytes,
            message.size_bytes,
            message.mtime_ns,
            message.version,
        ]
        wanted.units = _units_of(wanted.path, value)
        if (message.size_bytes, message.mtime_ns) == wanted.identity[:2]:
            wanted.cache.put(wanted.path, wanted.identity, value)

    def footer_failed(self, task_id: int, error: O41Error) -> None:
        """Takes a worker's refusal, or word of its death."""
        self._tasks[task_id].error = error

    def finish(self) -> list[SourceIndex]:
        """Returns the index of every source, in the order of stages and sources.

        Raises:
            O41Error: A shard cannot be used (the first, and how many more), a source has no rows, or shards are not
            those that
                the checkpoint names.
        """
        for cache in self._caches.values():
            cache.save()
        self._raise_errors()
        sources = []
        for (stage, number), wanted in self._of_source.items():
            job = self._job.stages[stage].sources[number]
            shards = [item.units for item in wanted if item.units is not None]
            index = index_source(stage=stage, source=number, name=job.name, shards=shards)
            if not index.num_rows:
                raise ConfigError(
                    f"source {job.name!r} has no rows in its {len(shards)} shard(s)",
                    advice="Take the source out, or point it at shards that have rows",
                )
            sources.append(index)
        self._refuse_false_statements(sources)
        self._refuse_changes(sources)
        return sources

    def _wanted_by(self, source: SourceJob) -> list[_Wanted]:
        remote = [uri for uri in source.files if not is_local(uri)]
        if remote:
            raise ConfigError(
                f"source {source.name!r}: {remote[0]} is not a local path",
                advice="This version streams local files only; copy the shards, or mount the storage",
            )
        signature = repr([field.to_record() for field in source.fields])
        cache = self._caches.get(signature)
        if cache is None:
            cache = IndexCache(default_cache_folder(), [field.to_record() for field in source.fields])
            self._caches[signature] = cache
        found = []
        for path in list_files(source.files, source=source.name):
            wanted = self._wanted.get((signature, path))
            if wanted is None:
                try:
                    identity = file_identity(path)
                except OSError as error:
                    raise MissingShardError(source=source.name, shard=path, detail=str(error)) from error
                wanted = self._wanted[signature, path] = _Wanted(path, source, identity, cache)
                value = cache.get(path, identity)
                if value is not None:
                    wanted.units = _units_of(path, value)
            found.append(wanted)
        return found

    def _raise_errors(self) -> None:
        errors = [wanted.error for wanted in self._wanted.values() if wanted.error is not None]
        if not errors:
            return
        first = errors[0]
        others = [str(error) for error in errors[1:_MAX_ERRORS_TOLD]]
        if others:
            more = len(errors) - 1 - len(others)
            first.add_note("\n".join(["Also:", *others, *([f"… and {more} more shards"] if more else [])]))
        raise first

    def _refuse_false_statements(self, sources: Sequence[SourceIndex]) -> None:
        """Compares shards with what the config states of them.

        Raises:
            ChangedDataError: A shard has other rows or another size.
        """
        for index in sources:
            stated = self._job.stages[index.stage].sources[index.source].stated
            shards = {shard.uri: shard for shard in index.shards}
            for uri, rows, size_bytes in stated:
                shard = shards[os.path.abspath(local_path_of(uri))]
                for what, was, now in (("rows", rows, shard.rows), ("bytes", size_bytes, shard.size_bytes)):
                    if was is not None and was != now:
                        raise ChangedDataError(
                            f"the config states {was} {what} for this shard; it has {now}", source=index.name, shard=uri
                        )

    def _refuse_changes(self, sources: Sequence[SourceIndex]) -> None:
        """Compares shards with those a checkpoint names.

        Raises:
            ChangedDataError: Naming every shard that differs.
        """
        problems = []
        for index in sources:
            record = self._expected.get((index.stage, index.source))
            for shard, expected in zip(index.shards, record["shards"] if record else (), strict=False):
                _uri, rows, size_bytes, version = expected
                for what, was, now in (
                    ("rows", rows, shard.rows),
                    ("bytes", size_bytes, shard.size_bytes),
                    ("version", version, shard.version),
                ):
                    if was != now:
                        problems.append((index.name, shard.uri, f"{what} {was} -> {now}"))
                        break
        if problems:
            name, uri, _change = problems[0]
            told = "; ".join(f"{uri}: {change}" for _name, uri, change in problems[:20])
            more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise ChangedDataError(
                f"{len(problems)} shard(s) are not what the checkpoint was taken on: {told}{more}",
                source=name,
                shard=uri,
            )


def _units_of(path: str, value: Sequence[Any]) -> ShardUnits:
    rows, decoded, compressed = (np.frombuffer(column, np.int64) for column in value[:3])
    entry = ShardEntry(uri=path, rows=int(rows.sum()), size_bytes=value[3], mtime_ns=value[4], version=value[5])
    return ShardUnits(entry=entry, rows=rows, decoded_bytes=decoded, compressed_bytes=compressed)
