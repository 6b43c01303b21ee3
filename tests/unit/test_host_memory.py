"""Memory limits out of sample kernel files."""

import os

import pytest

from o41td.host_memory import (
    cgroup_paths_of,
    default_memory_limit_bytes,
    limit_of,
    meminfo_total_bytes,
    pss_bytes,
    smaps_pss_bytes,
    usable_memory_bytes,
)

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n"


def lay_out(root, files):
    """Writes a fake root folder."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return str(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": MEMINFO}, 16 * GIB),
        ({}, 4 * GIB),
        ({"proc/meminfo": "garbage"}, 4 * GIB),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/slice/job/step\n",
                "sys/fs/cgroup/slice/job/step/memory.max": "max\n",
                "sys/fs/cgroup/slice/job/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/slice/memory.max": f"{8 * GIB}\n",
            },
            3 * GIB,
        ),
        (  # in a container the path may lie outside of the mount
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/../../outer\n",
                "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            },
            2 * GIB,
        ),
        (  # version 1: the controller list of a line names memory; the largest number means no limit
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "11:cpu,cpuacct:/x\n5:memory:/docker/abc\n1:name=systemd:/y\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{5 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            5 * GIB,
        ),
        (  # hybrid: both are there
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:memory:/a\n0::/b\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{7 * GIB}\n",
                "sys/fs/cgroup/b/memory.max": f"{6 * GIB}\n",
            },
            6 * GIB,
        ),
        (  # a limit above physical memory is none
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{64 * GIB}\n",
            },
            16 * GIB,
        ),
    ],
)
def test_usable_memory(tmp_path, files, expected):
    """The smallest limit counts, and what is missing sets none."""
    root = lay_out(tmp_path, files)
    assert usable_memory_bytes(root) == expected
    assert default_memory_limit_bytes(root) == expected // 2


def test_this_host_has_memory():
    """The real files of this host can be read."""
    assert usable_memory_bytes() > 2**26


@pytest.mark.parametrize(
    ("text", "expected"), [("max\n", None), ("", None), ("-1", None), ("0", None), ("4096\n", 4096)]
)
def test_limit_of(text, expected):
    """Only a plain positive number is a limit."""
    assert limit_of(text) == expected


def test_cgroup_paths_may_hold_colons():
    """A path keeps its own colons; lines of another form are skipped."""
    assert cgroup_paths_of("0::/a:b\nnonsense\n3:cpu:/c\n") == (None, "/a:b")


def test_parsers():
    """Lines in kB become bytes, several Pss lines add up."""
    assert meminfo_total_bytes(MEMINFO) == 16 * GIB
    assert smaps_pss_bytes("Rss: 10 kB\nPss:   3 kB\nPss_Anon: 9 kB\nPss: 4 kB\n") == 7 * 1024
    assert smaps_pss_bytes("") is None


def test_pss_of_a_process():
    """A live process has a figure, one that is gone has none."""
    assert (pss_bytes(os.getpid()) or 0) > 2**20
    assert pss_bytes(2**22 + 1) is None
