"""Which objects an entry names: letter by letter, by prefix, by glob."""

from __future__ import annotations

import re

import pytest

from memory_objects import memory_objects
from o41td.errors import ConfigError, MissingShardError, StorageError
from o41td.workers.object_store import StorageSettings
from o41td.workers.remote_listing import RemoteListing, glob_pattern
from o41td.workers.storage import Storage

KEYS = (
    "d/",  # what some tools write for a folder
    "d/x.parquet",
    "d/_SUCCESS",
    "d/_metadata",
    "d/.x.crc",
    "d/x.parquet.tmp",
    "d/X.PARQUET",
    "d/deep/a[1].parquet",
    "d/deep/a1.parquet",
    "d/deep/er/z.parquet",
    "d/_temporary/y.parquet",
    "d/w.jsonl.gz",
    "d//e.parquet",
    "dd.parquet",
)


@pytest.fixture
def listing(bucket):
    """A bucket with these keys, and what lists it."""
    for key in KEYS:
        bucket.put(key, b"" if key == "d/" else b"data")
    storage = Storage(StorageSettings.from_record(bucket.storage.secret_record()))

    def listed(entry, encoding=None):
        found = RemoteListing(storage).matches([bucket.uri(entry)], source="web", encoding=encoding)[0]
        assert all(info.size_bytes == 4 and info.etag for _uri, info in found)
        return [uri.removeprefix(bucket.uri("")) for uri, _info in found]

    yield listed
    storage.close()


def test_entries_name_objects(listing):
    """Objects, prefixes and globs, in sorted order, without markers, hidden names and names that begin with `_`."""
    assert listing("d/deep/a[1].parquet") == ["d/deep/a[1].parquet"]
    every = ["d//e.parquet", "d/X.PARQUET", "d/deep/a1.parquet", "d/deep/a[1].parquet", "d/deep/er/z.parquet"]
    assert listing("d", "parquet") == listing("d/", "parquet") == [*every, "d/x.parquet"]
    assert listing("d/") == [*every, "d/w.jsonl.gz", "d/x.parquet"]
    assert listing("d/*.parquet") == ["d/x.parquet"]
    assert listing("d/x*") == ["d/x.parquet", "d/x.parquet.tmp"]
    assert listing("d/**/?.parquet") == ["d//e.parquet", "d/deep/er/z.parquet", "d/x.parquet"]
    assert listing("d/deep/a[0-9].parquet") == ["d/deep/a1.parquet"]
    assert listing("d/*/a1.parquet") == ["d/deep/a1.parquet"]
    assert listing("d/_temporary/*") == ["d/_temporary/y.parquet"]
    assert listing("*.parquet") == ["dd.parquet"]
    with pytest.raises(MissingShardError, match=r"none\.parquet"):
        listing("d/none.parquet")
    with pytest.raises(ConfigError, match="matches no object"):
        listing("d/*.none")
    with pytest.raises(ConfigError, match=r"end in \.jsonl\.gz"):
        listing("d/deep/", "jsonl.gz")


def test_what_cannot_be_listed_is_refused(bucket):
    """Another process's memory, web servers' folders, protocols that are not there: each names what to do."""
    storage = Storage(StorageSettings.from_record(bucket.storage.secret_record()))
    listing = RemoteListing(storage)
    try:
        for entry, error, told in (
            ("memory://d/x.parquet", ConfigError, "of this process alone"),
            (f"{bucket.proxy.url}/b/*.parquet", StorageError, "list no files"),
            (f"{bucket.proxy.url}/{bucket.name}/none.parquet?x=1", MissingShardError, "404"),
            ("nonsense://b/x.parquet", StorageError, "ambient_credentials"),
        ):
            with pytest.raises(error, match=told):
                listing.matches([entry], source="web", encoding=None)
    finally:
        storage.close()


def test_many_objects_are_looked_at_with_one_request(bucket):
    """Forty objects of one folder cost a list of its names, and one that is missing a look of its own."""
    uris = [bucket.put(f"many/{number}.parquet", bytes(number)) for number in range(1, 41)]
    storage = Storage(StorageSettings.from_record(bucket.storage.secret_record()))
    try:
        found = RemoteListing(storage).matches(uris, source="web", encoding=None)
        assert [(uri, info.size_bytes) for [(uri, info)] in found] == list(zip(uris, range(1, 41), strict=True))
        assert storage.figures.requests == 1
        infos = RemoteListing(storage).infos(uris[::-1], source="web")
        assert [info.size_bytes for info in infos] == list(range(40, 0, -1))
        assert storage.figures.requests == 2
        with pytest.raises(MissingShardError, match=r"many/none.parquet") as caught:
            RemoteListing(storage).infos([*uris, bucket.uri("many/none.parquet")], source="web")
        assert caught.value.source == "web"
        assert storage.figures.requests == 4
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("s3://b/*.parquet", ["s3://b/a.parquet", "s3://b/.parquet"], ["s3://b/d/a.parquet", "s3://b/a.parquetx"]),
        ("s3://b/a?c", ["s3://b/abc"], ["s3://b/a/c", "s3://b/ac"]),
        ("s3://b/[a-c]x", ["s3://b/bx"], ["s3://b/dx", "s3://b//x"]),
        ("s3://b/[!a]x", ["s3://b/bx"], ["s3://b/ax", "s3://b//x"]),
        ("s3://b/[]]x", ["s3://b/]x"], ["s3://b/x"]),
        ("s3://b/a[x", ["s3://b/a[x"], ["s3://b/ax"]),
        ("s3://b/**/x", ["s3://b/x", "s3://b/c/d/x"], ["s3://b/cx"]),
        ("s3://b/a+b(c).d", ["s3://b/a+b(c).d"], ["s3://b/aab(c).d", "s3://b/a+b(c)xd"]),
        ("s3://b/x/**", ["s3://b/x/y", "s3://b/x/y/z"], ["s3://b/x/", "s3://b/x"]),
    ],
)
def test_globs(glob, yes, no):
    """As the shell has them, with `**`."""
    pattern = re.compile(glob_pattern(glob))
    assert [uri for uri in yes if not pattern.fullmatch(uri)] == []
    assert [uri for uri in no if pattern.fullmatch(uri)] == []


def test_other_file_systems_list_as_well():
    """What fsspec finds below a prefix is told by its URIs."""
    uris = ["memory://remote-listing/a b", "memory://remote-listing/deep/c", "memory://remote-listings/d"]
    with memory_objects(dict.fromkeys(uris, b"data")) as objects:
        listed = objects.storage.start(objects.storage.listed("memory://remote-listing/")).result()
        assert sorted(uri for uri, _info in listed) == uris[:2]
        assert {info.size_bytes for _uri, info in listed} == {4}
