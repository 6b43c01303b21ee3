"""A process that is killed while it fills a block cache: what it leaves is whole, or is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from loader_processes import wait_until
from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_folder import CacheFolder

FILL = """
import sys
import numpy as np, pyarrow as pa
from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_folder import CacheFolder
cache = BlockCache(CacheFolder(sys.argv[1], 40 << 20))
print(flush=True)
number = 0
while True:
    number = number % 200 + 1
    table = pa.table({"a": np.full(40_000, number)})
    cache.keep(bytes([number] * 16), [(40_000, [table])])
"""


def test_a_filler_killed_at_any_moment_leaves_whole_files(tmp_path: Path):
    """Three times two processes fill one cache and are killed: every file holds its unit, few are left half made."""
    for wanted in (7, 33, 60):
        fillers = [
            subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)
        ]
        for filler in fillers:
            assert filler.stdout is not None
            filler.stdout.readline()
        folder = CacheFolder(str(tmp_path))
        wait_until(lambda folder=folder, wanted=wanted: len(list(folder.files())) >= wanted, "they fill no cache")
        for filler in fillers:
            os.kill(filler.pid, signal.SIGKILL)
            assert filler.wait(30) == -signal.SIGKILL
            filler.stdout.close()
    files = list(CacheFolder(str(tmp_path)).files())
    assert sum(file.is_partial for file in files) <= 6
    assert sum(file.num_bytes for file in files) <= 40 << 20
    cache = BlockCache(CacheFolder(str(tmp_path)))
    found = [number for number in range(1, 201) if (unit := cache.find(bytes([number] * 16)))]
    assert len(found) == sum(not file.is_partial for file in files) >= 60 - 6
    for number in found:
        unit = cache.find(bytes([number] * 16))
        assert unit is not None
        values = {value for _rows, (table,) in unit.parts(0, 40_000) for value in table["a"].unique().to_pylist()}
        assert values == {number}
    assert cache.counts.broken_files == 0
    cache.close()
