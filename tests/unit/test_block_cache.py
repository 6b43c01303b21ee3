"""The block cache's folder: what is kept, what goes, and that nothing else is touched."""

import os
import resource
from pathlib import Path

import pyarrow as pa
import pytest

from o41td.workers.block_cache import BlockCache
from o41td.workers.block_cache_folder import FOLDER_NAME, CacheFolder

KIB = 1 << 10


def key_of(number):
    """A unit's key."""
    return bytes([number] * 16)


def keep(cache, number, num_bytes=64 * KIB):
    """Keeps a unit of about so many bytes, whose rows are its number."""
    table = pa.table({"a": pa.array([number] * (num_bytes // 8), pa.int64())})
    cache.keep(key_of(number), [(table.num_rows, [table])])


def kept(cache, numbers=range(1, 30)):
    """Which units are found, by another process's eyes, and not touched by the look."""
    folder = Path(cache._folder.path)
    return [number for number in numbers if (folder / f"{number:02x}" / f"{key_of(number).hex()}.block").exists()]


def files_of(folder):
    """Every file below a folder, with its content."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cache_of(path, limit_bytes=None):
    """A cache in a folder."""
    return BlockCache(CacheFolder(str(path), limit_bytes))


def grow_old(cache, number, by_s):
    """Has a unit be used last so long ago."""
    path = Path(cache._folder.path) / f"{number:02x}" / f"{key_of(number).hex()}.block"
    used_ns = path.stat().st_mtime_ns - int(by_s * 1e9)
    os.utime(path, ns=(used_ns, used_ns))


def first_value(unit):
    """The first value of a unit."""
    return next(iter(unit.parts(0, 1)))[1][0]["a"][0].as_py()


def test_the_least_recently_used_go_first(tmp_path):
    """Ten units of 68 KiB on disk fit into 15/16 of 768 KiB: the eleventh costs the one that was used longest ago."""
    cache = cache_of(tmp_path, 768 * KIB)
    for number in range(1, 11):
        keep(cache, number)
        grow_old(cache, number, 100 - number)
    assert kept(cache) == list(range(1, 11))
    assert first_value(cache_of(tmp_path).find(key_of(1))) == 1  # used now
    keep(cache, 11)
    assert kept(cache) == [1, *range(3, 12)]
    assert cache.counts.evicted_files == 1
    assert 64 * KIB < cache.counts.evicted_bytes <= 72 * KIB


def test_the_limit_holds_for_several_processes(tmp_path):
    """Whatever four caches put into one folder by turns, it takes no more than the limit, and holds the newest."""
    caches = [cache_of(tmp_path, 1000 * KIB) for _ in range(4)]
    for number in range(1, 80):
        keep(caches[number % 4], number)
        grow_old(caches[0], number, 1000 - number)
        total = sum(file.num_bytes for file in CacheFolder(str(tmp_path)).files())
        assert total <= 1000 * KIB
    assert kept(caches[0], range(1, 80))[-8:] == list(range(72, 80))


def test_a_unit_that_another_process_removes_stays_readable(tmp_path):
    """Who has found a unit reads it to its end, though the folder is cleared."""
    cache = cache_of(tmp_path)
    keep(cache, 5)
    unit = cache_of(tmp_path).find(key_of(5))
    assert CacheFolder(str(tmp_path)).clear().num_files == 1
    assert not (tmp_path / FOLDER_NAME).exists()
    assert first_value(unit) == 5
    assert cache_of(tmp_path).find(key_of(5)) is None
    keep(cache, 6)
    assert kept(cache) == [6]


def test_other_files_are_never_removed(tmp_path):
    """Shards and whatever else lies in or beside the folder stay, however small the limit, and on clearing."""
    for name in ("a.parquet", f"{FOLDER_NAME}/00.block", f"{FOLDER_NAME}/01/notes.txt", f"{FOLDER_NAME}/x/y.partial"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 10_000)
        os.utime(tmp_path / name, (1, 1))
    before = files_of(tmp_path)
    cache = cache_of(tmp_path, 200 * KIB)
    for number in range(1, 6):
        keep(cache, number)
    assert len(kept(cache)) == 2
    CacheFolder(str(tmp_path)).clear()
    assert files_of(tmp_path) == before


def test_a_unit_larger_than_the_limit_is_not_kept_and_costs_no_other(tmp_path):
    """Of 400 KiB, a unit of 390 is refused for good, and what was there stays."""
    cache = cache_of(tmp_path, 400 * KIB)
    keep(cache, 1)
    keep(cache, 2, 390 * KIB)
    assert kept(cache) == [1]
    assert cache.refuses(key_of(2))
    assert not cache.refuses(key_of(1))
    assert cache.take_counts()[1] is None
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_killed_process_left_is_removed_when_it_is_old(tmp_path):
    """A file in the writing is left alone for a quarter of an hour, and then removed at the next look."""
    keep(cache_of(tmp_path), 1)
    young, old = (tmp_path / FOLDER_NAME / "01" / f"{'01' * 16}.4711-{number}.partial" for number in range(2))
    for path in (young, old):
        path.write_bytes(b"x" * 1000)
    os.utime(old, (1, 1))
    keep(cache_of(tmp_path), 2)
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize("spoil", ["flip", "cut", "empty"])
def test_a_damaged_unit_is_removed_and_kept_anew(tmp_path, spoil):
    """A file whose index is damaged is no unit, is removed, and takes nobody's place."""
    cache = cache_of(tmp_path)
    keep(cache, 3)
    (path,) = tmp_path.rglob("*.block")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes({"flip": data, "cut": data[:-1], "empty": b""}[spoil])
    other = cache_of(tmp_path)
    assert other.find(key_of(3)) is None
    assert other.counts.broken_files == 1
    assert not path.exists()
    keep(other, 3)
    assert first_value(cache_of(tmp_path).find(key_of(3))) == 3


def test_a_disk_that_takes_no_more_turns_keeping_off_once(tmp_path):
    """Where writing fails, the reason is told once, nothing half is left, and what is there is still found."""
    cache = cache_of(tmp_path)
    keep(cache, 1)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * KIB, limit[1]))
    try:
        keep(cache, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    keep(cache, 3)
    assert kept(cache) == [1]
    assert not list(tmp_path.rglob("*.partial"))
    assert "File too large" in cache.take_counts()[1]
    assert cache.take_counts()[1] is None
    assert cache.refuses(key_of(2))
    assert not cache.refuses(key_of(1))


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    """A file where the folder should be: nothing is found, nothing kept, and the reason says so."""
    (tmp_path / "file").touch()
    cache = cache_of(tmp_path / "file" / "cache")
    assert cache.find(key_of(1)) is None
    keep(cache, 1)
    assert "Not a directory" in cache.take_counts()[1]
