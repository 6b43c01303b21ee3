"""Config files: three formats, paths seen from the file's folder, refusals that name the file."""

import glob
import json

import pytest

from o41td.config import BatchStreamConfig
from o41td.errors import ConfigError
from o41td.job import job_of

JSON = json.dumps(
    {
        "stages": [
            {
                "sources": [
                    {
                        "files": [
                            "data/*.parquet",
                            "/abs/b.parquet",
                            "s3://bucket/c.parquet",
                            {"uri": "d.parquet", "rows": 3},
                        ]
                    },
                    {"manifestUri": "m/manifest.json", "split": "train"},
                ],
                "batchSize": 2,
            }
        ],
        "fields": [{"name": "x", "dtype": "f32", "pad": "nan"}],
        "memoryLimitBytes": "1.5GiB",
        "cacheDir": "cache",
    }
)
TOML = """
memoryLimitBytes = "1.5GiB"
cache_dir = "cache"
[[fields]]
name = "x"
dtype = "f32"
pad = nan
[[stages]]
batch_size = 2
[[stages.sources]]
files = ["data/*.parquet", "/abs/b.parquet", "s3://bucket/c.parquet", {uri = "d.parquet", rows = 3}]
[[stages.sources]]
manifest_uri = "m/manifest.json"
split = "train"
"""
YAML = """
memory_limit_bytes: 1.5GiB
cache_dir: cache
fields: [{name: x, dtype: f32, pad: .nan}]
stages:
  - batch_size: 2
    sources:
      - files: [data/*.parquet, /abs/b.parquet, "s3://bucket/c.parquet", {uri: d.parquet, rows: 3}]
      - manifest_uri: m/manifest.json
        split: train
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", JSON),
        ("c.toml", TOML),
        ("c.yaml", YAML),
        ("c.yml", YAML),
        ("C.JSON", JSON),
        ("bom.toml", "\ufeff" + TOML),
    ],
)
@pytest.mark.parametrize("folder_name", ["plain", "with [brackets]*"])
def test_formats_and_paths(tmp_path, monkeypatch, name, text, folder_name):
    """All formats give the same config, and relative paths are the file's, wherever the program runs."""
    folder = tmp_path / folder_name
    folder.mkdir()
    (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = BatchStreamConfig.load(f"{folder_name}/{name}")
    files, manifest = config.stages[0].sources
    assert files.files[:3] == (f"{glob.escape(str(folder))}/data/*.parquet", "/abs/b.parquet", "s3://bucket/c.parquet")
    assert files.files[3].uri == f"{folder}/d.parquet"
    assert manifest.manifest_uri == f"{folder}/m/manifest.json"
    assert config.cache_dir == f"{folder}/cache"
    assert config.memory_limit_bytes == 3 * 2**29
    assert config.to_document()["fields"][0]["pad"] == "nan"


@pytest.mark.parametrize(
    ("written", "place"),
    [("", "sub/o41td-quarantine.jsonl"), ("quarantine_file = 'bad.jsonl'", "sub/bad.jsonl")],
)
def test_the_quarantine_file_is_beside_the_config_by_default_too(tmp_path, monkeypatch, written, place):
    """One rule for all relative paths of a file, the default among them; a config made in Python has its own folder."""
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "c.toml"
    path.write_text(f"{written}\non_bad_data = 'replace'\n{TOML}")
    monkeypatch.chdir(tmp_path)
    config = BatchStreamConfig.load("sub/c.toml")
    job = job_of(config.model_copy(update={"cache_dir": None, "cache_limit_bytes": None}), lanes=1)
    assert job.quarantine_file == str(tmp_path / place)
    assert BatchStreamConfig.from_document(config.to_document()).quarantine_file == job.quarantine_file
    in_python = BatchStreamConfig(
        fields=[{"name": "x", "dtype": "i32"}], stages=[{"sources": [{"files": ["a"]}], "batch_size": 1}]
    )
    assert job_of(in_python, lanes=1).quarantine_file == str(tmp_path / "o41td-quarantine.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("c.ini", "", "suffix '.ini' is unknown"),
        ("c", "", "suffix '' is unknown"),
        ("c.json", "{", "cannot be parsed"),
        ("c.json", " \n", "cannot be parsed: it is empty"),
        ("c.json", '{"seed": 1, "seed": 2}', "'seed' stands twice"),
        ("c.json", "[]", "does not hold a table"),
        ("c.toml", "a = ", "cannot be parsed: Invalid value (at end of document)"),
        ("c.toml", "a = 1\na = 2\n", "cannot be parsed"),
        ("c.toml", "[fields]\n[fields]\n", "a list of tables is written [[name]], not [name], each time"),
        ("c.yaml", "a: [", "cannot be parsed"),
        ("c.yaml", "a:\n  - [web/?.parquet]", "but got '?' (at line 2, column 10). Globs and names"),
        ("c.yaml", "a: [*.parquet]", "(at line 1, column 6). Globs and names with other signs need quotes"),
        ("c.yaml", "!!python/object:os.system {}", "cannot be parsed"),
        ("c.yaml", "", "does not hold a table"),
        ("c.yaml", "1: 2", "Keys should be strings"),
        ("c.json", b"\xff\xfe", "not UTF-8"),
        ("c.json", '{"seed": -1, "stages": [], "fields": []}', "`seed`: -1 is out of range"),
        ("c.json", '{"format": "o41td-checkpoint"}', "this is a checkpoint, not a config"),
        ("c.json", '{"version": 1, "splits": {}}', "this is a data manifest, not a config"),
        ("c.toml", "[storage]\nregion = 'x'\n", "storage=StorageConfig(...)"),
    ],
)
def test_refusals_name_the_file(tmp_path, name, text, told):
    """A file that cannot be used is named with the reason."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        BatchStreamConfig.load(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    """There being no file is a ConfigError too, as is a folder in its place."""
    with pytest.raises(ConfigError, match="No such file") as caught:
        BatchStreamConfig.load(tmp_path / "absent.toml")
    assert str(tmp_path / "absent.toml") in str(caught.value)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="this is a folder"):
        BatchStreamConfig.load(tmp_path / "folder.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"seed": ' + "[" * 100_000),
        ("c.json", '{"seed": ' + "[" * 200 + "]" * 200 + "}"),
        ("c.toml", "seed = " + "[" * 5000 + "]" * 5000),
        ("c.yaml", "seed: " + "[" * 5000 + "]" * 5000),
        ("c.yaml", "a: &a [*a]"),
    ],
    ids=["json, endless", "json", "toml", "yaml", "yaml, inside itself"],
)
def test_deep_nesting_is_refused(tmp_path, name, text):
    """A file that no parser survives, or that nothing behind it would, is one error that names it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"deep.*{name}"):
        BatchStreamConfig.load(tmp_path / name)


def test_a_file_that_is_not_there_is_told_before_its_suffix(tmp_path):
    """A mistyped name is no matter of suffixes."""
    with pytest.raises(ConfigError, match="there is no such file"):
        BatchStreamConfig.load(tmp_path / "nothere")
