"""Chains of nodes as sources of a stage: run in the workers, on the rows of blocks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import record_writer
import shard_writer
from o41td import (
    BatchStreamConfig,
    JsonLines,
    MessagePack,
    Parquet,
    ProjectedField,
    Shuffle,
    Stage,
    open_batch_stream,
    resume_batch_stream,
)
from o41td.errors import ConfigError, CorruptDataError, NodeError, SchemaError
from o41td.nodes import Span
from o41td.outline import read_outline
from sample_nodes import Counting, Dropping, Failing, Leaving, NodeTrouble, Scale, Watched

pytestmark = pytest.mark.usefixtures("forked_loaders")

FIELDS = (
    ProjectedField(name="id", source="id", dtype="i64"),
    ProjectedField(name="scaled", source="scaled", dtype="f64"),
)


def config_of(*sources: Any, **keys: Any) -> BatchStreamConfig:
    """A shuffled stage, blocks smaller than most row groups."""
    stage = Stage(sources=list(sources), batch_size=7, shuffle=Shuffle(buffer_rows=20))
    return BatchStreamConfig(fields=FIELDS, stages=[stage], **{"block_rows": 10, "lanes": 1, "threads": 1, **keys})


def rows_of(stream: Any) -> list[tuple[int, float]]:
    """(id, scaled) of every row, in order."""
    with stream:
        return [row for batch in stream for row in zip(batch["id"].tolist(), batch["scaled"].tolist(), strict=True)]


def trace(checkpoint: Path, batch: int) -> list[tuple[int, int, int]]:
    """A batch's coordinates as a checkpoint tells them, which holds no code."""
    outline = read_outline(checkpoint)
    return outline.lookup.coordinates(0, batch).tolist()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Shards of 40, 0 and 23 rows in each encoding."""
    folder = tmp_path_factory.mktemp("chains")
    paths: dict[str, list[Path]] = {encoding: [] for encoding in record_writer.ENCODINGS}
    for number, (first, rows) in enumerate(((0, 40), (40, 0), (40, 23))):
        table = shard_writer.shard_table(first, rows)
        for encoding, path in record_writer.write_records(
            folder, f"s{number}", table.to_pylist(), table.schema
        ).items():
            paths[encoding].append(path)
    return paths


@pytest.mark.parametrize("source", [Parquet, JsonLines, MessagePack])
def test_workers_run_the_nodes_on_the_rows_of_each_encoding(shards, source, tmp_path: Path) -> None:
    """Each row comes once, in the order that the files alone have, with what the nodes made of it."""
    paths = shards[source.encoding]
    config = config_of(source(paths, columns=["id"]) >> Scale(3))
    with open_batch_stream(config) as stream:
        first = stream.next()
        assert first is not None
        coordinates = first.coordinates()
        assert (first["scaled"] == first["id"] * 3.0).all()
        assert (first["id"] == np.where(coordinates["shard"] == 2, 40, 0) + coordinates["row"]).all()
        document = stream.checkpoint()
        rest = rows_of(stream)
    assert sorted([*first["id"].tolist(), *(number for number, _ in rest)]) == list(range(63))
    assert all(scaled == 3.0 * number for number, scaled in rest)
    if source is Parquet:
        document.save(tmp_path / "c.json")
        assert trace(tmp_path / "c.json", first.batch_index) == coordinates.tolist()
        with pytest.raises(ConfigError, match="a document holds no code"):
            resume_batch_stream(document)
        with pytest.raises(ConfigError, match="is not what it was"):
            resume_batch_stream(document, chains={"source0": source(paths, columns=["id"]) >> Scale(4)})
        again = resume_batch_stream(document, chains={"source0": source(paths, columns=["id"]) >> Scale(3)})
        assert rows_of(again) == rest


def test_a_source_of_the_users_own_is_read_by_span(tmp_path: Path) -> None:
    """A node with `num_rows` needs no files: any rows of it, mixed with another chain by its weight."""
    config = config_of(Counting(9000).named("few").weighted(3) >> Scale(2), Counting(100) >> Scale(5), block_rows=256)
    with open_batch_stream(config) as stream:
        assert [source.name for source in stream.sources] == ["stage0/few", "stage0/source1"]
        batch = stream.next()
        assert batch is not None
        of_few = batch.coordinates()["source"] == 0
        assert (batch["scaled"] == batch["id"] * np.where(of_few, 2, 5)).all()
        key = batch.key
        stream.seek(0)
        again = stream.next()
        assert again is not None
        assert again.key == key
        coordinates = again.coordinates().tolist()
        stream.checkpoint().save(tmp_path / "c.json")
        assert trace(tmp_path / "c.json", again.batch_index) == coordinates
        numbers = [*again["id"].tolist(), *(number for number, _scaled in rows_of(stream))]
    assert sorted(numbers) == sorted([*range(9000), *range(100)])


def test_what_a_node_raises_arrives_with_its_own_type(shards) -> None:
    """The exception is of the node's class and of ours; it names node, shard and rows, and holds the traceback."""
    config = config_of(Parquet(shards["parquet"]).named("web") >> Scale() >> Failing(50).named("strict"))
    with (
        open_batch_stream(config) as stream,
        pytest.raises(NodeTrouble, match="node 'strict' raised NodeTrouble") as caught,
    ):
        for _batch in stream:
            pass
    error = caught.value
    assert isinstance(error, NodeError)
    assert (error.node, error.source, error.shard) == ("strict", "stage0/web", str(shards["parquet"][2]))
    assert error.row is not None
    assert "sample_nodes.py" in "".join(error.__notes__)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, NodeError)
    assert isinstance(again, NodeTrouble)


def test_rows_on_which_a_node_fails_may_be_replaced(shards, tmp_path: Path) -> None:
    """Under `on_bad_data` other rows stand in for those, and each of them is written down."""
    config = config_of(
        Parquet(shards["parquet"]) >> Scale() >> Failing(60),
        on_bad_data="replace",
        bad_data_budget=0.5,
        quarantine_file=str(tmp_path / "bad.jsonl"),
    )
    numbers = [number for number, _scaled in rows_of(open_batch_stream(config))]
    lacking = set(range(63)) - set(numbers)
    assert len(numbers) == 63
    assert {60, 61, 62} <= lacking <= set(range(50, 63))
    assert "node 'Failing' raised NodeTrouble" in (tmp_path / "bad.jsonl").read_text()


@pytest.mark.parametrize(
    ("build", "error", "told"),
    [
        (lambda paths: Parquet(paths) >> Watched(), SchemaError, "column 'scaled' is missing"),
        (lambda paths: Parquet(paths) >> Failing(0), NodeTrouble, "id 15 is too large"),
        (lambda paths: Parquet(paths) >> Dropping(), CorruptDataError, "answered 16 rows with 15"),
        (
            lambda paths: Parquet(paths) >> Leaving(),
            CorruptDataError,
            r"nodes on its first rows ends the process.*code 9",
        ),
        (lambda paths: Parquet(paths) >> Scale(threading.Lock()), ConfigError, "cannot tell what its 'factor' is"),
        (lambda paths: Scale().chain(), ConfigError, "begins with no source"),
    ],
)
def test_what_a_chain_cannot_give_is_refused_at_open(shards, build, error, told: str) -> None:
    """The nodes are run on a few rows before the first batch, so a mistake in them is told at once."""
    with pytest.raises(error, match=told):
        open_batch_stream(config_of(build(shards["parquet"])))


def test_keys_of_records_that_no_node_wants_may_hold_anything(tmp_path: Path) -> None:
    """Where nodes get all keys, one of two types is named with its record; `columns` leaves it out, and is checked."""
    records = [{"id": number, "odd": {"a": 1} if number < 9 else "text"} for number in range(30)]
    path = tmp_path / "a.jsonl.gz"
    record_writer.write_lines(path, b"\n".join(json.dumps(record).encode() for record in records))
    with pytest.raises(CorruptDataError, match=r"another type.*row 9, column 'odd'.*name the `columns`"):
        open_batch_stream(config_of(JsonLines([path]) >> Scale(2)))
    assert rows_of(open_batch_stream(config_of(JsonLines([path], columns=["id"]) >> Scale(2)))) != []
    with pytest.raises(SchemaError, match=r"no record has a key 'idd' \(did you mean 'id' or 'odd'\?\)"):
        open_batch_stream(config_of(JsonLines([path], columns=["idd"]) >> Scale(2)))


def test_results_are_kept_for_the_next_run(shards, tmp_path: Path) -> None:
    """What one stream kept another finds, whatever its blocks are; the rows are the same."""
    source = Parquet(shards["parquet"], columns=["id"]).frozen()
    runs = []
    for block_rows in (10, 17):
        with open_batch_stream(config_of(source >> Scale(3).cached(tmp_path), block_rows=block_rows)) as stream:
            rows = [number for batch in stream for number in batch["scaled"].tolist()]
            counts = [(figures["cache_hits"], figures["cache_misses"]) for figures in stream.stats()["sources"]]
        runs.append((rows, counts, {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}))
    (first, first_counts, kept), (second, second_counts, kept_then) = runs
    assert first == second
    assert kept == kept_then
    assert len(kept) == 3  # two shards that fit one result each, and the sample
    assert first_counts[0][1] >= 2
    assert second_counts[0][0] >= 2
    assert second_counts[0][1] == 0


def test_nodes_of_the_program_itself_run_in_workers(shards, tmp_path: Path) -> None:
    """A class of `__main__` travels with its code, a notebook's and a script's alike, without a guard."""
    script = tmp_path / "train.py"
    script.write_text(
        "from functools import cached_property\n"
        "import pyarrow.compute as pc\n"
        "from o41td import BatchStreamConfig, Node, Parquet, ProjectedField, Stage, open_batch_stream\n"
        "class Half(Node):\n"
        "    @cached_property\n"
        "    def two(self):\n"
        "        return 2.0\n"
        "    def forward(self, batch):\n"
        "        return batch.append_column('half', pc.divide(pc.cast(batch['id'], 'double'), self.two))\n"
        "config = BatchStreamConfig(fields=[ProjectedField(name='half', source='half', dtype='f64')],\n"
        f"    stages=[Stage(sources=[Parquet({list(map(str, shards['parquet']))}) >> Half()], batch_size=63)])\n"
        "with open_batch_stream(config) as stream:\n"
        "    print(sum(batch['half'].sum() for batch in stream))\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("976.5", "")  # the sum of 0 to 62 is 1953


def test_projecting_rows_gives_what_the_stream_gives(shards) -> None:
    """Serving sees the arrays that training saw: each row of a batch, read by its coordinates and projected alone."""
    fields = [*FIELDS, ProjectedField(name="tokens", source="tokens", dtype="i32", length=5, pad=-1)]
    chain = Parquet(shards["parquet"]) >> Scale(3)
    config = BatchStreamConfig(
        fields=fields, stages=[Stage(sources=[chain, Parquet(shards["parquet"]) >> Scale(7)], batch_size=16)]
    )
    first_rows = np.array([0, 40, 40])
    with open_batch_stream(config) as stream:
        for _ in range(3):
            batch = stream.next()
            assert batch is not None
            for place, (source, shard, row) in enumerate(batch.coordinates().tolist()):
                record = chain.nodes[0].forward(Span(int(first_rows[shard] + row), 1))
                alone = config.project(record, source=source)
                assert {name: value[0].tolist() for name, value in alone.items()} == {
                    name: batch[name][place].tolist() for name in batch
                }
    with pytest.raises(ConfigError, match="no source 2 in stage 0"):
        config.project(record, source=2)
