"""Streams out of object storage: the same batches as out of local files, and no more bytes asked for than they take."""

from __future__ import annotations

import gzip
import json
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import faulty_proxy as faults
import stream_reference as ref
from command_line import o41td_in_a_process
from o41td import (
    BatchStreamConfig,
    ChangedDataError,
    ConfigError,
    FileSource,
    JsonLines,
    ManifestSource,
    Parquet,
    ProjectedField,
    Stage,
    StorageError,
    plan,
    resume_batch_stream,
)
from o41td.checking import check
from o41td.workers.remote_objects import tail_bytes_of
from sample_nodes import Scale

pytestmark = pytest.mark.usefixtures("forked_loaders")


def test_a_remote_stream_is_the_local_one(bucket, write_shards, open_stream):
    """Shards of a glob give the batches that the same local files give, and a checkpoint resumes them."""
    paths = write_shards((60, 45, 0, 33))
    bucket.put_files(paths)
    config = ref.stream_config(ref.stage_of([bucket.uri("data/*.parquet")], buffer_rows=32))
    reference = ref.Reference(ref.stream_config(ref.stage_of(paths, buffer_rows=32)))
    stream = open_stream(config, storage=bucket.storage)
    for number in range(7):
        reference.check(stream.next(), number=number)
    checkpoint = stream.checkpoint()
    stream.close()
    assert "the-secret" not in checkpoint.to_json()
    assert all(version.startswith("etag:") for version in checkpoint.sources[0].versions)
    with resume_batch_stream(checkpoint, storage=bucket.storage) as resumed:
        reference.check_rest(resumed, position=7)
        storage = resumed.stats()["storage"]
    assert storage["requests"] > 0
    assert storage["retries"] == 0
    bucket.put("data/part-00001.parquet", paths[0].read_bytes())
    with pytest.raises(ChangedDataError, match=r"part-00001.parquet: (rows|bytes|version)"):
        resume_batch_stream(checkpoint, storage=bucket.storage)


@pytest.mark.parametrize("max_row_group_bytes", [64 << 20, 100_000], ids=["whole", "streamed"])
def test_only_what_is_projected_is_asked_for(bucket, tmp_path, open_stream, max_row_group_bytes):
    """Over an epoch: each projected column chunk once, 10 % beside it, and the footers; several at a time."""
    rng = np.random.default_rng(1)
    rows, paths, projected = 20_000, [], 0
    for number in range(2):
        table = pa.table(
            {
                "id": np.arange(number * rows, (number + 1) * rows),
                "unread": rng.random(rows),
                "x": rng.random(rows).astype(np.float32),
                "text": [bytes(16)] * rows,
            }
        )
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, paths[-1], row_group_size=5000, compression="none", use_dictionary=False)
        footer = pq.read_metadata(paths[-1])
        for group in map(footer.row_group, range(footer.num_row_groups)):
            projected += sum(group.column(column).total_compressed_size for column in (0, 2))
    uris = bucket.put_files(paths)
    bucket.proxy.latency_s = 0.02
    fields = [ProjectedField(name="id", dtype="i64"), ProjectedField(name="x", dtype="f32")]
    config = ref.stream_config(
        ref.stage_of(uris, batch_size=1000), fields=fields, max_row_group_bytes=max_row_group_bytes, block_rows=5000
    )
    stream = open_stream(config, storage=bucket.storage)
    assert ref.ids_of(list(stream)) == list(range(2 * rows))
    asked = sum(each.range_bytes for each in bucket.proxy.gets())
    footers = sum(tail_bytes_of(path.stat().st_size) for path in paths)
    assert projected <= asked <= 1.1 * projected + footers
    assert bucket.proxy.most_in_flight > 1
    (source,) = stream.stats()["sources"]
    assert projected - footers <= source["storage"]["received_bytes"] <= source["storage"]["requested_bytes"] <= asked
    assert source["storage"]["wait_s"] > 0


@pytest.mark.parametrize("max_row_group_bytes", [64 << 20, 300_000], ids=["whole", "streamed"])
def test_row_groups_of_many_slots_are_asked_for_once(bucket, tmp_path, open_stream, max_row_group_bytes):
    """However many workers there are, and however many blocks a row group is cut into."""
    rng = np.random.default_rng(2)
    projected = 0
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        table = pa.table({"id": np.arange(8000) + 8000 * number, "x": rng.random((8000, 8)).tolist()})
        pq.write_table(table, path, row_group_size=4000, compression="none", use_dictionary=False)
        footer = pq.read_metadata(path)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            projected += sum(group.column(column).total_compressed_size for column in range(2))
        bucket.put(f"data/{path.name}", path.read_bytes())
    fields = [ProjectedField(name="id", dtype="i64"), ProjectedField(name="x", dtype="f32", length=8, exact=False)]
    config = ref.stream_config(
        ref.stage_of([bucket.uri("data/")], batch_size=100),
        fields=fields,
        block_rows=400,
        threads=3,
        max_row_group_bytes=max_row_group_bytes,
    )
    ids = ref.ids_of(list(open_stream(config, storage=bucket.storage)))
    assert ids == list(range(16_000))
    footers = 2 * tail_bytes_of((tmp_path / "0.parquet").stat().st_size)
    asked = sum(each.range_bytes for each in bucket.proxy.gets())
    assert projected <= asked + footers
    assert asked <= 1.1 * projected + 3 * footers  # each worker looks at the footers of what it decodes


def test_many_shards_are_opened_by_one_list_and_a_request_each(bucket):
    """Names, sizes and etags come with the list; each footer is one request for the shard's end, many side by side."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [time.time_ns()] * 3}), sink)  # no earlier run has put it into the index cache
    names = [f"part-{number:05}.parquet" for number in range(80)]
    for name in names:
        bucket.put(f"data/{name}", sink.getvalue().to_pybytes())
    bucket.proxy.latency_s = 1.0
    found = plan(
        ref.stream_config(ref.stage_of([bucket.uri("data/*.parquet")]), fields=ref.ID_ONLY), storage=bucket.storage
    )
    assert found["stages"][0]["sources"][0]["rows"] == 240
    footers = bucket.proxy.gets()
    assert sorted(each.path.partition("?")[0] for each in footers) == [f"/{bucket.name}/data/{name}" for name in names]
    assert len(bucket.proxy.log) == len(footers) + 2  # the list, and a look whether the glob is a name
    assert bucket.proxy.most_in_flight >= 16


def test_all_that_is_ordered_is_asked_for_before_the_first_answer(bucket, tmp_path, open_stream):
    """Four workers ask for the two blocks that each was given, though these may come while it maps the arena."""
    values = np.random.default_rng(0).integers(0, 1 << 62, (8, 8192))
    paths = []
    (tmp_path / "data").mkdir()
    for number, column in enumerate(values):
        paths.append(tmp_path / f"data/{number}.parquet")
        pq.write_table(pa.table({"id": column}), paths[-1])
    bucket.put_files(paths)
    all_asked = threading.Barrier(len(paths))
    for path in paths:
        is_data = {"path": path.name, "ranged": True, "least_bytes": 60_000}  # 64 KiB of numbers, and not the footer
        bucket.proxy.fail(faults.behind(all_asked, timeout_s=30), **is_data)
    field = ProjectedField(name="id", dtype="i64")
    stage = Stage(sources=[FileSource(files=[bucket.uri("data/*.parquet")])], batch_size=8192)
    config = BatchStreamConfig(
        fields=[field], stages=[stage], block_rows=8192, lookahead=2, threads=4, cache_dir=str(tmp_path / "cache")
    )
    with open_stream(config, storage=bucket.storage) as stream:
        first = stream.next()
    assert not all_asked.broken
    assert first["id"].tolist() == values[0].tolist()


def test_a_store_that_fails_now_and_then_changes_nothing(bucket, write_shards, open_stream):
    """Throttles, resets, short bodies and ignored ranges on the way leave every batch as it should be, and are told."""
    paths = write_shards((200, 200), row_group_rows=20)
    uris = bucket.put_files(paths)
    for answer in (
        faults.status(503, "SlowDown"),
        faults.reset_after(0.5),
        faults.cut_short(0.5),
        faults.status(500, "InternalError"),
        faults.without_range(),
        faults.status(429, "TooManyRequests"),
    ):
        bucket.proxy.fail(answer, times=2, ranged=True)
    stream = open_stream(ref.stream_config(ref.stage_of(uris, buffer_rows=64), block_rows=40), storage=bucket.storage)
    reference = ref.Reference(ref.stream_config(ref.stage_of(paths, buffer_rows=64)))
    reference.check_rest(stream, position=0)
    storage = stream.stats()["storage"]
    assert storage["retries"] >= 10
    assert storage["last_error"]


def test_an_object_that_is_replaced_in_mid_run_is_refused(bucket, write_shards, open_stream):
    """Every batch before it arrives, then an error that names the object."""
    paths = write_shards((64,) * 6, row_group_rows=64, longest=1000, compression="none")  # larger than a shard's end
    uris = bucket.put_files(paths)
    config = ref.stream_config(
        ref.stage_of(uris, batch_size=16), block_rows=64, lookahead=1, prefetch_batches=1, threads=1
    )
    reference = ref.Reference(ref.stream_config(ref.stage_of(paths, batch_size=16)))

    def replaced_by_then(handler, asked):
        bucket.put("data/part-00005.parquet", paths[0].read_bytes())
        handler.reply(asked, *handler.forwarded())

    stream = open_stream(config, storage=bucket.storage)
    assert stream.stats()["arena"]["slots"] < 6  # so the last shard is not read before batches are taken
    bucket.proxy.fail(replaced_by_then, path="part-00005")
    for number in range(20):
        reference.check(stream.next(), number=number)
    for _ in range(2):
        with pytest.raises(ChangedDataError, match="changed after it was indexed") as caught:
            stream.next()
        assert caught.value.shard == uris[5]
        assert caught.value.source is not None


def test_a_worker_that_waits_for_its_store_is_not_taken_for_stuck(bucket, write_shards, open_stream):
    """An outage that is longer than stall_timeout_s is waited out by the worker that met it; a longer one is told."""
    paths = write_shards((64,) * 6, row_group_rows=64, longest=1000, compression="none")  # larger than a shard's end
    uris = bucket.put_files(paths)
    config = ref.stream_config(
        ref.stage_of(uris, batch_size=16), block_rows=64, lookahead=1, stall_timeout_s=1.0, prefetch_batches=1
    )
    stream = open_stream(config, storage=bucket.storage_with(give_up_after_s=1.0))
    figures = stream.stats()
    pid = figures["workers"][0]["pid"]
    assert figures["arena"]["slots"] < 6  # so the last shard is not read before batches are taken
    bucket.proxy.fail(faults.after(2.5), path="part-00005", ranged=True)
    reference = ref.Reference(ref.stream_config(ref.stage_of(paths, batch_size=16)))
    reference.check_rest(stream, position=0)
    assert [worker["pid"] for worker in stream.stats()["workers"]] == [pid]
    bucket.proxy.fail(faults.status(503, "SlowDown", "please"), times=10_000, ranged=True)
    stream.seek(0)
    with pytest.raises(StorageError, match=r"attempts; the last answer: 503 SlowDown please"):
        list(stream)


def test_manifests_and_records_of_a_store(bucket, open_stream):
    """A remote manifest selects JSON Lines beside it; they mix with other remote records as local ones do."""
    lines = {name: [{"id": first + place} for place in range(40)] for name, first in (("a", 0), ("b b", 100))}
    shards = []
    for name, records in lines.items():
        data = gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode())
        bucket.put(f"deep/{name}.jsonl.gz", data)
        shards.append({"uri": f"{name}.jsonl.gz", "records": len(records), "size_bytes": len(data)})
    split = {"records": 80, "shards": shards, "curriculum": {"easy": {"records": 40, "shards": ["b b.jsonl.gz"]}}}
    document = {"version": 1, "data_format": "jsonl.gz", "splits": {"train": split}}
    bucket.put("deep/m.json", json.dumps(document).encode())
    sources = [
        ManifestSource(manifest_uri=bucket.uri("deep/m.json"), split="train", curriculum_stages=["easy"], weight=1.0),
        FileSource(files=[bucket.uri("deep/")], encoding="jsonl.gz", weight=2.0, name="all"),
    ]
    stream = open_stream(
        ref.stream_config(ref.stage_of(*sources, batch_size=12), fields=ref.ID_ONLY), storage=bucket.storage
    )
    ids = ref.ids_of(list(stream))
    assert sorted(ids) == sorted([*range(40), *range(100, 140), *range(100, 140)])
    assert [[shard.uri for shard in source.shards] for source in stream.sources] == [
        [bucket.uri("deep/b b.jsonl.gz")],
        [bucket.uri("deep/a.jsonl.gz"), bucket.uri("deep/b b.jsonl.gz")],
    ]


def test_nodes_run_on_shards_of_a_store(bucket, write_shards, open_stream):
    """Chains of remote Parquet and of remote records give what the same chains of local files give."""
    paths = write_shards((60, 33))
    bucket.put_files(paths)
    bucket.put("lines/a.jsonl.gz", gzip.compress(b"".join(b'{"id": %d}\n' % number for number in range(200, 240))))
    fields = [ProjectedField(name=name, source=name, dtype="i64") for name in ("id", "scaled")]
    stage = Stage(
        sources=[
            Parquet([bucket.uri("data/*.parquet")], columns=["id"]) >> Scale(3),
            JsonLines([bucket.uri("lines/")]) >> Scale(5),
        ],
        batch_size=16,
    )
    seen = {}
    for batch in open_stream(ref.stream_config(stage, fields=fields, block_rows=16), storage=bucket.storage):
        seen |= dict(zip(batch["id"].tolist(), batch["scaled"].tolist(), strict=True))
    assert seen == {number: number * (3 if number < 93 else 5) for number in [*range(93), *range(200, 240)]}


def test_keys_are_taken_letter_by_letter(bucket, write_shards, open_stream):
    """J9: each of the keys that a URL would confuse gives its own rows."""
    keys = ("a b", "a%20b", "a#b", "a+b", "a?b", "a[b", "a*b", "é漢", "a//b", "a/b", "a")
    paths = write_shards([3] * len(keys))
    for key, path in zip(keys, paths, strict=True):
        bucket.put(f"odd/{key}.parquet", path.read_bytes())
    uris = [bucket.uri(f"odd/{key}.parquet") for key in keys]
    stream = open_stream(
        ref.stream_config(ref.stage_of(uris, batch_size=3), fields=ref.ID_ONLY), storage=bucket.storage
    )
    assert ref.ids_of(list(stream)) == list(range(3 * len(keys)))


def test_the_command_line_reaches_stores_and_reads_no_environment(bucket, write_shards, tmp_path):
    """`--storage` names a file of settings; variables and profiles that would lead elsewhere change nothing."""
    paths = write_shards((30, 30))
    bucket.put_files(paths)
    config = ref.stream_config(ref.stage_of([bucket.uri("data/")]))
    (tmp_path / "c.json").write_text(json.dumps(config.to_document()))
    (tmp_path / "storage.toml").write_text(
        f'endpointUrl = "{bucket.proxy.url}"\nregion = "us-east-1"\naccessKeyId = "own-key"\nsecretAccessKey = "s"\n'
    )
    (tmp_path / "profile").write_text("[default]\naws_access_key_id = profile-key\nendpoint_url = http://127.0.0.1:9\n")
    elsewhere = {
        "AWS_ACCESS_KEY_ID": "ambient-key",
        "AWS_SECRET_ACCESS_KEY": "ambient",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "profile"),
        "AWS_CONFIG_FILE": str(tmp_path / "profile"),
        "AWS_PROFILE": "nobody",
        "FSSPEC_S3": '{"endpoint_url": "http://127.0.0.1:9"}',
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    done = o41td_in_a_process(
        "run", tmp_path / "c.json", "--storage", tmp_path / "storage.toml", "--json", env=elsewhere
    )
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out.splitlines()[-1])["rows"] == 60
    assert {asked.key_id for asked in bucket.proxy.log} == {"own-key"}


def settings_file(folder, bucket):
    """A file for `--storage`, with a key id of its own."""
    path = folder / "storage.json"
    settings = {
        "endpointUrl": bucket.proxy.url,
        "region": "us-east-1",
        "accessKeyId": "the-key-id",
        "secretAccessKey": "s",
    }
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.usefixtures("forked_programs")
def test_a_data_set_is_written_to_a_store_and_streamed_from_it(bucket, write_shards, open_stream, tmp_path):
    """`write --storage` publishes it, a manifest's split streams, and the prefix of all splits is refused."""
    paths = write_shards((60, 40))
    settings = settings_file(tmp_path, bucket)
    where = ["--to", bucket.uri("sets/one"), "--storage", settings, "--json"]
    done = o41td_in_a_process(
        "write", *paths, "--split", "train=0.8", "--split", "validation=0.2", "--split-by", "id", *where
    )
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert {asked.key_id for asked in bucket.proxy.log} == {"the-key-id"}
    rows = {name: split["rows"] for name, split in report["splits"].items()}
    assert sum(rows.values()) == 100
    source = ManifestSource(manifest_uri=report["manifest"], split="train", curriculum_stages=[])
    config = ref.stream_config(ref.stage_of(source, batch_size=8), fields=ref.ID_ONLY)
    ids = ref.ids_of(list(open_stream(config, storage=bucket.storage)))
    assert len(set(ids)) == len(ids) == rows["train"]
    mixed = ref.stream_config(ref.stage_of([bucket.uri("sets/")]), fields=ref.ID_ONLY)
    with pytest.raises(ConfigError, match=r"sets/one holds the splits train, validation"):
        open_stream(mixed, storage=bucket.storage)
    own = ref.stream_config(ref.stage_of([bucket.uri("sets/one/validation/")], batch_size=8), fields=ref.ID_ONLY)
    assert sorted(ids + ref.ids_of(list(open_stream(own, storage=bucket.storage)))) == list(range(100))


@pytest.mark.usefixtures("forked_programs")
def test_sequences_are_packed_to_a_store_and_streamed_from_it(bucket, open_stream, tmp_path):
    """`pack --storage` publishes them, and every token streams back from the store."""
    documents = [[100 * row + place + 1 for place in range(1 + row % 13)] for row in range(60)]
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "documents.parquet")
    where = ["--to", bucket.uri("sets/packed"), "--storage", settings_file(tmp_path, bucket), "--json"]
    done = o41td_in_a_process("pack", tmp_path / "documents.parquet", "--length", "16", *where)
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["documents"], report["tokens"]) == (60, sum(map(len, documents)))
    assert report["manifest"] == bucket.uri("sets/packed/data-manifest-v1.json")
    assert {asked.key_id for asked in bucket.proxy.log} == {"the-key-id"}
    source = ManifestSource(manifest_uri=report["manifest"], split="train")
    tokens = ProjectedField(name="tokens", dtype="i32", length=16)
    config = ref.stream_config(ref.stage_of(source, batch_size=1), fields=[tokens])
    streamed = np.concatenate([batch["tokens"].ravel() for batch in open_stream(config, storage=bucket.storage)])
    assert sorted(streamed[streamed > 0].tolist()) == sorted(token for document in documents for token in document)


def test_check_looks_at_the_store(bucket, write_shards):
    """Latency, bandwidth and credentials of each store; far away is a warning, one that refuses a failure."""
    bucket.put_files(write_shards((60, 60), longest=1000, compression="none"))
    bucket.proxy.latency_s = 0.3
    config = ref.stream_config(ref.stage_of([bucket.uri("data/")], batch_size=20))
    record = check(config, storage=bucket.storage_with(session_token="token-of-the-test"))
    assert "token-of-the-test" not in json.dumps(record)
    probes = {probe["name"]: probe for probe in record["probes"] if probe["group"] == f"s3://{bucket.name}"}
    assert probes["latency"]["state"] == "warn"
    assert float(probes["latency"]["found"].split()[0]) >= 300
    assert probes["bandwidth"]["found"].split("/s")[0].endswith("B")
    assert "session token" in probes["credentials"]["found"]
    bucket.proxy.latency_s = 0.0
    bucket.proxy.fail(faults.status(403, "AccessDenied", "not yours"), times=99, ranged=True)
    record = check(config, storage=bucket.storage, samples=0)
    (probe,) = [probe for probe in record["probes"] if probe["group"] == f"s3://{bucket.name}"]
    assert (record["state"], probe["state"]) == ("fail", "fail")
    assert "not yours" in probe["found"]


def test_what_the_block_cache_has_is_asked_of_no_store(bucket, write_shards, open_stream, tmp_path):
    """The second time, with the index and all rows on local disk, a look at the names is all that a store sees."""
    paths = write_shards((60, 60), row_group_rows=30, longest=1000, compression="none")
    bucket.put_files(paths)
    config = ref.stream_config(ref.stage_of([bucket.uri("data/")], batch_size=20), cache_dir=str(tmp_path / "cache"))
    reference = ref.Reference(ref.stream_config(ref.stage_of(paths, batch_size=20)))
    for has_cache in (False, True):
        bucket.proxy.log.clear()
        reference.check_rest(open_stream(config, storage=bucket.storage), position=0)
        assert bool(bucket.proxy.gets()) != has_cache
