"""Shared memory of whole streams: too little of it, none left while it runs, and many streams one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from leaks import descriptors, shared_memory_names
from loader_processes import run_python
from o41td import SharedMemoryError, open_batch_stream
from stream_reference import ID_ONLY, ids_of, stage_of, stream_config

MOST_ROWS = 2**31 - 1
_HOST = ("unshare", "--mount", "--propagation", "private", "sh", "-c")


@pytest.fixture
def small_host():
    """Runs Python code with arguments where /dev/shm has so many KiB; skips where this user may not mount."""

    def run(size_kib: int, code: str, *arguments: str) -> str:
        mount = f'mount -t tmpfs -o size={size_kib}k tmpfs /dev/shm && exec "$@"'
        done = subprocess.run(
            [*_HOST, mount, "sh", sys.executable, "-c", code, *arguments],
            capture_output=True, text=True, timeout=90, cwd="/",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    try:
        done = subprocess.run([*_HOST, "mount -t tmpfs tmpfs /dev/shm"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode:
        pytest.skip(f"no mount namespace for this user: {done.stderr.strip()}")
    return run


@pytest.fixture
def config_file(write_shards, tmp_path):
    """A shuffled stream of 400 rows."""
    paths = write_shards([100] * 4)
    config = stream_config(stage_of(paths, buffer_rows=64), fields=ID_ONLY, threads=2, block_rows=1000)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    return path


def test_a_stream_where_dev_shm_is_too_small(small_host, config_file):
    """H1: its arena is a memfd, the notice has both figures, every row comes, and no signal."""
    code = (
        "import sys, logging\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "logging.getLogger('o41td').addHandler(logging.NullHandler())\n"
        "with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:\n"
        "    print(sorted(i for batch in stream for i in batch['id'].tolist()) == list(range(400)))\n"
        "    arena = stream.stats()['arena']\n"
        "    print(arena['kind'], arena['bytes'])\n"
        "    print(*stream.notices)\n"
    )
    complete, arena, notice = small_host(4, code, str(config_file)).splitlines()
    kind, size_bytes = arena.split()
    assert (complete, kind) == ("True", "memfd")
    assert f"{size_bytes} bytes needed, 4096 free" in notice


def test_filling_dev_shm_changes_nothing(small_host, config_file):
    """Full to the last page after open: rows stay the same, and a worker and the coordinator are replaced."""
    code = (
        "import os, signal, sys\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "config = BatchStreamConfig.load(sys.argv[1])\n"
        "import logging\nlogging.getLogger('o41td').addHandler(logging.NullHandler())\n"
        "with open_batch_stream(config) as stream:\n"
        "    calm = [batch['id'].tolist() for batch in stream]\n"
        "with open_batch_stream(config) as stream:\n"
        "    stats = stream.stats()\n"
        "    file = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)\n"
        "    try:\n"
        "        while os.write(file, bytes(4096)):\n"
        "            pass\n"
        "    except OSError:\n"
        "        free = os.statvfs('/dev/shm').f_bavail\n"
        "    rows = []\n"
        "    for number, batch in enumerate(stream):\n"
        "        rows.append(batch['id'].tolist())\n"
        "        if number == 5:\n"
        "            os.kill(stats['workers'][0]['pid'], signal.SIGKILL)\n"
        "        if number == 20:\n"
        "            os.kill(stats['coordinator']['pid'], signal.SIGKILL)\n"
        "    print(free, rows == calm, stats['arena']['kind'], stream.stats()['coordinator_restarts'])\n"
    )
    assert small_host(1024, code, str(config_file)) == "0 True shm 1\n"


def test_an_arena_larger_than_the_host_is_refused_at_open(write_shards):
    """A config that is allowed more than there is: both figures in the error, nothing left behind."""
    stage = stage_of(write_shards([100]), buffer_rows=None)
    config = stream_config(stage, fields=ID_ONLY, block_rows=MOST_ROWS, memory_limit_bytes=1 << 60)
    with pytest.raises(SharedMemoryError) as caught:
        open_batch_stream(config)
    assert caught.value.needed_bytes is not None
    assert caught.value.needed_bytes >= 5 * MOST_ROWS * 8, "two slots for the window, two in flight, one being gathered"
    assert caught.value.free_bytes is not None
    assert 0 < caught.value.free_bytes < caught.value.needed_bytes


def test_streams_one_after_the_other_leave_nothing(write_shards):
    """H8: after each of four, as many descriptors and names as before (`scripts/soak --opens 500` does more)."""
    config = stream_config(stage_of(write_shards([16])), fields=ID_ONLY)
    before = None
    for _ in range(4):
        with open_batch_stream(config) as stream:
            assert ids_of(list(stream)) == list(range(16))
        now = sorted(descriptors().values()), shared_memory_names()
        before = before or now
        assert now == before


def test_two_thousand_kept_batches(write_shards):
    """K5: every batch of 2 000 is kept, within 256 descriptors, and holds at the end what it held at first."""
    paths = [str(path) for path in write_shards([2000] * 4, row_group_rows=500)]
    code = (
        "import os, resource, sys\nfrom o41td import *\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "stage = Stage(sources=[FileSource(files=sys.argv[1:])], batch_size=4, shuffle=Shuffle(buffer_rows=1000))\n"
        "fields = [ProjectedField(name='id', dtype='i64')]\n"
        "with open_batch_stream(BatchStreamConfig(fields=fields, stages=[stage], threads=1)) as stream:\n"
        "    kept = [stream.next()]\n"
        "    before = len(os.listdir('/proc/self/fd'))\n"
        "    copies = [kept[0]['id'].tolist()]\n"
        "    for batch in stream:\n"
        "        kept.append(batch)\n"
        "        copies.append(batch['id'].tolist())\n"
        "    same = [batch['id'].tolist() for batch in kept] == copies\n"
        "    rows = sorted(sum(copies, [])) == list(range(8000))\n"
        "    print(len(kept), same, rows, len(os.listdir('/proc/self/fd')) - before)\n"
    )
    ended = run_python("-c", code, *paths, env={**os.environ})
    assert (ended.code, ended.out, ended.err) == (0, "2000 True True 0\n", "")
