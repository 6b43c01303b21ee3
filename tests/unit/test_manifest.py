"""Data manifests: what is accepted, what is refused, and which shards a selection names."""

import json
from pathlib import Path
from typing import Any

import pytest

from o41td.errors import ConfigError
from o41td.manifest import Manifest, parse_manifest, read_manifest

SHARDS = [
    {"uri": "a.parquet", "records": 10, "size_bytes": 100, "row_groups": [6, 4]},
    {"uri": "sub/b.parquet", "records": 5, "size_bytes": None, "etag": "x"},
    {"uri": "/data/c.parquet", "records": 0},
]
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "data_format": "parquet",
    "splits": {
        "train": {
            "records": 15,
            "shards": SHARDS,
            "curriculum": {
                "easy": {"records": 5, "shards": ["sub/b.parquet"], "metadata": {"from": "web"}},
                "hard": {"records": 15, "shards": [SHARDS[1], SHARDS[0]]},
            },
        },
        "test": {"records": 0, "shards": [], "curriculum": None},
    },
}


def parsed(document: Any) -> Manifest:
    """A manifest in the folder /m."""
    return parse_manifest(json.dumps(document).encode(), "/m/manifest.json")


def uris_of(manifest: Manifest, split: str, *stages: str) -> list[str]:
    """The URIs that a selection names."""
    return [shard.uri for shard in manifest.shards_of(split, stages, source="s")]


def test_a_split_is_its_shards_in_order() -> None:
    """Relative URIs are seen from the manifest's folder; what is stated of a shard is kept."""
    manifest = parsed(DOCUMENT)
    assert uris_of(manifest, "train") == ["/m/a.parquet", "/m/sub/b.parquet", "/data/c.parquet"]
    first, second, _ = manifest.shards_of("train")
    assert (first.records, first.size_bytes, first.etag, first.row_groups) == (10, 100, None, (6, 4))
    assert (second.records, second.size_bytes, second.etag, second.row_groups) == (5, None, "x", None)
    assert uris_of(manifest, "test") == []


def test_curriculum_stages_are_a_union_in_the_listed_order() -> None:
    """A shard of two stages comes once, where the first of them has it."""
    manifest = parsed(DOCUMENT)
    assert uris_of(manifest, "train", "easy") == ["/m/sub/b.parquet"]
    assert uris_of(manifest, "train", "hard", "easy") == ["/m/sub/b.parquet", "/m/a.parquet"]
    assert manifest.splits["train"].curriculum["easy"].metadata == {"from": "web"}


def test_an_unknown_split_or_stage_names_those_that_there_are() -> None:
    """The error says which source asked, for what, and what it could have asked for."""
    manifest = parsed(DOCUMENT)
    with pytest.raises(ConfigError, match=r"source 's'.*no split named 'dev'.*'train', 'test'.*manifest.json"):
        uris_of(manifest, "dev")
    with pytest.raises(ConfigError, match=r"curriculum stage of split 'train' named 'x'.*'easy', 'hard'"):
        uris_of(manifest, "train", "easy", "x")


def changed(path: str, value: Any) -> Any:
    """The document with one place changed; `...` takes it out."""
    document = json.loads(json.dumps(DOCUMENT))
    *way, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place: Any = document
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", 2, "`version`: 2 is not 1"),
        ("version", True, "`version`: True is not 1"),
        ("version", ..., "lacks `version`"),
        ("data_format", "csv", "`data_format`: 'csv' is none of"),
        ("data_format", "node", "`data_format`: 'node' is none of parquet, jsonl.gz, msgpack.zstf"),
        ("splits", [], "`splits`: .* not a JSON object"),
        ("extra", 1, "unknown `extra`"),
        ("splits/train/records", 16, r"`splits\['train'\]`: `records` is 16, and its 3 shards add up to 15"),
        ("splits/train/records", "15", r"`splits\['train'\]`: `records` is \"15\", not a whole number"),
        ("splits/train/shards", {}, "not a list of shards"),
        ("splits/train/shards/0/records", -1, r"shards\[0\] \(a.parquet\)`: `records` is -1, not a whole number"),
        ("splits/train/shards/0/records", 1.0, "`records` is 1.0, not a whole number"),
        ("splits/train/shards/0/records", ..., r"shards\[0\]`: it lacks `records`"),
        ("splits/train/shards/0/size_bytes", "1", "`size_bytes` is"),
        ("splits/train/shards/0/etag", 5, "`etag` is 5, not text"),
        ("splits/train/shards/0/uri", "", "`uri` is"),
        ("splits/train/shards/0/row_groups", [6, 3], r"`records` is 10, and its `row_groups` add up to 9"),
        ("splits/train/shards/0/row_groups", 10, "`row_groups` is not a list"),
        ("splits/train/shards/0/rowGroups", [10], "unknown `rowGroups`"),
        ("splits/train/shards/1/uri", "a.parquet", r"shards\[1\] \(/m/a.parquet\)`: the shard is listed twice"),
        ("splits/train/curriculum/easy/records", 6, r"\['easy'\]`: `records` is 6, and its 1 shards add up to 5"),
        ("splits/train/curriculum/easy/shards/0", "z.parquet", "'z.parquet' is no shard of its split"),
        ("splits/train/curriculum/hard/shards/0/uri", "z", r"shards\[0\] \(/m/z\)`: this is no shard of its split"),
        ("splits/train/curriculum/hard/shards/0/records", 4, "`records` is 4, and 5 in its split"),
        ("splits/train/curriculum/hard/shards/1/size_bytes", 99, "`size_bytes` is 99, and 100 in its split"),
        ("splits/train/curriculum/easy/metadata", "x", r"metadata`: \"x\" is not a JSON object"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_with_its_place(path: str, value: Any, told: str) -> None:
    """Each problem is told with split, stage and shard."""
    with pytest.raises(ConfigError, match=told) as caught:
        parsed(changed(path, value))
    assert "/m/manifest.json" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[]", "not a JSON object"),
        (b'{"version": NaN}', "NaN"),
        (b'{"version": 1, "version": 1}', "'version' stands twice"),
        (b"\xff\xfe\xfa", "no JSON"),
        (b"[" * 200_000, "levels deep"),
        (b'{"version": ' + b"[" * 100 + b"]" * 100 + b"}", "levels deep"),
        (b'{"version": 1e999}', "too large"),
        (b'{"version": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, told: str) -> None:
    """Damaged JSON, JSON of something else, and keys that stand twice are one clear error."""
    with pytest.raises(ConfigError, match=told):
        parse_manifest(data, "/m/manifest.json")


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    """Where a folder is named, the manifest in it is what is asked for."""
    with pytest.raises(ConfigError, match=r"it is a folder.*Name the manifest in it, .*/data-manifest-v1\.json"):
        read_manifest(str(tmp_path))


def test_all_problems_are_told_at_once() -> None:
    """A manifest of many mistakes names each, up to twenty."""
    document = changed("splits/train/shards", [{"uri": f"{i}.parquet", "records": "x"} for i in range(50)])
    with pytest.raises(ConfigError, match=r"and 3[0-9] more") as caught:
        parsed(document)
    assert len(caught.value.problems) == 21


def test_a_manifest_is_read_from_its_file(tmp_path: Path) -> None:
    """Paths and file:// URIs name the same manifest, a missing one is refused, and a remote one is asked for."""
    path = tmp_path / "a b" / "m%20.json"
    path.parent.mkdir()
    path.write_text(json.dumps(DOCUMENT))
    for uri in (str(path), path.as_uri()):
        assert read_manifest(uri).shards_of("train")[0].uri == str(path.parent / "a.parquet")
    with pytest.raises(ConfigError, match="No such file"):
        read_manifest(str(tmp_path / "none.json"))
    asked: list[tuple[str, int]] = []
    read = read_manifest("s3://b/deep/m.json", lambda uri, most: (asked.append((uri, most)), path.read_bytes())[1])
    assert read.shards_of("train")[0].uri == "s3://b/deep/a.parquet"
    assert [uri for uri, _most in asked] == ["s3://b/deep/m.json"]
