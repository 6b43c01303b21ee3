"""Streams over shards of records and over manifests: the batches of the same rows in Parquet, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import record_writer
import shard_writer
from o41td import (
    BatchStreamConfig,
    FileSource,
    ManifestSource,
    ShardFile,
    Stage,
    open_batch_stream,
    plan,
    resume_batch_stream,
)
from o41td.errors import ChangedDataError, ConfigError, CorruptDataError, SchemaError, ValueRefusedError
from stream_reference import Reference, ids_of, stage_of, stream_config

pytestmark = pytest.mark.usefixtures("forked_loaders")

RECORDS = ("jsonl.gz", "msgpack.zstf")
SHARD_ROWS = (70, 0, 33, 1)


def write_folder(folder: Path) -> dict[str, list[Path]]:
    """Shards of `SHARD_ROWS` rows in each encoding, the rows of `shard_writer`, Parquet's with one row group each."""
    paths: dict[str, list[Path]] = {encoding: [] for encoding in record_writer.ENCODINGS}
    first_id = 0
    for number, rows in enumerate(SHARD_ROWS):
        table = shard_writer.shard_table(first_id, rows)
        written = record_writer.write_records(folder, f"part-{number}", table.to_pylist(), table.schema)
        for encoding, path in written.items():
            paths[encoding].append(path)
        first_id += rows
    return paths


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The shards that the tests of this file share."""
    return write_folder(tmp_path_factory.mktemp("records"))


def config_of(source: Any, **keys: Any) -> BatchStreamConfig:
    """A shuffled stage of one source, two lanes, blocks smaller than a shard."""
    keys = {"lanes": 2, "block_rows": 16, **keys}
    return stream_config(stage_of(source, batch_size=7, buffer_rows=20), **keys)


def write_manifest(folder: Path, shards: list[Any], *, data_format: str, **stages: list[str]) -> str:
    """A manifest of one split, `train`."""
    records = {shard["uri"]: shard["records"] for shard in shards}
    split = {
        "records": sum(records.values()),
        "shards": shards,
        "curriculum": {
            name: {"records": sum(records[uri] for uri in uris), "shards": uris} for name, uris in stages.items()
        },
    }
    path = folder / "manifest.json"
    path.write_text(json.dumps({"version": 1, "data_format": data_format, "splits": {"train": split}}))
    return str(path)


@pytest.mark.parametrize("encoding", RECORDS)
def test_records_give_the_batches_of_parquet_from_any_checkpoint(shards, encoding):
    """The same rows come in the same order with the same bytes, and a checkpoint gives exactly the rest."""
    reference = Reference(config_of(FileSource(files=[str(path) for path in shards["parquet"]])))
    stream = open_batch_stream(config_of(FileSource(files=[str(path) for path in shards[encoding]])))
    with stream:
        checkpoints = [stream.checkpoint()]
        for number in range(reference.num_batches()):
            reference.check(stream.next(), number=number)
            checkpoints.append(stream.checkpoint())
        assert stream.next() is None
    for taken in (6, len(checkpoints) - 1):
        with resume_batch_stream(checkpoints[taken]) as resumed:
            assert resumed.sources[0].encoding == encoding
            reference.check_rest(resumed, position=taken)
            assert resumed.order_digest == stream.order_digest


def test_a_folder_of_two_encodings_is_read_in_the_one_that_is_stated(shards):
    """Left to itself a mixed folder is refused with a shard of each; with `encoding` it is the shards of that one."""
    folder = str(shards["parquet"][0].parent)
    with pytest.raises(ConfigError, match=r"two encodings.*part-0\.jsonl\.gz is jsonl\.gz.*State `encoding`"):
        plan(config_of(FileSource(files=folder)))
    planned = plan(config_of(FileSource(files=folder, encoding="msgpack.zstf")))
    assert planned["stages"][0]["rows"] == sum(SHARD_ROWS)


def test_a_manifest_source_is_the_union_of_its_stages(shards, tmp_path):
    """Shards come in the stages' order, each once; the checkpoint goes on when the manifest is gone."""
    stated = [{"uri": str(path), "records": rows} for path, rows in zip(shards["jsonl.gz"], SHARD_ROWS, strict=True)]
    uris = [shard["uri"] for shard in stated]
    path = write_manifest(tmp_path, stated, data_format="jsonl.gz", hard=[uris[2], uris[1]], easy=[uris[0], uris[2]])
    source = ManifestSource(manifest_uri=path, split="train", curriculum_stages=["hard", "easy"])
    chosen = [str(shards["parquet"][number]) for number in (2, 1, 0)]
    reference = Reference(config_of(FileSource(files=chosen)))
    with open_batch_stream(config_of(source)) as stream:
        for number in range(5):
            reference.check(stream.next(), number=number)
        checkpoint = stream.checkpoint()
        assert [shard.uri for shard in stream.sources[0].shards] == [uris[2], uris[1], uris[0]]
    Path(path).unlink()
    with resume_batch_stream(checkpoint) as resumed:
        reference.check_rest(resumed, position=5)


def test_a_manifest_names_the_encoding_of_shards_without_a_suffix(shards, tmp_path):
    """`data_format` counts, relative URIs are seen from the manifest, and so does a checkpoint of it."""
    for number, path in enumerate(shards["msgpack.zstf"]):
        (tmp_path / f"shard {number}").write_bytes(path.read_bytes())
    stated = [{"uri": f"shard {number}", "records": rows} for number, rows in enumerate(SHARD_ROWS)]
    path = write_manifest(tmp_path, stated, data_format="msgpack.zstf")
    reference = Reference(config_of(FileSource(files=[str(path) for path in shards["parquet"]])))
    with open_batch_stream(config_of(ManifestSource(manifest_uri=path, split="train"))) as stream:
        reference.check(stream.next(), number=0)
        checkpoint = stream.checkpoint()
    with resume_batch_stream(checkpoint) as resumed:
        reference.check_rest(resumed, position=1)


@pytest.mark.parametrize("encoding", record_writer.ENCODINGS)
def test_a_manifest_that_states_other_rows_is_refused_by_the_shard(shards, tmp_path, encoding):
    """What the manifest says is believed until the shard is opened; then the shard is named with both numbers."""
    rows = [*SHARD_ROWS[:2], SHARD_ROWS[2] + 5, *SHARD_ROWS[3:]]
    stated = [
        {"uri": str(path), "records": number, "row_groups": [number] if number else []}
        for path, number in zip(shards[encoding], rows, strict=True)
    ]
    path = write_manifest(tmp_path, stated, data_format=encoding)
    config = config_of(ManifestSource(manifest_uri=path, split="train"))
    with pytest.raises(ChangedDataError, match=r"33.*38|38.*33") as caught, open_batch_stream(config) as stream:
        list(stream)
    assert caught.value.shard == str(shards[encoding][2])


def test_a_manifest_that_states_another_size_is_refused(shards, tmp_path):
    """The size is compared before anything is read of the shard."""
    path = shards["jsonl.gz"][0]
    stated = [{"uri": str(path), "records": 70, "size_bytes": 1}]
    manifest = write_manifest(tmp_path, stated, data_format="jsonl.gz")
    with pytest.raises(ChangedDataError, match=r"manifest .*states 1 bytes.*it has"):
        plan(config_of(ManifestSource(manifest_uri=manifest, split="train")))


def test_row_groups_of_a_manifest_spare_the_footers(module_shards, tmp_path):
    """Only a few shards are opened to plan: one of the others may be damaged and is told when its turn comes."""
    paths = module_shards([20] * 12, row_group_rows=8, name="spared")
    stated = [{"uri": str(path), "records": 20, "row_groups": [8, 8, 4]} for path in paths]
    manifest = write_manifest(tmp_path, stated, data_format="parquet")
    source = ManifestSource(manifest_uri=manifest, split="train")
    config = stream_config(Stage(sources=[source], batch_size=10))
    reference = Reference(stream_config(stage_of(paths, batch_size=10)))
    with open_batch_stream(config) as stream:
        assert [shard.version is None for shard in stream.sources[0].shards].count(True) == 8
        reference.check_rest(stream, position=0)
        checkpoint = stream.checkpoint()
    paths[1].write_bytes(b"no Parquet" * 20)
    assert plan(config)["stages"][0]["rows"] == 240
    with open_batch_stream(config) as stream:
        reference.check(stream.next(), number=0)
        reference.check(stream.next(), number=1)
        with pytest.raises(CorruptDataError) as caught:
            list(stream)
    assert caught.value.shard == str(paths[1])
    with pytest.raises((ChangedDataError, CorruptDataError), match=str(paths[1])):
        resume_batch_stream(checkpoint)


@pytest.mark.parametrize("encoding", RECORDS)
def test_a_bad_record_comes_behind_the_batches_before_it(tmp_path, encoding):
    """Every batch before the bad record's block arrives, then the error names source, shard and record, each time."""
    records = [{"id": number} for number in range(100)]
    path = tmp_path / f"a.{encoding}"
    if encoding == "jsonl.gz":
        lines = [json.dumps(record).encode() for record in records]
        lines[77] = b'{"id": 7,'
        record_writer.write_lines(path, b"\n".join(lines))
    else:
        records[77] = {"id": "seventy-seven"}
        record_writer.write_frames(path, records)
    fields = stream_config(stage_of([path])).fields[:1]
    config = stream_config(stage_of([path], batch_size=10), fields=fields, block_rows=10)
    with open_batch_stream(config) as stream:
        assert ids_of([stream.next() for _ in range(7)]) == list(range(70))
        for _ in range(2):
            with pytest.raises((CorruptDataError, ValueRefusedError)) as caught:
                stream.next()
            assert (caught.value.row, caught.value.shard) == (77, str(path))
            assert caught.value.source == "stage0/source0"


def test_a_changed_shard_of_records_is_refused_at_resume(tmp_path):
    """A shard rewritten since the checkpoint is named with what changed of it, though nothing is counted again."""
    path = record_writer.write_lines(tmp_path / "a.jsonl.gz", b'{"id": 1}\n' * 30)
    fields = stream_config(stage_of([path])).fields[:1]
    with open_batch_stream(stream_config(stage_of([path]), fields=fields)) as stream:
        checkpoint = stream.checkpoint()
    data = bytearray(path.read_bytes())
    data[4:8] = b"\1\2\3\4"  # the time in gzip's header: the same size, other bytes
    path.write_bytes(data)
    with pytest.raises(ChangedDataError, match="version"):
        resume_batch_stream(checkpoint)


def test_a_mistyped_key_is_refused_at_open_of_shards_that_were_counted_before(tmp_path):
    """Counts are kept for any fields; that records give the fields is looked at for each set of them."""
    paths = [record_writer.write_lines(tmp_path / f"{n}.jsonl.gz", b'{"id": 1, "od": 2}\n' * 30) for n in range(6)]
    right, *_ = stream_config(stage_of(paths)).fields
    wrong, other = (right.model_copy(update={"source": source}) for source in ("ids", "od"))
    for _ in range(2):
        assert plan(stream_config(stage_of(paths), fields=[right]))["stages"][0]["rows"] == 180
        with pytest.raises(SchemaError, match=r"has no key 'ids' \(did you mean 'id'\?\)"):
            open_batch_stream(stream_config(stage_of(paths), fields=[wrong]))
    for _ in range(2):
        with open_batch_stream(stream_config(stage_of(paths), fields=[other])) as stream:
            assert sum(batch.num_rows for batch in stream) == 180


@pytest.mark.parametrize(
    ("values", "null", "told"),
    [
        ([None, "a", None, "b"], None, "a string is no number.*row 1"),
        ([None, None], None, "the value is null.*row 0.*Set `null`"),
        ([None, "a", 7], None, None),
        ([None, "a"], -1, None),
    ],
)
def test_text_with_nulls_in_it_is_refused_at_open(tmp_path, values, null, told):
    """Nulls give no field either; one record that does is enough, since another may be a bad value among good ones."""
    path = tmp_path / "a.jsonl.gz"
    record_writer.write_lines(path, b"\n".join(json.dumps({"id": value}).encode() for value in values))
    field = stream_config(stage_of([path])).fields[0].model_copy(update={"source": "id", "null": null})
    config = stream_config(stage_of([path]), fields=[field])
    if told is None:
        open_batch_stream(config).close()
    else:
        with pytest.raises(ValueRefusedError, match=told):
            open_batch_stream(config)


def test_stated_rows_of_a_record_shard_spare_the_count(tmp_path):
    """A ShardFile that states its rows is believed until it is read, when the record that is missing is told."""
    path = record_writer.write_lines(tmp_path / "a.jsonl.gz", b'{"id": 1}\n' * 30)
    fields = stream_config(stage_of([path])).fields[:1]
    source = FileSource(files=[ShardFile(uri=str(path), rows=31)])
    config = stream_config(stage_of(source), fields=fields)
    assert plan(config)["stages"][0]["rows"] == 31
    with pytest.raises(ChangedDataError, match=r"30 records.*31"), open_batch_stream(config) as stream:
        list(stream)
