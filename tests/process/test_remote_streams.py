"""Streams out of object storage: the same batches as out of local files, and no more bytes asked for than they take."""

from __future__ import annotations

import stream_reference as ref
from o41td import resume_batch_stream


def test_a_remote_stream_is_the_local_one(bucket, write_shards, open_stream):
    """Shards of a glob give the batches that the same local files give, and a checkpoint resumes them."""
    paths = write_shards((60, 45, 0, 33))
    bucket.put_files(paths)
    config = ref.stream_config(ref.stage_of([bucket.uri("data/*.parquet")], buffer_rows=32), threads=2)
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
