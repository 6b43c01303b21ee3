"""What `o41td check` thinks of figures: each probe is ok, a warning or a failure, with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from o41td.counted import counted_text
from o41td.host_limits import TASKS_A_PROCESS, HostLimits, limit_that_stops
from o41td.index import SourceIndex
from o41td.job import StageJob, StreamJob
from o41td.loader_shape import block_fill_rows
from o41td.percentages import percent_text
from o41td.sizes import human_bytes

__all__ = [
    "FolderFigures",
    "HostFigures",
    "Probe",
    "Sampled",
    "first_batch_s",
    "probe_clock",
    "probe_fields",
    "probe_folders",
    "probe_host",
    "probe_shards",
    "probe_store",
]

State = Literal["ok", "warn", "fail"]

_FEW_DESCRIPTORS = 256
_TINY_BYTES = 64 << 10
_POOR_FILL = 0.6
_MUCH_PAD = 0.5
_SLOW_CLOCK_S = 1e-6
_CLOCK_BEHIND_S = 60.0
_LITTLE_DISK_BYTES = 64 << 20
_FAR_S = 0.2
_SLOW_BYTES_PER_S = 10e6
_START_S = 0.4
"""From `open_batch_stream` to the first order to a worker: two interpreters and their imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing that was looked at: `group` is host, storage, shards or a source; without `advice` all is well."""

    group: str
    name: str
    state: State
    found: str
    advice: str = ""

    def to_record(self) -> dict[str, str]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """This host: cores that may be used, memory that may be used, what is free in /dev/shm (None: there is none).

    A look at its clock takes `clock_call_s`, and it says that it is `now_s` since 1970.
    """

    cores: int
    usable_bytes: int
    shm_free_bytes: int | None
    descriptors: int
    limits: HostLimits
    clock_call_s: float
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFigures:
    """A folder that a stream writes to: what for, where, and how much it may come to (0: little).

    `problem` says why nothing can be written there, None where it can. `free_bytes` is None where nobody says.
    """

    name: str
    path: str
    problem: str | None
    free_bytes: int | None
    wanted_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What was seen of one row group: `workers.shard_sample`'s answer; `died` says how the reading process ended."""

    source: str
    shard: str
    row_group: int
    answer: Mapping[str, Any]
    died: str | None = None


def probe_host(host: HostFigures, *, threads: int, bound: Mapping[str, Any], limit_bytes: int) -> list[Probe]:
    """Returns the host's probes.

    Args:
        host: The host.
        threads: The config's worker processes.
        bound: The memory bound's record.
        limit_bytes: What the stream may use.
    """
    needed, arena = bound["bound_bytes"], bound["terms"]["arena"]
    crowded = threads > host.cores
    few = host.descriptors < _FEW_DESCRIPTORS
    over = needed > limit_bytes
    memory = (
        f"{human_bytes(needed)} at most, of {human_bytes(limit_bytes)} allowed and {human_bytes(host.usable_bytes)}"
    )
    shm = (
        "there is no /dev/shm"
        if host.shm_free_bytes is None
        else f"{human_bytes(host.shm_free_bytes)} free in /dev/shm"
    )
    small = host.shm_free_bytes is None or host.shm_free_bytes < arena
    return [
        _probe("host", "cores", "warn" if crowded else "ok",
               f"{counted_text(host.cores, 'core')} for {counted_text(threads, 'worker')}",
               f"Set threads to {host.cores} or fewer: more workers than cores decode no faster"),
        _probe("host", "memory", "fail" if over else "ok", f"{memory} in this host or container",
               "Lower buffer_rows, threads or lookahead, or raise memory_limit_bytes; `o41td plan` shows the terms"),
        _probe("host", "shared memory", "warn" if small else "ok", f"{shm}; the arena takes {human_bytes(arena)}",
               "Anonymous memory is used instead; in a container give more, as with --shm-size"),
        _probe("host", "descriptors", "warn" if few else "ok", f"{host.descriptors:,} may be open",
               f"Raise `ulimit -n` to {4 * _FEW_DESCRIPTORS}: batches that you keep hold a descriptor each"),
        _limits_probe(host.limits, arena_bytes=arena, num_processes=threads + 1),
    ]  # fmt: skip


def _limits_probe(limits: HostLimits, *, arena_bytes: int, num_processes: int) -> Probe:
    stopped = limit_that_stops(limits, arena_bytes=arena_bytes)
    if stopped is not None:
        return _probe("host", "limits", "fail", *stopped)
    needed = num_processes * TASKS_A_PROCESS
    short = limits.tasks is not None and limits.tasks < needed
    left = "no limit in the way" if limits.tasks is None else f"{limits.tasks:,} processes and threads may be begun"
    return _probe("host", "limits", "warn" if short else "ok", left,
                  f"A loader begins about {needed}: raise the container's limit, as with --pids-limit")  # fmt: skip


def probe_clock(host: HostFigures, sources: Sequence[SourceIndex]) -> list[Probe]:
    """Returns the probe of the host's clock: whether it is cheap to look at, and not behind what wrote the shards."""
    newest_s = max((shard.mtime_ns or 0 for source in sources for shard in source.shards), default=0) / 1e9
    behind_s = newest_s - host.now_s
    cost = f"a look takes {host.clock_call_s * 1e9:,.0f} ns"
    if behind_s > _CLOCK_BEHIND_S:
        return [_probe("host", "clock", "warn", f"a shard is from {behind_s:,.0f} s ahead of it",
                       "Set it (NTP): object stores refuse a request from 15 minutes off, and logs lie")]  # fmt: skip
    slow = host.clock_call_s > _SLOW_CLOCK_S
    return [_probe("host", "clock", "warn" if slow else "ok", cost,
                   "The kernel gave up its fast clock: /sys/devices/system/clocksource should say tsc")]  # fmt: skip


def probe_folders(folders: Sequence[FolderFigures]) -> list[Probe]:
    """Returns the probes of the folders that the stream writes to; without any of them it goes on."""
    probes = []
    for folder in folders:
        free = "no limit told" if folder.free_bytes is None else f"{human_bytes(folder.free_bytes)} free"
        wanted = f", {human_bytes(folder.wanted_bytes)} at most for it" if folder.wanted_bytes else ""
        short = folder.free_bytes is not None and folder.free_bytes < max(folder.wanted_bytes, _LITTLE_DISK_BYTES)
        mend = "free some room" if folder.problem is None else "let this user write there"
        probes.append(_probe("storage", folder.name, "warn" if folder.problem is not None or short else "ok",
                             f"{folder.path}: {folder.problem or free + wanted}",
                             f"The stream goes on without: {mend}, or name another folder"))  # fmt: skip
    return probes


def probe_shards(job: StreamJob, stage: StageJob, source: SourceIndex) -> list[Probe]:
    """Returns the probes of one source's shards, from its index alone."""
    name = source.name
    rows, groups = source.unit_rows, len(source.unit_rows)
    empty = sum(not shard.rows for shard in source.shards)
    probes = [
        _probe(name, "empty shards", "warn" if empty else "ok",
               f"{empty:,} of {len(source.shards):,} shards have no rows",
               "Leave them out of the list: each is opened for nothing"),
    ]  # fmt: skip
    if source.encoding != "parquet":
        return probes
    largest_bytes, largest_rows = int(source.unit_decoding_bytes.max()), int(rows.max())
    over = int((source.unit_decoding_bytes > job.max_row_group_bytes).sum())
    several = np.bincount(source.unit_shard, minlength=len(source.shards))[source.unit_shard] > 1
    tiny = int(((source.unit_decoding_bytes < _TINY_BYTES) & several).sum())
    narrow = 1 < stage.buffer_rows < largest_rows
    probes += [
        _probe(name, "large row groups", "warn" if over else "ok",
               f"{over:,} of {groups:,} take more than {human_bytes(job.max_row_group_bytes)} to decode; "
               f"the largest takes {human_bytes(largest_bytes)}",
               "They are decoded in slices, so a seek into one costs up to all of it; write smaller row groups, or "
               "raise max_row_group_bytes"),
        _probe(name, "tiny row groups", "warn" if 2 * tiny > groups else "ok",
               f"{tiny:,} of {groups:,} decode to less than {human_bytes(_TINY_BYTES)}",
               "Opening them costs more than decoding; write row groups of a few MiB"),
    ]  # fmt: skip
    if stage.buffer_rows > 1:
        probes.append(
            _probe(name, "shuffle buffer", "warn" if narrow else "ok",
                   f"{stage.buffer_rows:,} rows; the largest row group has {largest_rows:,}",
                   f"Rows of one row group stay close together: set buffer_rows above {2 * largest_rows}, or write "
                   "rows in random order")
        )  # fmt: skip
    if job.block_rows is not None:
        usual = int(np.median(rows[rows > 0]))
        fill = block_fill_rows(job.block_rows, usual) / job.block_rows
        probes.append(
            _probe(name, "block size", "warn" if fill < _POOR_FILL else "ok",
                   f"row groups of {usual} rows fill blocks of {job.block_rows} to {percent_text(fill)}",
                   "Leave block_rows out, so that it is chosen, or make it a multiple of the row groups' rows")
        )  # fmt: skip
    return probes


def probe_fields(source: SourceIndex, samples: Sequence[Sampled], *, replaces_bad: bool) -> list[Probe]:
    """Returns the probes of what a sample of one source's row groups holds.

    Args:
        source: The source.
        samples: What was seen of it.
        replaces_bad: Whether the stream replaces rows that cannot be had, so that they do not end it.
    """
    name = source.name
    bad: State = "warn" if replaces_bad else "fail"
    broken = [sampled for sampled in samples if sampled.died or "error" in sampled.answer]
    seen = [sampled for sampled in samples if sampled not in broken]
    probes = [
        _probe(name, "readable", bad, _broken_text(sampled), "Write this shard anew, or leave it out")
        for sampled in broken
    ]
    if not seen:
        return probes
    rows = sum(sampled.answer["rows"] for sampled in seen)
    refused = [sampled.answer["refused"] for sampled in seen if sampled.answer["refused"]]
    first = f"; the first: {refused[0]['error']}" if refused else ""
    probes.append(
        _probe(name, "values", bad if refused else "ok",
               f"{sum(one['rows'] for one in refused):,} of {rows:,} sampled rows do not fit the fields{first}",
               "Choose a wider dtype, or set `null` or `exact` of that field")
    )  # fmt: skip
    without = sum(sampled.answer["checksums"] is False for sampled in seen)
    told = sum(sampled.answer["checksums"] is not None for sampled in seen)
    if told:
        probes.append(
            _probe(name, "page checksums", "warn" if without else "ok",
                   f"{told - without} of {told} sampled row groups carry them",
                   "Damage to values may go unnoticed; `o41td write` adds them, but not with --fast")
        )  # fmt: skip
    for field in dict.fromkeys(field for sampled in seen for field in sampled.answer["pad"]):
        shares = [(s.answer["pad"][field], s.answer["rows"]) for s in seen if field in s.answer["pad"]]
        share = sum(part * count for part, count in shares) / sum(count for _part, count in shares)
        probes.append(
            _probe(name, f"padding of {field}", "warn" if share > _MUCH_PAD else "ok",
                   f"{percent_text(share)} of its values",
                   "Set a shorter length, or pack several short records into a row")
        )  # fmt: skip
    return probes


def probe_store(store: str, answer: Mapping[str, Any], kind: str) -> list[Probe]:
    """Returns the probes of one store.

    Args:
        store: Its name: protocol, and bucket or host.
        answer: What `workers.store_sample` saw of it.
        kind: What it is read with: "none", "keys", "token" or "ambient".
    """
    if "error" in answer:
        return [
            _probe(store, "reachable", "fail", answer["error"], "Check the StorageConfig, and the way to the store")
        ]
    latency_s, bytes_per_s = answer["latency_s"], answer["read_bytes"] / max(1e-9, answer["read_s"])
    # What a small object brings tells of the latency, and nothing of the bandwidth.
    slow = bytes_per_s < _SLOW_BYTES_PER_S and answer["read_s"] > 2 * latency_s
    left_s = answer["credentials_left_s"]
    credentials = {
        "none": "none are used",
        "keys": "the keys given, which last until they are revoked",
        "token": "a session token, which does not tell when it expires",
        "ambient": "those of the surroundings"
        + (", which do not expire" if left_s is None else f", good for {left_s / 60:.0f} min and then read anew"),
    }[kind]
    soon = kind == "token" or (left_s is not None and left_s < 0)
    return [
        _probe(store, "latency", "warn" if latency_s > _FAR_S else "ok", f"{latency_s * 1e3:.1f} ms a request",
               "Opening and every block wait for it: read from nearer by, raise lookahead, or set cache_dir"),
        _probe(store, "bandwidth", "warn" if slow else "ok",
               f"{human_bytes(round(bytes_per_s))}/s by one connection, of {human_bytes(answer['read_bytes'])}",
               "Several connections may bring more; if not, cache_dir spares all epochs but the first"),
        _probe(store, "credentials", "warn" if soon else "ok", credentials,
               "A run that outlives them ends in an error; let ambient_credentials find some that are renewed"),
    ]  # fmt: skip


def first_batch_s(job: StreamJob, sources: Sequence[SourceIndex], samples: Sequence[Sampled]) -> float | None:
    """Returns about how long the first batch takes, footers aside; None where nothing was sampled.

    Before it leaves the shuffle, the buffer and a batch have to be decoded, a source's rows by its share, by `threads`
    workers at the sample's speed.
    """
    stage = job.stages[0]
    weight = sum(source.weight for source in stage.sources)
    decode_s = 0.0
    for source in sources:
        seen = [s.answer for s in samples if s.source == source.name and "decode_s" in s.answer]
        if not seen:
            return None
        row_s = sum(answer["decode_s"] for answer in seen) / sum(answer["rows"] for answer in seen)
        share = stage.sources[source.source].weight / weight
        rows = stage.batch_size * share + (stage.buffer_rows if stage.buffer_rows > 1 else 0)
        decode_s += min(rows, source.num_rows) * row_s
    return _START_S + decode_s / job.threads


def _broken_text(sampled: Sampled) -> str:
    where = f"{sampled.shard}, row group {sampled.row_group}"
    return f"{where}: the reading process ended: {sampled.died}" if sampled.died else str(sampled.answer["error"])


def _probe(group: str, name: str, state: State, found: str, advice: str) -> Probe:
    return Probe(group=group, name=name, state=state, found=found, advice="" if state == "ok" else advice)
