"""What limits this process beside memory, read from a made-up `/proc` and `/sys`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from o41td import SharedMemoryError
from o41td.host_limits import HostLimits, core_wait_s, cores_of_quota, host_limits, refuse_small_limits, usable_cores


def root_of(folder: Path, cgroup: str, files: Mapping[str, str] | None = None) -> str:
    """A root folder with this `/proc/self/cgroup`, and these files below the cgroups' mount."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    for name, text in (files or {}).items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("words", "cores"),
    [
        (("200000", "100000"), 2),
        (("150000", "100000"), 2),
        (("1000", "100000"), 1),
        (("max", "100000"), None),
        (("-1", "100000"), None),
        (("200000", "0"), None),
        (("200000",), None),
        ((), None),
    ],
)
def test_a_quota_is_worth_cores(words, cores):
    """Rounded up, since a half core more is one more that runs; "max", -1 and nonsense are no quota."""
    assert cores_of_quota(*words) == cores


def test_the_smallest_quota_up_to_the_root_counts_in_both_versions(tmp_path):
    """One core in the group above, of version 2 and of version 1; without a quota it is what may be run on."""
    given = len(os.sched_getaffinity(0))
    quotas = {"job/cpu.max": "100000 100000", "job/step/cpu.max": "max 100000"}
    two = root_of(tmp_path / "2", "0::/job/step\n", quotas)
    quotas = {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"}
    one = root_of(tmp_path / "1", "4:cpu,cpuacct:/job\n0::/\n", quotas)
    assert (usable_cores(two), usable_cores(one)) == (1, 1)
    assert usable_cores(root_of(tmp_path / "0", "", {"cpu.max": "100000 100000"})) == given


def test_processes_that_may_still_be_begun(tmp_path):
    """The least of what any group leaves: 100 of which 93 are there, and none counted where nothing is told."""
    files = {"job/pids.max": "100\n", "job/pids.current": "93\n", "pids.max": "max", "pids.current": "400"}
    left = root_of(tmp_path / "2", "0::/job\n", files)
    assert host_limits(left).tasks == 7
    assert host_limits(root_of(tmp_path / "0", "")).tasks is None


def test_the_wait_for_a_core(tmp_path):
    """The second of three numbers, in nanoseconds; None where the kernel tells none or the process is gone."""
    root = root_of(tmp_path, "")
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/schedstat").write_text("8000000000 2500000000 4711\n")
    assert core_wait_s(7, root) == 2.5
    assert core_wait_s(8, root) is None


def test_an_arena_that_no_limit_allows_is_refused_in_a_sentence():
    """By the size of a file or the address space, with what to raise; what suffices is not."""
    refuse_small_limits(HostLimits(address_bytes=1 << 30, file_bytes=100), arena_bytes=100)
    with pytest.raises(SharedMemoryError, match=r"ulimit -f.*Raise `ulimit -f`"):
        refuse_small_limits(HostLimits(file_bytes=99), arena_bytes=100)
    with pytest.raises(SharedMemoryError, match=r"may map 1\.0 GiB \(ulimit -v\), and needs 1\.3 GiB"):
        refuse_small_limits(HostLimits(address_bytes=1 << 30), arena_bytes=1 << 30)
