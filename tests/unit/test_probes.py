"""What `o41td check` thinks of figures that are given to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from o41td import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage
from o41td.checking import folder_figures
from o41td.host_limits import HostLimits
from o41td.index import ShardEntry, ShardUnits, index_source
from o41td.job import StreamJob, job_of
from o41td.probes import (
    FolderFigures,
    HostFigures,
    Sampled,
    first_batch_s,
    probe_clock,
    probe_fields,
    probe_folders,
    probe_host,
    probe_shards,
)
from o41td.workers.shard_sample import has_page_checksum

HOST = HostFigures(
    cores=4,
    usable_bytes=8 << 30,
    shm_free_bytes=1 << 30,
    descriptors=1024,
    limits=HostLimits(),
    clock_call_s=4e-8,
    now_s=1.8e9,
)
BOUND = {"bound_bytes": 300 << 20, "terms": {"arena": 64 << 20}}


def a_job(*, buffer_rows: int = 64, **keys) -> StreamJob:
    """One stage of one source, batches of 10 rows."""
    source = FileSource(files=["x.parquet"], name="s")
    stage = Stage(sources=[source], batch_size=10, shuffle=Shuffle(buffer_rows=buffer_rows))
    fields = [ProjectedField(name="x", source="x", dtype="i64")]
    return job_of(BatchStreamConfig(fields=fields, stages=[stage], **keys), lanes=1)


def a_source(*shards: list[int], row_bytes: int = 10_000):
    """A source of shards with row groups of so many rows."""
    units = []
    for number, groups in enumerate(shards):
        rows = np.array(groups, np.int64)
        entry = ShardEntry(uri=f"{number}.parquet", rows=sum(groups), size_bytes=1, mtime_ns=1, version=None)
        cost = rows * row_bytes
        units.append(
            ShardUnits(
                entry=entry, rows=rows, decoded_bytes=cost, decoding_bytes=cost, compressed_bytes=cost, footer_bytes=9
            )
        )
    return index_source(stage=0, source=0, name="s", shards=units, encoding="parquet")


def sampled(**answer) -> Sampled:
    """A row group that was looked at."""
    whole = {"rows": 100, "decode_s": 0.1, "checksums": True, "pad": {}, "refused": None, **answer}
    return Sampled(source="s", shard="0.parquet", row_group=0, answer=whole)


def states(probes) -> dict[str, str]:
    """The state by the probe's name; where there is no advice all is well, and only there."""
    assert all((probe.state == "ok") == (not probe.advice) for probe in probes)
    return {probe.name: probe.state for probe in probes}


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({}, "cores", "ok"),
        ({"cores": 1}, "cores", "warn"),
        ({"shm_free_bytes": 63 << 20}, "shared memory", "warn"),
        ({"shm_free_bytes": None}, "shared memory", "warn"),
        ({"descriptors": 255}, "descriptors", "warn"),
        ({"limits": HostLimits(tasks=18)}, "limits", "ok"),
        ({"limits": HostLimits(tasks=17)}, "limits", "warn"),
        ({"limits": HostLimits(file_bytes=(64 << 20) - 1)}, "limits", "fail"),
        ({"limits": HostLimits(address_bytes=(384 << 20) - 1)}, "limits", "fail"),
        ({"limits": HostLimits(address_bytes=384 << 20, file_bytes=64 << 20)}, "limits", "ok"),
    ],
)
def test_hosts(change: dict, name: str, state: str) -> None:
    """What is too small is told, and nothing else is: an arena of 64 MiB is a file, and is mapped beside 320 MiB."""
    found = states(probe_host(replace(HOST, **change), threads=2, bound=BOUND, limit_bytes=4 << 30))
    probes = ("cores", "memory", "shared memory", "descriptors", "limits")
    assert found == dict.fromkeys(probes, "ok") | {name: state}


def test_a_clock_that_is_behind_the_shards_or_slow() -> None:
    """A shard from 61 s in the future, and 2 µs a look, are warned of; shards of the past are as they should be."""

    def state(newest_s: float, **change: float) -> str:
        entry = ShardEntry(uri="0.parquet", rows=1, size_bytes=1, mtime_ns=int(newest_s * 1e9), version=None)
        rows = np.ones(1, np.int64)
        units = ShardUnits(
            entry=entry, rows=rows, decoded_bytes=rows, decoding_bytes=rows, compressed_bytes=rows, footer_bytes=9
        )
        source = index_source(stage=0, source=0, name="s", shards=[units], encoding="parquet")
        return states(probe_clock(replace(HOST, **change), [source]))["clock"]

    assert state(1.7e9) == state(HOST.now_s + 59) == "ok"
    assert state(HOST.now_s + 61) == "warn"
    assert state(1.7e9, clock_call_s=2e-6) == "warn"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "ok"),
        ({"problem": "nothing can be written there (Permission denied)"}, "warn"),
        ({"free_bytes": None, "wanted_bytes": 1 << 50}, "ok"),
        ({"free_bytes": 63 << 20}, "warn"),
        ({"wanted_bytes": 2 << 30}, "warn"),
        ({"wanted_bytes": 1 << 30}, "ok"),
    ],
)
def test_folders_that_a_stream_writes_to(change: dict, state: str) -> None:
    """One that cannot be written, or has less room than is wanted, is warned of: the stream goes on without."""
    figures = FolderFigures(name="block cache", path="/c", problem=None, free_bytes=1 << 30, wanted_bytes=0)
    (probe,) = probe_folders([replace(figures, **change)])
    assert (probe.group, probe.name, probe.state) == ("storage", "block cache", state)


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """One that is not there is looked at where it would be made, and nothing stays there; else the reason is told."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())

    def told(folder: str) -> str:
        job = replace(a_job(), cache_dir=str(tmp_path / folder))
        [probe] = [each for each in probe_folders(folder_figures(job)) if each.name == "block cache"]
        return f"{probe.state} {probe.found.removeprefix(str(tmp_path))}"

    assert told("a/b").startswith("ok /a/b: ")
    assert told("a/b").endswith(" free")
    for place, why in (("file", "Not a directory"), ("link", "No such file or directory")):
        cannot = f"it cannot be made, as nothing can be written in {tmp_path}/{place} ({why})"
        assert told(f"{place}/b") == f"warn /{place}/b: {cannot}"
    assert told("/proc/b").startswith("warn /proc/b: it cannot be made, as nothing can be written in /proc (")
    assert sorted(tmp_path.iterdir()) == before


def test_a_bound_above_the_limit_fails() -> None:
    """Such a stream would be refused at open."""
    assert states(probe_host(HOST, threads=2, bound=BOUND, limit_bytes=(300 << 20) - 1))["memory"] == "fail"


def test_shards_that_are_well() -> None:
    """Row groups of 0.3 MB below the buffer's 64 rows, two in each shard."""
    found = states(probe_shards(a_job(), a_job().stages[0], a_source([32, 32], [32, 32])))
    assert set(found.values()) == {"ok"}


@pytest.mark.parametrize(
    ("name", "keys", "shards", "row_bytes"),
    [
        ("empty shards", {}, ([32], []), 10_000),
        ("large row groups", {"max_row_group_bytes": 1 << 20}, ([32, 32],), 40_000),
        ("tiny row groups", {}, ([32, 32],), 2_000),
        ("shuffle buffer", {"buffer_rows": 31}, ([32, 32],), 10_000),
        ("block size", {"block_rows": 60}, ([32, 32],), 10_000),
    ],
)
def test_shards_that_are_not(name: str, keys: dict, shards: tuple, row_bytes: int) -> None:
    """Each fault is warned of, and nothing else is."""
    job = a_job(**keys)
    found = states(probe_shards(job, job.stages[0], a_source(*shards, row_bytes=row_bytes)))
    assert {probe for probe, state in found.items() if state == "warn"} == {name}


def test_a_small_shard_of_one_row_group_is_not_tiny() -> None:
    """It could not be written in larger row groups."""
    job = a_job()
    assert states(probe_shards(job, job.stages[0], a_source([1], [1])))["tiny row groups"] == "ok"


def test_padding_is_weighed_by_rows() -> None:
    """90 % of 100 rows and none of 300 are 22.5 %, which is fine; 60 % is not."""
    seen = [sampled(pad={"t": 0.9, "u": 0.6}), sampled(pad={"t": 0.0, "u": 0.6}, rows=300)]
    probes = {probe.name: probe for probe in probe_fields(a_source([400]), seen, replaces_bad=False)}
    assert (probes["padding of t"].state, probes["padding of t"].found[:4]) == ("ok", "22 %")
    assert probes["padding of u"].state == "warn"


def test_what_ends_a_stream_fails() -> None:
    """Refused values, unreadable row groups and the reader's death do, unless their rows are to be replaced."""
    ended = Sampled(source="s", shard="1.parquet", row_group=3, answer={}, died="it was killed by SIGABRT")
    unread = Sampled(source="s", shard="2.parquet", row_group=0, answer={"error": "a damaged page"})
    seen = [ended, unread, sampled(refused={"rows": 7, "error": "300 is no bool"})]
    probes = probe_fields(a_source([400]), seen, replaces_bad=False)
    assert [probe.state for probe in probes] == ["fail", "fail", "fail", "ok"]
    assert "1.parquet, row group 3" in probes[0].found
    assert "SIGABRT" in probes[0].found
    assert probes[2].found == "7 of 100 sampled rows do not fit the fields; the first: 300 is no bool"
    assert [probe.state for probe in probe_fields(a_source([4]), seen, replaces_bad=True)] == ["warn"] * 3 + ["ok"]


def test_the_first_batch_waits_for_the_buffer() -> None:
    """64 rows of the buffer and 10 of the batch at 1 ms, by two workers, and 0.4 s to start; else unknown."""
    assert first_batch_s(a_job(), [a_source([400])], [sampled()]) == pytest.approx(0.4 + 0.037)
    assert first_batch_s(a_job(), [a_source([400])], []) is None


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_page_checksums_are_seen(tmp_path: Path, *, written: bool, version: str) -> None:
    """In a page's header, of either version, as Arrow writes it."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": range(50_000)})
    pq.write_table(table, path, write_page_checksum=written, data_page_version=version, use_dictionary=False)
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    assert has_page_checksum(path.read_bytes()[start : start + 64]) is written


@pytest.mark.parametrize("header", [b"", b"\x15", b"\xff" * 64, b"PAR1" * 16, b"\x15\x80\x80"])
def test_what_is_no_page_header_says_nothing(header: bytes) -> None:
    """Cut short or other bytes: whether there is a checksum cannot be told."""
    assert has_page_checksum(header) is not True
