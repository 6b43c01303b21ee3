"""Sources of shard files against the list of their rows."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import record_writer
from o41td.errors import ChangedDataError, ConfigError, CorruptDataError, SchemaError
from o41td.nodes import Span
from o41td.shard_node import JsonLines, MessagePack, Parquet, ShardNode

ROWS = [{"id": number, "text": f"row {number} é", "tags": list(range(number % 4))} for number in range(60)]
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "tags": pa.list_(pa.int64())})
CLASSES = {"parquet": Parquet, "jsonl.gz": JsonLines, "msgpack.zstf": MessagePack}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The rows in shards of 25, 0 and 35, in each encoding; Parquet's first has row groups of 4, 7, 0 and 14."""
    folder = tmp_path_factory.mktemp("shards")
    paths: dict[str, list[Path]] = {encoding: [] for encoding in CLASSES}
    for name, rows in (("a", ROWS[:25]), ("b", []), ("c", ROWS[25:])):
        for encoding, path in record_writer.write_records(folder, name, rows, SCHEMA).items():
            paths[encoding].append(path)
    with pq.ParquetWriter(paths["parquet"][0], SCHEMA) as writer:
        for rows in (ROWS[:4], ROWS[4:11], [], ROWS[11:25]):
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    return paths


@pytest.fixture(scope="module")
def nodes(shards: dict[str, list[Path]]) -> dict[str, ShardNode]:
    """A source of each encoding."""
    return {encoding: cls(shards[encoding]) for encoding, cls in CLASSES.items()}


@given(encoding=st.sampled_from(list(CLASSES)), at=st.integers(0, 60), take=st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_a_span_is_that_slice_of_the_rows(nodes, encoding: str, at: int, take: int) -> None:
    """Any span, over the borders of shards and row groups, holds the rows of those numbers."""
    if at + take > len(ROWS):
        with pytest.raises(ConfigError, match="which has 60"):
            nodes[encoding].forward(Span(at, take))
    else:
        rows = nodes[encoding].chain().forward(Span(at, take))
        assert rows.to_pylist() == ROWS[at : at + take]


@pytest.mark.parametrize("encoding", CLASSES)
def test_a_version_tells_what_the_files_are(nodes, shards, encoding: str, tmp_path: Path) -> None:
    """The same files give the same version; fewer of them, copies of them, or later ones give others."""
    cls, paths = CLASSES[encoding], shards[encoding]
    copies = [tmp_path / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    copied = cls(copies)
    assert cls(paths).version == nodes[encoding].version
    versions = {nodes[encoding].version, cls(paths[::-1]).version, cls(paths[:1]).version, copied.version}
    os.utime(copies[0], ns=(1, 1))
    versions.add(cls(copies).version)
    assert len(versions) == 5
    with pytest.raises(ChangedDataError, match="modification time"):
        copied.forward(Span(0, 1))


@pytest.mark.parametrize("encoding", CLASSES)
def test_damaged_shards_are_one_error_by_name(encoding: str, tmp_path: Path) -> None:
    """What is no shard is refused with its path."""
    path = tmp_path / f"bad.{encoding}"
    path.write_bytes(b"\x00\x01not a shard at all, not at all")
    with pytest.raises(CorruptDataError, match="bad"):
        _ = CLASSES[encoding](path).num_rows


def test_columns_are_chosen_by_name(shards) -> None:
    """Only the columns asked for come, in their order; one that is not there is refused."""
    for encoding, cls in CLASSES.items():
        rows = cls(shards[encoding], columns=["tags", "id"]).chain().forward(Span(24, 2))
        assert rows.to_pydict() == {"tags": [[], [0]], "id": [24, 25]}
    with pytest.raises(SchemaError, match="'nothing' are missing"):
        Parquet(shards["parquet"], columns=["nothing"]).forward(Span(0, 1))


def test_a_fingerprint_tells_how_files_are_read_not_which(shards) -> None:
    """Other files have the same fingerprint and another key; other columns, encodings and subclasses have another."""

    class Odd(Parquet):
        pass

    paths = shards["parquet"]
    assert Parquet(paths).fingerprint() == Parquet(paths[:1]).fingerprint()
    assert Parquet(paths).key(Span(0, 1)) != Parquet(paths[:1]).key(Span(0, 1))
    different = [Parquet(paths), Parquet(paths, columns=["id"]), JsonLines(paths), MessagePack(paths), Odd(paths)]
    assert len({node.fingerprint() for node in different}) == len(different)
