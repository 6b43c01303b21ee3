"""`check`: this host, these shards, this config. Nothing is streamed; a few row groups are read in a child process."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import Progress
from o41td.encodings import NODE
from o41td.errors import ConfigError, O41Error
from o41td.fields import field_bytes
from o41td.host_limits import host_limits, usable_cores
from o41td.host_memory import default_memory_limit_bytes, usable_memory_bytes
from o41td.index import SourceIndex
from o41td.index_cache import default_cache_folder
from o41td.job import StreamJob
from o41td.listing import is_local
from o41td.outline import read_outline
from o41td.probes import (
    FolderFigures,
    HostFigures,
    Probe,
    Sampled,
    first_batch_s,
    probe_clock,
    probe_fields,
    probe_folders,
    probe_host,
    probe_shards,
    probe_store,
)
from o41td.workers.supervisor import describe_exit

__all__ = ["check", "folder_figures", "host_figures"]

_SAMPLE_ROWS = 4096
_SAMPLE_BYTES = 32 << 20
_CLOCK_TRIES = 5
_CLOCK_CALLS = 1000


def check(
    config: BatchStreamConfig,
    rank: int = 0,
    world_size: int = 1,
    *,
    storage: StorageConfig | None = None,
    samples: int = 4,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns what `o41td check --json` prints: probes, the worst state, and predictions.

    Args:
        config: The stream.
        rank: Whose loader is meant.
        world_size: How many ranks share the stream.
        storage: As for `open_batch_stream`.
        samples: Row groups of each source that are read.
        progress: As for `open_batch_stream`.

    Blocks: until every footer and the samples are read.

    Raises:
        ConfigError: The config makes no sense.
    """
    host = host_figures()
    try:
        outline = read_outline(config, rank=rank, world_size=world_size, storage=storage, progress=progress)
    except ConfigError:
        raise
    except O41Error as error:  # the shards are at fault, which is what was asked
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return _record([Probe(group="shards", name="footers and schemas", state="fail", found=text)])
    job = outline.job
    limit_bytes = job.memory_limit_bytes or default_memory_limit_bytes()
    probes = probe_host(host, threads=job.threads, bound=outline.bound, limit_bytes=limit_bytes)
    sources = [source for stage in range(len(job.stages)) for source in outline.sources_of(stage)]
    probes += probe_clock(host, sources)
    probes += probe_folders(folder_figures(job))
    probes += _schemas_probe(sources)
    probes += _store_probes(sources, storage or StorageConfig())
    seen: list[Sampled] = []
    for stage, stage_job in enumerate(job.stages):
        for source in outline.sources_of(stage):
            found = _read_samples(job, source, samples, storage or StorageConfig())
            seen += found
            probes += probe_shards(job, stage_job, source)
            probes += probe_fields(source, found, replaces_bad=job.on_bad_data == "replace")
    seconds = first_batch_s(job, outline.sources_of(0), seen)
    return _record(probes, bound=outline.bound["bound_bytes"], seconds=seconds)


def host_figures() -> HostFigures:
    """Returns this host's figures, as this process may use them."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - asked how much is free, nothing is made there
        free: int | None = status.f_bavail * status.f_frsize
    except OSError:
        free = None
    return HostFigures(
        cores=usable_cores(),
        usable_bytes=usable_memory_bytes(),
        shm_free_bytes=free,
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        limits=host_limits(),
        clock_call_s=_clock_call_s(),
        now_s=time.time(),
    )


def _clock_call_s() -> float:
    """What a look at the clock costs: the least of some tries, since others may have the core meanwhile."""
    return min(timeit.repeat(time.perf_counter, repeat=_CLOCK_TRIES, number=_CLOCK_CALLS)) / _CLOCK_CALLS


def folder_figures(job: StreamJob) -> list[FolderFigures]:
    """Returns the folders that a stream of this job writes to: of the index cache, its block cache, the quarantine."""
    folders = [("index cache", str(default_cache_folder()), 0)]
    if job.cache_dir is not None:
        folders.append(("block cache", job.cache_dir, job.cache_limit_bytes or 0))
    if job.on_bad_data == "replace":
        folders.append(("quarantine file", os.path.dirname(job.quarantine_file), 0))
    return [_folder_figures(name, path, wanted) for name, path, wanted in folders]


def _folder_figures(name: str, path: str, wanted_bytes: int) -> FolderFigures:
    there = path
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)  # it is made when it is needed
    problem, free = None, None
    try:
        with tempfile.TemporaryFile(dir=there):  # without a name: nobody sees it
            status = os.statvfs(there)
        if status.f_blocks:  # a tmpfs without a limit says 0
            free = status.f_bavail * status.f_frsize
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"nothing can be written there ({reason})"
        if there != path:
            problem = f"it cannot be made, as nothing can be written in {there} ({reason})"
    return FolderFigures(name=name, path=path, problem=problem, free_bytes=free, wanted_bytes=wanted_bytes)


def _schemas_probe(sources: Sequence[SourceIndex]) -> list[Probe]:
    shards = sum(len(source.shards) for source in sources)
    told = (
        f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in ((shards, "shard"), (len(sources), "source"))
    )
    found = f"{' of '.join(told)}, all with the fields"
    return [Probe(group="shards", name="footers and schemas", state="ok", found=found)]


def _store_probes(sources: Sequence[SourceIndex], storage: StorageConfig) -> list[Probe]:
    """Looks at every store through its largest shard."""
    shards = [
        shard for source in sources for shard in source.shards if not is_local(shard.uri) and source.encoding != NODE
    ]
    largest = {_store_of(shard.uri): shard for shard in sorted(shards, key=attrgetter("size_bytes"))}
    if not largest:
        return []
    objects = [{"uri": each.uri, "size_bytes": each.size_bytes, "etag": each.etag} for each in largest.values()]
    request = {"storage": storage.secret_record(), "objects": objects}
    answers, died = _answers_of("o41td.workers.store_sample", request)
    answers += [{"error": f"the process that asked ended: {died}"}] * (len(objects) - len(answers))
    return [
        probe
        for store, answer in zip(largest, answers, strict=True)
        for probe in probe_store(store, answer, _credentials_of(store, storage))
    ]


def _store_of(uri: str) -> str:
    scheme, _, path = uri.partition("://")
    return f"{scheme}://{path.partition('/')[0]}"


def _credentials_of(store: str, storage: StorageConfig) -> str:
    """What a store is read with, in a word."""
    if storage.ambient_credentials:
        return "ambient"
    if not store.startswith("s3") or storage.anonymous:
        return "none"
    return "keys" if storage.session_token is None else "token"


def _record(probes: Sequence[Probe], *, bound: int | None = None, seconds: float | None = None) -> dict[str, Any]:
    states = {probe.state for probe in probes}
    return {
        "state": next(state for state in ("fail", "warn", "ok") if state in states),
        "bound_bytes": bound,
        "first_batch_s": None if seconds is None else round(seconds, 3),
        "probes": [probe.to_record() for probe in probes],
    }


def _read_samples(job: StreamJob, source: SourceIndex, count: int, storage: StorageConfig) -> list[Sampled]:
    """Reads row groups spread over the source; one that ends the child process is noted, and the rest read on."""
    fields = job.stages[source.stage].sources[source.source].fields
    row_bytes = max(1, sum(map(field_bytes, fields)))
    most_rows = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // row_bytes))
    units = np.flatnonzero(source.unit_rows)
    chosen = np.unique(units[np.linspace(0, len(units) - 1, min(count, len(units))).astype(int)])
    samples = [
        {
            "source": source.name,
            "encoding": source.encoding,
            "path": source.shards[source.unit_shard[unit]].uri,
            "size_bytes": source.shards[source.unit_shard[unit]].size_bytes,
            "etag": source.shards[source.unit_shard[unit]].etag,
            "fields": [field.to_record() for field in fields],
            "row_group": int(source.unit_row_group[unit]),
            "group_rows": int(source.unit_rows[unit]),
            "first_row": int(source.unit_first_row[unit]),
            "decoding_bytes": int(source.unit_decoding_bytes[unit]),
            "take": min(most_rows, int(source.unit_rows[unit])),
        }
        for unit in chosen
    ]
    found: list[Sampled] = []
    while len(found) < len(samples):
        rest = samples[len(found) :]
        answers, died = _answers_to(rest, job.max_row_group_bytes, storage)
        found += [_sampled(sample, answer) for sample, answer in zip(rest, answers, strict=False)]
        if len(answers) < len(rest):
            found.append(_sampled(rest[len(answers)], {}, died=died))
    return found


def _answers_to(
    samples: Sequence[dict[str, Any]], max_row_group_bytes: int, storage: StorageConfig
) -> tuple[list[dict[str, Any]], str]:
    request = {"max_row_group_bytes": max_row_group_bytes, "samples": samples, "storage": storage.secret_record()}
    return _answers_of("o41td.workers.shard_sample", request)


def _answers_of(module: str, request: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Has a process of its own answer a request, and returns its answers, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in lines], describe_exit(done.returncode)


def _sampled(sample: dict[str, Any], answer: dict[str, Any], *, died: str | None = None) -> Sampled:
    return Sampled(
        source=sample["source"], shard=sample["path"], row_group=sample["row_group"], answer=answer, died=died
    )
