"""Data sets on stores that are no folder of this machine."""

from __future__ import annotations

import http.client
import threading
import uuid

import pytest

from o41td import DatasetConflictError, DatasetWriter, StorageConfig, StorageError
from o41td.manifest import parse_manifest
from o41td.writing.conversion import WriteJob, run_write
from o41td.writing.packed_documents import PackJob, run_pack

ROWS = [{"id": i, "tokens": [i] * 4} for i in range(20)]


@pytest.fixture(params=["memory", "s3"])
def place(request):
    """An empty place on a store, and how to reach it: fsspec's memory, and S3 as moto's server has it."""
    if request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}", None
        return
    server_class = pytest.importorskip("moto.server").ThreadedMotoServer
    server = server_class(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        storage = StorageConfig(
            endpoint_url=f"http://{host}:{port}", region="us-east-1", access_key_id="a", secret_access_key="b"
        )
        bucket = uuid.uuid4().hex  # the server's store outlives it
        request_to = http.client.HTTPConnection(host, port, timeout=60)
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"}
        request_to.request("PUT", f"/{bucket}", headers=signed)
        assert request_to.getresponse().status == 200
        request_to.close()
        yield f"s3://{bucket}/sets/one", storage
    finally:
        server.stop()


def test_a_data_set_on_a_store(place):
    """Shards are saved, passed over, registered, recovered and published as on a local disk; a conflict is an error."""
    uri, storage = place
    writer = DatasetWriter(f"{uri}/m.json", storage=storage)
    first = writer.save("train", "easy", ROWS, shard_id="0")
    assert writer.save("train", "easy", iter([None]), shard_id="0") == first
    with pytest.raises(DatasetConflictError):
        writer.save("train", "hard", ROWS, shard_id="0")
    cut = writer.save("train", "easy", ROWS[:3], shard_id="1")
    writer.folder.remove(cut.uri)
    recovery = writer.recover()
    assert [shard.shard_id for shard in recovery.shards] == ["0"]
    assert recovery.forgotten == ("_o41td/shards/train/1.json",)
    writer.register_split_order("train", ["0"])
    assert writer.commit_manifest() == writer.commit_manifest() == f"{uri}/m.json"
    manifest = parse_manifest(writer.folder.read("m.json"), writer.manifest_uri)
    (shard,) = manifest.shards_of("train", ["easy"])
    assert shard.uri == f"{uri}/{first.uri}"
    assert shard.size_bytes == len(writer.folder.read(first.uri))
    writer.save("validation", None, ROWS, shard_id="0")
    with pytest.raises(DatasetConflictError):
        writer.commit_manifest()


def test_only_one_of_many_writers_wins(place):
    """Of eight that make the same document at once with different words, one makes it, and its words are there."""
    uri, storage = place
    folders = [DatasetWriter(f"{uri}/m.json", storage=storage).folder for _ in range(8)]
    won = []

    def make(number):
        if folders[number].create("one.json", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1
    assert folders[0].read("one.json") == b"%d" % won[0]


def test_write_to_a_store(place, tmp_path):
    """`o41td write` works on a store: shards are read back from it before they count."""
    uri, storage = place
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(50)))
    job = WriteJob(inputs=[str(path)], manifest_uri=f"{uri}/m.json", splits={"train": 1.0}, shuffle=True)
    assert run_write(job, storage=storage).rows == 50
    assert run_write(job, storage=storage).reused == 1


def test_pack_to_a_store(place, tmp_path):
    """`o41td pack` works on a store, and run again finds there what it has done."""
    uri, storage = place
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"tokens": {[i + 1] * (i % 7 + 1)}}}\n' for i in range(50)))
    job = PackJob(inputs=[str(path)], manifest_uri=f"{uri}/m.json", length=8)
    first = run_pack(job, storage=storage)
    assert (first.reused, first.counts.tokens) == (0, sum(i % 7 + 1 for i in range(50)))
    again = run_pack(job, storage=storage)
    assert (again.reused, again.counts) == (len(first.shards), first.counts)


def test_s3_without_credentials_is_refused():
    """Nothing is read from the environment unless the storage config says so."""
    with pytest.raises(StorageError, match="no credentials"):
        DatasetWriter("s3://bucket/m.json")
