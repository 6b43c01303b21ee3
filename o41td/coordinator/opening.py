"""What happens between a loader's start and its first batch: shards listed, footers read, the index checked.

`IndexReading` plans and keeps the results; the server gives its tasks to workers. Shards are opened in workers, never
here: asking pyarrow about an encrypted column aborts the process that asks, and a worker is the one that may die.
Stores are listed in workers as well, who have what it takes to reach them; the local files of a source are listed here.

What need not be read is not: the index cache knows shards by their size, time and inode; the row count of a shard of
records is the same for all fields, so it is cached apart from them; and where config or manifest state the rows of
every unit, only a few shards of each source are opened, to check the schema and to learn what a row costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from o41td.counted import counted_text
from o41td.encodings import NODE, holds_records
from o41td.errors import ChangedDataError, ConfigError, MissingShardError, O41Error
from o41td.fields import field_bytes
from o41td.index import ShardEntry, ShardUnits, SourceIndex, index_source, version_of_etag
from o41td.index_cache import FileIdentity, IndexCache, default_cache_folder, file_identity
from o41td.job import SourceJob, StreamJob
from o41td.listing import is_local
from o41td.source_shards import ListedShard, ManifestShelf, SourceShards
from o41td.workers.messages import FooterRead, ReadFooter

__all__ = ["IndexReading"]

_MAX_ERRORS_TOLD = 5
_NUM_SAMPLES = 4
_LOOK_UPS_TOLD = 1024
# What the cache of some fields keeps of a shard of records, whose count is for any fields.
_FIELDS_ARE_GIVEN: list[Any] = []
_SAVE_EVERY_BYTES = 1 << 30


@dataclass(slots=True, eq=False)
class _Wanted:
    """One shard under one set of fields; several sources may want the same.

    `units` are its own, read now or cached. `stated_rows` are those of its units where nothing was read of it.
    """

    path: str
    source: SourceJob
    encoding: str
    identity: FileIdentity
    cache: IndexCache
    counts: IndexCache
    units: ShardUnits | None = None
    stated_rows: Any = None
    is_task: bool = False
    runs_chain: bool = False
    error: O41Error | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine."""
        return is_local(self.path)

    @property
    def etag(self) -> str | None:
        """A remote shard's, where its store has them."""
        return self.identity[2] if isinstance(self.identity[2], str) else None

    @property
    def may_be_cached(self) -> bool:
        """Whether its identity tells it from what replaces it."""
        return self.identity[2] is not None


class IndexReading:
    """The index of a job in the making."""

    def __init__(
        self,
        job: StreamJob,
        *,
        storage: dict[str, Any] | None,
        expected: Sequence[dict[str, Any]] | None,
        resolved: Mapping[tuple[int, int], SourceShards] | None = None,
        on_look_up: Callable[[int, int], None] = lambda _known, _listed: None,
    ) -> None:
        """Lists the shards of every source, but for those that are `resolved`, and takes from the cache what is there.

        `on_look_up` is called now and then meanwhile, with how many shards are known and listed: of a million files it
        takes a while to ask for their sizes and times.

        Raises:
            O41Error: A source names no file, or a file that is not there.
        """
        self._job = job
        self._storage = storage
        self._expected = {(record["stage"], record["source"]): record for record in expected or ()}
        self._wanted: dict[tuple[str, str, str], _Wanted] = {}
        self._listed: dict[tuple[int, int], SourceShards] = {}
        self._of_source: dict[tuple[int, int], list[_Wanted]] = {}
        self._caches: dict[str, IndexCache] = {}
        self._counted_bytes = 0
        self._on_look_up = on_look_up
        shelf = ManifestShelf()
        for stage, stage_job in enumerate(job.stages):
            for number, source in enumerate(stage_job.sources):
                listed = self._listed[stage, number] = (resolved or {}).get((stage, number)) or shelf.shards_of(source)
                self._of_source[stage, number] = self._wanted_by(source, listed, self._expected.get((stage, number)))
        self._tasks = [wanted for wanted in self._wanted.values() if wanted.is_task]
        self.num_shards = len(self._wanted)
        self.num_done = self.num_shards - len(self._tasks)

    def tasks(self) -> Iterator[ReadFooter]:
        """Yields what workers have to read."""
        for task_id, wanted in enumerate(self._tasks):
            rows = wanted.stated_rows if holds_records(wanted.encoding) else None
            yield ReadFooter(
                task_id=task_id,
                source=wanted.source.name,
                uri=wanted.path,
                encoding=wanted.encoding,
                known_rows=None if rows is None else int(rows.sum()),
                max_row_group_bytes=self._job.max_row_group_bytes,
                size_bytes=None if wanted.is_local else wanted.identity[0],
                etag=None if wanted.is_local else wanted.etag,
                fields=[field.to_record() for field in wanted.source.fields],
                chain=_parcel_of(wanted),
                columns=wanted.source.columns,
                storage=None if wanted.is_local else self._storage,
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
            message.decoding_bytes,
            message.compressed_bytes,
            message.footer_bytes,
            message.size_bytes,
            message.mtime_ns,
            message.version,
        ]
        self.num_done += 1
        if wanted.units is None or not holds_records(wanted.encoding):  # a look at some records tells less than a count
            wanted.units = _units_of(wanted.path, value)
        if not wanted.may_be_cached or (message.size_bytes, message.mtime_ns) != wanted.identity[:2]:
            return
        if not holds_records(wanted.encoding):
            wanted.cache.put(wanted.path, wanted.identity, value)
        else:
            wanted.cache.put(wanted.path, wanted.identity, _FIELDS_ARE_GIVEN)
            if wanted.stated_rows is None:
                wanted.counts.put(wanted.path, wanted.identity, value)
                self._counted_bytes += message.size_bytes
        if self._counted_bytes > _SAVE_EVERY_BYTES:  # counting takes long: an opening that is given up keeps most of it
            self._counted_bytes = 0
            self._save()

    def footer_failed(self, task_id: int, error: O41Error) -> None:
        """Takes a worker's refusal, or word of its death."""
        self.num_done += 1
        self._tasks[task_id].error = error

    def finish(self) -> list[SourceIndex]:
        """Returns the index of every source, in the order of stages and sources.

        Raises:
            O41Error: A shard cannot be used (the first, and how many more), a source has no rows, or shards are not
            those that
                the checkpoint names.
        """
        self._save()
        self._raise_errors()
        sources = []
        for (stage, number), wanted in self._of_source.items():
            job, listed = self._job.stages[stage].sources[number], self._listed[stage, number]
            shards = _all_units(wanted, job)
            for stated, units in zip(listed.shards, shards, strict=True):
                stated.check(units, source=job.name, stated_by=listed.stated_by)
            index = index_source(stage=stage, source=number, name=job.name, shards=shards, encoding=listed.encoding)
            if not index.num_rows:
                raise ConfigError(
                    f"source {job.name!r} has no rows in its {counted_text(len(shards), 'shard')}",
                    advice="Take the source out, or point it at shards that have rows",
                )
            sources.append(index)
        self._refuse_changes(sources)
        return sources

    def _save(self) -> None:
        for cache in self._caches.values():
            cache.save()

    def _wanted_by(self, source: SourceJob, listed: SourceShards, expected: Mapping[str, Any] | None) -> list[_Wanted]:
        fields = [field.to_record() for field in source.fields]
        if source.chain is not None:
            fields.append({"chain": source.chain.fingerprint})
        signature = repr(fields)
        cache = self._cache_of(signature, fields)
        counts = self._cache_of(listed.encoding, [{"records": listed.encoding}])
        # A checkpoint's row counts are known, too; where it has a version, that is compared.
        resumed = {shard[0]: shard for shard in (expected or {}).get("shards", ())}
        found = []
        for shard in listed.shards:
            key = (signature, listed.encoding, shard.path)
            wanted = self._wanted.get(key)
            if wanted is None:
                identity = self._identity_of(shard, source)
                wanted = _Wanted(shard.path, source, listed.encoding, identity, cache, counts)
                self._wanted[key] = wanted
                self._take_from_cache(wanted)
                if len(self._wanted) % _LOOK_UPS_TOLD == 0:
                    self._on_look_up(len(self._wanted), sum(len(sources.shards) for sources in self._listed.values()))
            if wanted.units is None and wanted.stated_rows is None:
                _uri, rows, _size, version = resumed.get(shard.path, (None, None, None, None))
                stated = shard if rows is None else replace(shard, rows=rows)
                wanted.stated_rows = stated.unit_rows(listed.encoding)
                names_other = version is not None and wanted.etag is None  # an etag says by itself what is there
                wanted.is_task |= wanted.stated_rows is None or names_other
            found.append(wanted)
        if source.chain is not None and source.chain.parcel:
            self._check_one(found)
        elif source.encoding == NODE:  # nobody here has the source to ask
            found[0].is_task = False
            return found
        elif holds_records(listed.encoding):
            self._check_some(found)
        unread = [wanted for wanted in found if wanted.units is None and not wanted.is_task]
        samples = _NUM_SAMPLES - (len(found) - len(unread))
        if samples > 0:
            for wanted in unread[:: max(1, -(-len(unread) // samples))]:
                wanted.is_task = True
        return found

    @staticmethod
    def _check_one(found: Sequence[_Wanted]) -> None:
        """Has a chain run on the first rows of one shard, the largest, which has rows if any has."""
        checked = max(found, key=lambda wanted: wanted.identity[0])
        if checked.units is not None and holds_records(checked.encoding):
            checked.stated_rows = checked.units.rows  # which spares counting them again
        checked.runs_chain = checked.is_task = True

    @staticmethod
    def _check_some(found: Sequence[_Wanted]) -> None:
        """Has some of the shards that were counted for other fields looked at: records have no schema to compare."""
        for wanted in found[:: max(1, -(-len(found) // _NUM_SAMPLES))]:
            if wanted.units is not None and wanted.cache.get(wanted.path, wanted.identity) is None:
                wanted.stated_rows = wanted.units.rows  # which spares counting them again
                wanted.is_task = True

    def _take_from_cache(self, wanted: _Wanted) -> None:
        cache = wanted.counts if holds_records(wanted.encoding) else wanted.cache
        if not wanted.may_be_cached:
            return
        value = cache.get(wanted.path, wanted.identity)
        if value is not None:
            wanted.units = _units_of(wanted.path, value)

    def _cache_of(self, signature: str, fields: list[dict[str, Any]]) -> IndexCache:
        cache = self._caches.get(signature)
        if cache is None:
            cache = self._caches[signature] = IndexCache(default_cache_folder(), fields)
        return cache

    @staticmethod
    def _identity_of(shard: ListedShard, source: SourceJob) -> FileIdentity:
        if source.encoding == NODE:
            return 0, 0, None
        if shard.seen is not None:
            return shard.seen[0], 0, shard.seen[1]
        try:
            return file_identity(shard.path)
        except OSError as error:
            raise MissingShardError(source=source.name, shard=shard.path, detail=str(error)) from error

    def _raise_errors(self) -> None:
        errors = [wanted.error for wanted in self._wanted.values() if wanted.error is not None]
        if not errors:
            return
        first = errors[0]
        if len(errors) > 1:
            first.add_note(_others_text(first, errors[1:]))
        raise first

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
                    if None not in (was, now) and was != now:
                        problems.append((index.name, shard.uri, f"{what} {was} -> {now}"))
                        break
        if problems:
            name, uri, _change = problems[0]
            told = "; ".join(f"{uri}: {change}" for _name, uri, change in problems[:20])
            more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise ChangedDataError(
                f"{counted_text(len(problems), 'shard')} {'is' if len(problems) == 1 else 'are'} not what the "
                f"checkpoint was taken on: {told}{more}",
                source=name,
                shard=uri,
            )


def _others_text(first: O41Error, others: Sequence[O41Error]) -> str:
    """What is wrong with other shards than the first: each thing once, with some of the shards that have it."""
    by_detail: dict[str, list[str]] = {first.detail: []}
    for error in others:
        by_detail.setdefault(error.detail, []).append(str(getattr(error, "shard", None) or error.place()))
    lines = []
    for detail, places in list(by_detail.items())[:_MAX_ERRORS_TOLD]:
        told, more = places[: _MAX_ERRORS_TOLD - 1], len(places) - (_MAX_ERRORS_TOLD - 1)
        if more > 0:
            told.append(f"and {counted_text(more, 'more shard')}")
        if told:
            lines.append(f"{'the same in' if detail == first.detail else f'{detail}:'} {', '.join(told)}")
    return "Also: " + "\n".join(lines)


def _parcel_of(wanted: _Wanted) -> bytes | None:
    """The chain that a shard's rows go through, empty where another shard of it is run."""
    if wanted.source.chain is None:
        return None
    return wanted.source.chain.parcel if wanted.runs_chain else b""


def _units_of(path: str, value: Sequence[Any]) -> ShardUnits:
    rows, decoded, decoding, compressed = (np.frombuffer(column, np.int64) for column in value[:4])
    footer_bytes, size_bytes, mtime_ns, version = value[4:]
    return ShardUnits(
        entry=ShardEntry(uri=path, rows=int(rows.sum()), size_bytes=size_bytes, mtime_ns=mtime_ns, version=version),
        rows=rows,
        decoded_bytes=decoded,
        decoding_bytes=decoding,
        compressed_bytes=compressed,
        footer_bytes=footer_bytes,
    )


def _all_units(wanted: Sequence[_Wanted], source: SourceJob) -> list[ShardUnits]:
    """Returns the units of a source's shards; what was not read of a shard is as in those that were."""
    read = [item.units for item in wanted if item.units is not None]
    rows = sum(units.entry.rows for units in read)
    decoded, decoding = (
        max((int(column.sum()) // max(1, len_of) + 1 for column, len_of in columns), default=0)
        for columns in (
            [(units.decoded_bytes, units.entry.rows) for units in read],
            [(units.decoding_bytes, units.entry.rows) for units in read],
        )
    )
    if not rows:
        decoded = sum(map(field_bytes, source.fields))
        decoding = 2 * decoded
    footer_bytes = max((units.footer_bytes for units in read), default=0)
    return [
        item.units if item.units is not None else _stated_units(item, decoded, decoding, footer_bytes)
        for item in wanted
    ]


def _stated_units(item: _Wanted, decoded_bytes: int, decoding_bytes: int, footer_bytes: int) -> ShardUnits:
    """The units of a shard that was not opened; its bytes are spread over its rows."""
    size_bytes, mtime_ns, _ = item.identity
    version = None if item.etag is None else version_of_etag(item.etag)
    total = int(item.stated_rows.sum())
    return ShardUnits(
        entry=ShardEntry(uri=item.path, rows=total, size_bytes=size_bytes, mtime_ns=mtime_ns, version=version),
        rows=item.stated_rows,
        decoded_bytes=item.stated_rows * decoded_bytes,
        decoding_bytes=item.stated_rows * decoding_bytes,
        compressed_bytes=item.stated_rows * size_bytes // max(1, total),
        footer_bytes=footer_bytes,
    )
