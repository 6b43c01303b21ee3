"""`o41td cache`: what it tells of a cache, and what it removes."""

from __future__ import annotations

import json
import os
import time

import pytest

from o41td.cli.cache import show_cache
from o41td.cli.failure import UsageProblem
from o41td.workers.block_cache_folder import CacheFolder


def put(folder, key, num_bytes):
    """A file of the cache."""
    CacheFolder(str(folder)).put(key, lambda descriptor: os.write(descriptor, bytes(num_bytes)))


def test_files_bytes_and_uses_are_told(tmp_path, capsys):
    """Two files of 8192 bytes, of which one was used an hour ago."""
    for key, used_s in (("a" * 32, time.time() - 3600), ("b" * 32, time.time())):
        put(tmp_path, key, 8192)
        os.utime(tmp_path / "o41td-blocks" / key[:2] / f"{key}.block", (used_s, used_s))
    show_cache(tmp_path, clear=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["dir"], told["files"], told["bytes"], told["cleared"]) == (str(tmp_path), 2, 16384, False)
    assert told["newest_use"] - told["oldest_use"] == pytest.approx(3600, abs=60)
    show_cache(tmp_path, clear=False, as_json=False)
    shown = capsys.readouterr().out
    assert shown.startswith(f"{tmp_path}: 2 files, 16 KB; used last between 1 h 0")


def test_clearing_removes_the_cache_and_nothing_else(tmp_path, capsys):
    """What else lies in the folder stays; an empty cache is told as such."""
    (tmp_path / "mine.txt").write_text("stays")
    put(tmp_path, "c" * 32, 4096)
    show_cache(tmp_path, clear=True, as_json=False)
    assert capsys.readouterr().out == f"{tmp_path}: removed 1 file, 4.1 KB\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    show_cache(tmp_path, clear=False, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "dir": str(tmp_path), "files": 0, "bytes": 0, "oldest_use": None, "newest_use": None, "cleared": False
    }  # fmt: skip


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    """A wrong path is told, and nothing is made."""
    with pytest.raises(UsageProblem, match="nowhere is no folder"):
        show_cache(tmp_path / "nowhere", clear=True, as_json=False)
    assert list(tmp_path.iterdir()) == []
