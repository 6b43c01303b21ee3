"""Loaders' figures in Prometheus' text format (version 0.0.4), for a node exporter's textfile collector, say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["prometheus_text"]

Labels = Mapping[str, object]
_Family = tuple[str, str, str, list[tuple[Labels, float]]]

#  (key of the record, name, kind, help)
_RANK = (
    ("step", "rank_step", "gauge", "Steps of the rank, counted from the stream's beginning."),
    ("batch", "rank_next_batch", "gauge", "Global batch that comes next."),
    ("stage", "rank_stage", "gauge", "Stage that the rank is in."),
    ("batches", "rank_batches_total", "counter", "Batches that the training loop took."),
    ("rows", "rank_rows_total", "counter", "Rows that the training loop took."),
    ("wait_s", "rank_wait_seconds_total", "counter", "Time that the training loop waited for batches."),
    ("rows_per_s", "rank_rows_per_second", "gauge", "Rows a second, over the last ten seconds."),
    ("bytes_per_s", "rank_bytes_per_second", "gauge", "Bytes of batches a second, over the last ten seconds."),
    ("wait_fraction", "rank_wait_ratio", "gauge", "Part of the last ten seconds that the training loop waited."),
    ("ready_batches", "rank_ready_batches", "gauge", "Batches that are ready and not yet taken."),
    ("dropped_rows", "rank_dropped_rows", "gauge", "Rows that the stage's end left out on this rank."),
)
_WORKER = (
    (
        "rss_bytes",
        "worker_resident_bytes",
        "gauge",
        "Resident memory of the worker, the arena's touched pages included.",
    ),
    ("restarts", "worker_restarts_total", "counter", "How often the worker was replaced."),
    ("bytes_per_s", "worker_bytes_per_second", "gauge", "Bytes decoded a second, over the last ten seconds."),
    ("busy_fraction", "worker_busy_ratio", "gauge", "Part of the last ten seconds that the worker worked."),
)
_SOURCE = (
    ("epoch", "source_epoch", "gauge", "Epoch that the source is in, from 0."),
    ("progress", "source_epoch_ratio", "gauge", "Part of the epoch that was taken."),
    ("rows", "source_rows", "gauge", "Rows of the source."),
    ("decoded_rows", "source_decoded_rows_total", "counter", "Rows decoded."),
    ("cache_hits", "source_cache_hits_total", "counter", "Units or rows found in a cache or a node's store."),
    ("cache_misses", "source_cache_misses_total", "counter", "Units or rows looked for in one and not found."),
)
_LOADER = (
    (("memory", "bound_bytes"), "memory_bound_bytes", "gauge", "The most memory that the loader may use."),
    (("memory", "used_bytes"), "memory_used_bytes", "gauge", "Memory that the loader uses."),
    (("arena", "slots"), "arena_slots", "gauge", "Slots of the arena."),
    (("arena", "free"), "arena_free_slots", "gauge", "Slots that hold nothing."),
    (("blocks_decoded",), "blocks_decoded_total", "counter", "Blocks decoded."),
    (("blocks_evicted",), "blocks_evicted_total", "counter", "Blocks thrown out to be decoded again."),
    (("decoded_bytes",), "decoded_bytes_total", "counter", "Bytes decoded."),
    (("bad_rows",), "bad_rows_total", "counter", "Rows that could not be had."),
    (("storage", "requests"), "storage_requests_total", "counter", "Requests to object stores, each attempt one."),
    (("storage", "retries"), "storage_retries_total", "counter", "Requests that were made again."),
    (("storage", "received_bytes"), "storage_received_bytes_total", "counter", "Bytes received from object stores."),
    (("storage", "in_flight"), "storage_requests_in_flight", "gauge", "Requests to object stores under way."),
    (("cache", "hits"), "cache_hits_total", "counter", "Units taken from the block cache."),
    (("cache", "misses"), "cache_misses_total", "counter", "Units decoded and, where that could be, kept."),
    (("cache", "read_bytes"), "cache_read_bytes_total", "counter", "Bytes read from the block cache."),
    (("cache", "written_bytes"), "cache_written_bytes_total", "counter", "Bytes written to the block cache."),
    (("cache", "evicted_files"), "cache_evicted_files_total", "counter", "Files removed from it to make room."),
    (("cache", "evicted_bytes"), "cache_evicted_bytes_total", "counter", "Bytes removed from it to make room."),
    (("cache", "broken_files"), "cache_broken_files_total", "counter", "Files removed from it as damaged."),
    (("fetch_s",), "fetch_seconds_total", "counter", "Workers' time spent fetching."),
    (("decode_s",), "decode_seconds_total", "counter", "Workers' time spent decoding."),
    (("project_s",), "project_seconds_total", "counter", "Workers' time spent converting and padding."),
)


def prometheus_text(loaders: Sequence[Mapping[str, Any]]) -> str:
    """Returns the figures of `list_loaders()`; a figure that a loader does not have yet is left out."""
    lines: list[str] = []
    for name, kind, help_text, samples in _families(loaders):
        if samples:
            lines += [f"# HELP o41td_{name} {help_text}", f"# TYPE o41td_{name} {kind}"]
            lines += [f"o41td_{name}{_labels_text(labels)} {_number_text(value)}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _families(loaders: Sequence[Mapping[str, Any]]) -> Iterator[_Family]:
    up: list[tuple[Labels, float]] = [
        ({**_labels_of(loader), "state": loader["state"], "limit": loader["limit"]}, 1.0) for loader in loaders
    ]
    yield "loader", "gauge", "A loader that runs, its state, and what limits it.", up
    for keys, name, kind, help_text in _LOADER:
        found = ((_labels_of(loader), _dug(loader, keys)) for loader in loaders)
        yield name, kind, help_text, _present(found)
    for part, label, figures in (("ranks", "rank", _RANK), ("workers", "id", _WORKER), ("sources", "name", _SOURCE)):
        for key, name, kind, help_text in figures:
            of_part = (
                ({**_labels_of(loader), part[:-1]: item[label]}, item.get(key))
                for loader in loaders
                for item in loader[part]
            )
            yield name, kind, help_text, _present(of_part)


def _labels_of(loader: Mapping[str, Any]) -> dict[str, object]:
    return {"loader": loader["name"], "pid": loader["pid"]}


def _dug(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        found = record.get(key)
        record = {} if found is None else found
    return None if record == {} else record


def _present(samples: Iterable[tuple[Labels, Any]]) -> list[tuple[Labels, float]]:
    return [(labels, value) for labels, value in samples if value is not None]


def _labels_text(labels: Labels) -> str:
    parts = (f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return "{" + ",".join(parts) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number_text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
