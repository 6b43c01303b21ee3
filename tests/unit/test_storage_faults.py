"""One object read through a store that fails: what passes is waited out, what does not is told at once."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise

import pytest

import faulty_proxy as faults
from o41td import StorageConfig
from o41td.errors import ChangedDataError, MissingShardError, O41Error, StorageError
from o41td.workers.object_store import ObjectInfo, StorageSettings
from o41td.workers.ranges import ByteRange
from o41td.workers.remote_objects import RemoteObjects
from o41td.workers.storage import Storage
from o41td.workers.storage_figures import StorageFigures
from s3_store import s3_bucket

DATA = os.urandom(600_000)
_KEYS = itertools.count()
WANTED = ByteRange(1000, 500_000)


@contextlib.contextmanager
def reaching(config: StorageConfig) -> Iterator[RemoteObjects]:
    """What a worker reads with, in this process."""
    storage = Storage(StorageSettings.from_record(config.secret_record()))
    try:
        yield RemoteObjects(storage)
    finally:
        storage.close()


@pytest.fixture(scope="module")
def bucket(s3_address):
    """One bucket and proxy for all tests: a client takes 0.3 s of CPU to make."""
    with s3_bucket(s3_address) as made:
        yield made


@pytest.fixture(scope="module")
def shared_objects(bucket):
    """One client."""
    with reaching(bucket.storage) as made:
        yield made


@pytest.fixture(autouse=True)
def healthy(bucket):
    """A proxy that has forgotten what it was told to do."""
    bucket.proxy.heal()


@pytest.fixture
def objects(shared_objects):
    """The client, with figures from 0 on."""
    shared_objects.storage.figures = StorageFigures()
    return shared_objects


@pytest.fixture
def key():
    """A key of the test's own."""
    return f"key-{next(_KEYS)}"


def http_uri(bucket, key: str) -> str:
    """The same object without S3's language."""
    return f"{bucket.proxy.url}/{bucket.name}/{key}"


@pytest.mark.parametrize(
    "answer",
    [
        faults.status(500, "InternalError"),
        faults.status(503, "SlowDown"),
        faults.status(503),
        faults.status(429, "TooManyRequests"),
        faults.status(400, "RequestTimeout"),
        faults.refused_connection(),
        faults.reset_after(0.4),
        faults.cut_short(0.4),
        faults.fewer_bytes(0.4),
        faults.without_range(),
        faults.after(0.3),
    ],
    ids=["500", "slow-down", "503", "429", "400", "refused", "reset", "cut", "fewer", "whole", "late"],
)
def test_what_passes_is_waited_out(bucket, objects, key, answer):
    """After two failures of a kind the bytes are right, and what had come is not asked for again."""
    uri = bucket.put(key, DATA)
    bucket.proxy.fail(answer, times=2, ranged=True)
    info = objects.stat(uri)
    assert bytes(objects.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
    figures = objects.storage.figures
    asked = bucket.proxy.gets(key)
    assert 2 <= figures.requests <= len(asked) + 1  # one more looks at it; a client may try a reset again by itself
    assert figures.in_flight == 0
    assert [each.stop for each in asked] == [WANTED.stop] * len(asked)
    for before, after in pairwise(asked):
        came = before.sent_bytes if before.status == 206 else 0
        assert before.start <= after.start <= before.start + came


def test_a_break_costs_only_what_had_not_come(bucket, objects, key):
    """A body that breaks off after three quarters leaves one quarter to ask for."""
    uri = bucket.put(key, DATA)
    bucket.proxy.fail(faults.cut_short(0.75), ranged=True)
    assert bytes(objects.read(uri, WANTED, objects.stat(uri))) == DATA[WANTED.start : WANTED.stop]
    assert objects.storage.figures.received_bytes == WANTED.num_bytes
    first, second = bucket.proxy.gets(key)
    assert second.start == first.start + int(0.75 * WANTED.num_bytes)


@pytest.mark.parametrize(
    ("answer", "error", "told", "attempts", "asked"),
    [
        (faults.status(404, "NoSuchKey", "no such key"), MissingShardError, "404 NoSuchKey no such key", 1, 1),
        (faults.status(403, "AccessDenied", "not yours"), StorageError, "403 AccessDenied not yours", 2, 4),
        (faults.status(400, "ExpiredToken", "too old"), StorageError, "expired.*400 ExpiredToken too old", 2, 2),
        (faults.status(412, "PreconditionFailed"), ChangedDataError, "changed after it was indexed", 1, 1),
        (faults.status(416, "InvalidRange"), ChangedDataError, "changed after it was indexed", 1, 1),
        (faults.status(400, "InvalidArgument", "what?"), StorageError, "400 InvalidArgument what", 1, 2),
        (faults.without_range(), StorageError, "ignores ranges", 3, 3),
    ],
    ids=["404", "403", "expired", "412", "416", "400", "whole"],
)
def test_what_does_not_pass_is_told_at_once(bucket, objects, key, answer, error, told, attempts, asked):
    """The error names the object, how often it was tried, and the store's last words.

    What may be meant for signed links alone is asked once more without one.
    """
    uri = bucket.put(key, DATA)
    info = objects.stat(uri)
    bucket.proxy.fail(answer, times=99)
    with pytest.raises(error, match=told) as caught:
        objects.read(uri, WANTED, info)
    assert uri in str(caught.value)
    assert f"{attempts} attempt" in str(caught.value)
    bucket.proxy.heal()
    assert bytes(objects.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
    assert len(bucket.proxy.gets(key)) == asked + 1
    assert "Signature" not in str(caught.value)


def test_a_store_that_takes_no_signed_links_is_asked_without(bucket, key):
    """The first link is refused, the same is asked without one, and links are not tried again."""
    uri = bucket.put(key, DATA)

    def only_signed_headers(handler, asked):
        if "Signature=" in asked.path:
            faults.status(403, "AccessDenied", "no links here")(handler, asked)
        else:
            handler.reply(asked, *handler.forwarded())

    with reaching(bucket.storage) as objects:
        info = objects.stat(uri)
        bucket.proxy.fail(only_signed_headers, times=99)
        for _ in range(3):
            assert bytes(objects.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
        assert objects.storage.figures.retries == 0
    assert [each.status for each in bucket.proxy.gets(key)] == [403, 206, 206, 206]


def test_an_outage_ends_in_an_error_after_the_time_that_was_stated(bucket):
    """A store that only says 503 is asked several times, then the error says how long and how often."""
    uri = bucket.put("a", DATA)
    with reaching(bucket.storage_with(give_up_after_s=1.0)) as objects:
        info = objects.stat(uri)
        bucket.proxy.fail(faults.status(503, "SlowDown", "please"), times=10_000)
        with pytest.raises(StorageError, match=r"did not serve.*attempts.*503 SlowDown please") as caught:
            objects.read(uri, WANTED, info)
    assert caught.value.uri == uri
    assert 2 < len(bucket.proxy.gets("/a")) < 200


@pytest.mark.parametrize("data", [DATA[:-1] + b"!", DATA + b"longer"], ids=["same size", "longer"])
def test_a_replaced_object_is_refused(bucket, objects, key, data):
    """Bytes of the object that took its place are never given, by S3 nor by HTTP, whatever its size."""
    uri = bucket.put(key, DATA)
    infos = [(each, objects.stat(each)) for each in (uri, http_uri(bucket, key))]
    bucket.put(key, data)
    for each, info in infos:
        with pytest.raises(ChangedDataError, match="changed after it was indexed"):
            objects.read(each, WANTED, info)


def test_stores_that_ignore_conditions_are_seen_through(bucket, objects, key):
    """An etag in the answer that is not the object's is a refusal, though the store made no difference."""
    uri = bucket.put(key, DATA)
    info = objects.stat(uri)
    bucket.put(key, DATA[::-1])

    def unconditional(handler, asked):
        handler.reply(asked, *handler.forwarded(leave_out="If-Match"))

    bucket.proxy.fail(unconditional, times=9)
    with pytest.raises(ChangedDataError, match=f"its etag was {info.etag}"):
        objects.read(uri, WANTED, info)


def test_requests_in_flight_are_capped(bucket):
    """However much is asked for at once, no more requests are under way than the settings allow."""
    uri = bucket.put("a", DATA)
    bucket.proxy.latency_s = 0.03
    with reaching(bucket.storage_with(max_requests_in_flight=3)) as objects:
        info = objects.stat(uri)
        begun = [objects.begin(uri, ByteRange(start, start + 1000), info) for start in range(0, 20_000, 1000)]
        for place, data in begun:
            assert bytes(data.result()) == DATA[place.start : place.stop]
    assert bucket.proxy.most_in_flight == 3


def test_a_web_server_is_read_like_a_store(bucket):
    """An http:// URI gives the same bytes, and tells size and etag; a missing one and one without ranges are errors."""
    bucket.put("a b", DATA)
    with reaching(StorageConfig()) as objects:
        uri = http_uri(bucket, "a%20b")
        info = objects.stat(uri)
        assert info == ObjectInfo(len(DATA), objects.stat(http_uri(bucket, "a b")).etag)
        bucket.proxy.fail(faults.reset_after(0.5), ranged=True)
        assert bytes(objects.read(uri, WANTED, info)) == DATA[WANTED.start : WANTED.stop]
        with pytest.raises(MissingShardError):
            objects.stat(http_uri(bucket, "none"))
        bucket.proxy.fail(faults.without_range(), times=9)
        with pytest.raises(StorageError, match="no ranges"):
            objects.read(uri, WANTED, info)


def test_new_credentials_are_picked_up(bucket, tmp_path, monkeypatch):
    """A key that expires is read anew from the profile file; where that did not change, the error says expired."""
    uri = bucket.put("a", DATA)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def write_key(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    def expire_the_old(handler, asked):
        if asked.key_id == "old":
            faults.status(400, "ExpiredToken", "too old")(handler, asked)
        else:
            handler.reply(asked, *handler.forwarded())

    write_key("old")
    config = StorageConfig(endpoint_url=bucket.proxy.url, region="us-east-1", ambient_credentials=True)
    with reaching(config) as objects:
        info = objects.stat(uri)
        bucket.proxy.fail(expire_the_old, times=10_000)
        with pytest.raises(StorageError, match="the credentials have expired"):
            objects.read(uri, WANTED, info)
        write_key("new")
        begun = [objects.begin(uri, ByteRange(start, start + 9), info) for start in (0, 9, 18)]
        for place, data in begun:
            assert bytes(data.result()) == DATA[place.start : place.stop]
        assert objects.storage.figures.renewals == 2


def test_missing_buckets_and_credentials_are_told(bucket):
    """Whoever gives no credentials, or names no bucket that is there, learns that and nothing else."""
    with (
        reaching(StorageConfig(endpoint_url=bucket.proxy.url)) as objects,
        pytest.raises(StorageError, match="no credentials are given"),
    ):
        objects.stat(bucket.uri("a"))
    with reaching(bucket.storage) as objects, pytest.raises(O41Error, match="404"):
        objects.stat("s3://no-such-bucket/a")


def test_a_package_that_is_missing_is_named():
    """What a store is reached through may not be installed: the error says what to install, at once."""
    packages = {"gs": "gcsfs", "az": "adlfs", "hf": "huggingface_hub"}
    missing = {scheme: package for scheme, package in packages.items() if find_spec(package) is None}
    if not missing:
        pytest.skip("all of them are installed")
    with reaching(StorageConfig()) as objects:
        for scheme, package in missing.items():
            with pytest.raises(StorageError, match=rf"{scheme}:// cannot be used: .*{package}"):
                objects.stat(f"{scheme}://bucket/a")
