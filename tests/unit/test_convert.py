"""`o41td convert`: documents of o41-training-data."""

from __future__ import annotations

import copy
import json
import stat
from pathlib import Path

import pytest

from o41td.cli.convert import convert_document, convert_file
from o41td.cli.failure import UsageProblem
from o41td.config import BatchStreamConfig, StorageConfig
from o41td.errors import ConfigError

STREAM = {
    "seed": 7,
    "memoryLimitBytes": 2_000_000_000,
    "maxRowGroupBytes": 67_108_864,
    "fields": [{"name": "tokens", "source": "input_ids", "dtype": "i32", "length": 8, "pad": 0}],
    "stages": [
        {
            "batchSize": 4,
            "dropLast": True,
            "shuffle": {"bufferRows": 64},
            "sources": [
                {"files": [{"uri": "a.parquet", "rows": 10, "sizeBytes": 1234}], "weight": 3.0},
                {"manifestUri": "data-manifest-v1.json", "split": "train", "curriculumStages": ["easy"]},
            ],
        },
        {"batchSize": 2, "infinite": True, "shuffle": None, "sources": [{"files": ["b.parquet"]}]},
    ],
}
WHOLE = STREAM | {
    "rank": 1,
    "worldSize": 4,
    "storage": {
        "baseUrl": "https://store.example",
        "region": "auto",
        "accessKeyId": "key-id",
        "secretAccessKey": "key-secret",
        "virtualHostedStyleRequest": True,
    },
}


def written(folder: Path, document: object, name: str = "stream.json") -> Path:
    """A document as a file."""
    (folder / name).write_text(json.dumps(document))
    return folder / name


def test_a_stream_without_storage_is_a_config_as_it_is(tmp_path: Path) -> None:
    """A document that has neither storage nor rank is read by `load` without conversion, and converts to the same."""
    config = BatchStreamConfig.model_validate(STREAM)
    assert [stage.batch_size for stage in config.stages] == [4, 2]
    assert config.stages[0].drop_last
    assert config.stages[0].shuffle is not None
    assert config.stages[0].sources[0].files[0].size_bytes == 1234
    assert BatchStreamConfig.load(written(tmp_path, STREAM)) == config.relative_to(str(tmp_path))
    assert convert_document(STREAM).config == config


def test_storage_and_ranks_become_arguments() -> None:
    """Storage becomes a `StorageConfig`, rank and world size what `open_batch_stream` takes; nothing else moves."""
    before = copy.deepcopy(WHOLE)
    converted = convert_document(WHOLE)
    assert converted.config == BatchStreamConfig.model_validate(STREAM)
    assert converted.arguments == {"rank": 1, "world_size": 4}
    assert converted.storage is not None
    assert converted.storage.endpoint_url == "https://store.example"
    assert converted.storage.virtual_hosted_style is True
    assert converted.storage.secret_record()["secret_access_key"] == "key-secret"
    assert before == WHOLE


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_what_is_written_is_read_back_the_same(tmp_path: Path, suffix: str) -> None:
    """From another folder the config loads as the document's stream; the settings, private to their owner, load too."""
    (tmp_path / "new").mkdir()
    to, storage_to = tmp_path / "new" / f"config.{suffix}", tmp_path / "storage.json"
    convert_file(written(tmp_path, WHOLE), to=to, storage_to=storage_to, as_json=False)
    assert BatchStreamConfig.load(to) == BatchStreamConfig.load(written(tmp_path, STREAM))
    assert stat.S_IMODE(storage_to.stat().st_mode) == 0o600
    assert StorageConfig.load(storage_to) == convert_document(WHOLE).storage
    assert "key-secret" not in to.read_text()


def test_nothing_secret_is_printed_and_nothing_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--to` the config is printed without storage, as a note says; a file that is there is left alone."""
    source = written(tmp_path, WHOLE)
    convert_file(source, to=None, storage_to=None, as_json=False)
    out, told = capsys.readouterr()
    assert BatchStreamConfig.from_document(json.loads(out)) == BatchStreamConfig.model_validate(STREAM)
    assert "--storage-to" in told
    assert "rank=1, world_size=4" in told
    assert "key-secret" not in out + told
    with pytest.raises(UsageProblem, match="nothing is overwritten"):
        convert_file(source, to=source, storage_to=None, as_json=False)
    assert json.loads(source.read_text()) == WHOLE


def test_what_is_not_known_here_is_named(tmp_path: Path) -> None:
    """Unknown keys and values that are refused here are all named, with their places; so is what is no config."""
    bad = copy.deepcopy(STREAM) | {"speed": 11}
    bad["fields"][0]["pad"] = 1.5
    with pytest.raises(ConfigError) as told:
        convert_file(written(tmp_path, bad), to=None, storage_to=None, as_json=False)
    assert {place for place, _text in told.value.problems} == {"speed", "fields[0].pad"}
    with pytest.raises(UsageProblem, match="checkpoint"):
        convert_file(written(tmp_path, {"cursor": {}}), to=None, storage_to=None, as_json=False)


def test_a_manifest_is_said_to_need_no_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest is checked, and its splits are told as sources."""
    shards = [{"uri": "a.parquet", "records": 3}, {"uri": "b.parquet", "records": 4}]
    manifest = {"version": 1, "data_format": "parquet", "splits": {"train": {"records": 7, "shards": shards}}}
    path = written(tmp_path, manifest, "data-manifest-v1.json")
    convert_file(path, to=None, storage_to=None, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {"kind": "manifest", "data_format": "parquet", "splits": {"train": {"shards": 2, "records": 7}}}
