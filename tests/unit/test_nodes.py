from __future__ import annotations

import pickle
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from o41td.errors import ChangedDataError, ConfigError, CorruptDataError
from o41td.nodes import Node, NodeStore, Span
from o41td.shard_node import Parquet
from sample_nodes import Counting, Dropping, Failing, NodeTrouble, Scale, Watched


def test_a_chain_runs_a_span_through_all_its_nodes() -> None:
    """The rows of a span are what the source answers, seen by each node in turn."""
    rows = (Counting() >> Scale(3)).forward(Span(4, 3))
    assert rows.to_pydict() == {"id": [4, 5, 6], "scaled": [12, 15, 18]}


def test_rows_that_are_handed_in_run_through_the_same_nodes() -> None:
    """A record out of a queue gives what the same record of the source gives, without the source."""
    source = Counting()
    record = pa.RecordBatch.from_pydict({"id": pa.array([5], pa.int64())})
    chain = source >> Scale(3) >> Watched()
    assert chain.forward(record).equals(chain.forward(Span(5, 1)))
    assert source.asked == [Span(5, 1)]


def test_settings_leave_the_node_they_are_said_of_alone() -> None:
    """A name, a weight or a store is said of a copy."""
    node = Counting()
    chain = (node.named("rows").weighted(3) >> Scale().named("scale")).weighted(2)
    assert (node.label, chain.name, chain.weight) == ("Counting", "rows", 2.0)
    assert chain.named("other").name == "other"
    assert [item.label for item in chain.nodes] == ["rows", "scale"]


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Scale() >> Counting(), "stands behind"),
        (lambda: Counting() >> "text", "no Node"),  # type: ignore[operator]
        (lambda: Counting() >> Scale, r"the class Scale, and not with a node of it. Call it: Scale\(…\)"),  # type: ignore[operator]
        (lambda: Parquet("s3://bucket/a.parquet").num_rows, "is remote"),
        (lambda: Parquet([]), "no files"),
        (lambda: Counting().weighted(0), "above 0"),
        (lambda: Counting().named(""), "name"),
        (lambda: Span(-1, 3), "`at`"),
        (lambda: Span(0, 1.5), "`take`"),  # type: ignore[arg-type]
        (lambda: Span(True, 1), "`at`"),
        (lambda: (Scale() >> Scale()).forward(Span(0, 1)), "no source"),
        (lambda: Counting(version=None).key(Span(0, 1)), "no version"),
        (lambda: Counting(version=None).frozen().chain().forward(Span(0, 1)), "no version"),
        (lambda: (Counting() >> Scale().cached("x")).forward(Span(0, 1)), "kept by place"),
    ],
)
def test_what_makes_no_sense_is_refused(build, told: str) -> None:
    """A chain, a setting or a span that cannot be meant is a ConfigError that says why."""
    with pytest.raises(ConfigError, match=told):
        build()


@pytest.mark.parametrize("span_or_rows", [Span(0, 4), pa.RecordBatch.from_pydict({"id": pa.array([0, 1, 2, 3])})])
def test_a_node_that_loses_rows_is_refused(span_or_rows) -> None:
    """As many rows come out as go in, or an error names the node and both counts."""
    with pytest.raises(CorruptDataError, match=r"'Dropping' answered 4 rows with 3"):
        (Counting() >> Dropping()).forward(span_or_rows)


def test_a_source_that_answers_other_rows_is_refused() -> None:
    """A span of 10 rows is answered with 10."""

    class Short(Counting):
        def forward(self, batch: Span) -> pa.Table:
            return super().forward(Span(batch.at, batch.take - 1))

    with pytest.raises(CorruptDataError, match="answered 10 rows with 9"):
        Short().chain().forward(Span(0, 10))


def test_what_a_node_raises_keeps_its_type_and_names_the_node() -> None:
    """The node's own exception arrives, with a note of where it came from."""
    with pytest.raises(NodeTrouble, match="id 9") as caught:
        (Counting() >> Failing(8).named("strict")).forward(Span(0, 10))
    assert caught.value.__notes__ == ["raised by node 'strict' for rows [0, 10)"]


# ---- fingerprints, versions, keys ----------------------------------------------------------------------------------


def test_a_fingerprint_tells_class_text_and_parameters() -> None:
    """Other parameters, other code under the same name, or another revision give another fingerprint."""

    def made(factor: object, body: str, revision: int = 0) -> str:
        scope: dict[str, type] = {}
        text = f"class Made(Node):\n revision = {revision}\n def forward(self, batch):\n  return {body}\n"
        exec(text, {"Node": Node, "__name__": "made"}, scope)
        node = scope["Made"]()
        node.factor = factor
        return node.fingerprint()

    different = [
        made(2, "batch"), made(2.0, "batch"), made("2", "batch"), made([2], "batch"), made((2,), "batch"),
        made({"a": 2}, "batch"), made(np.array([2]), "batch"), made(np.array([2], np.int8), "batch"),
        made(None, "batch"), made(2, "batch.slice(0)"), made(2, "batch", 1), made(b"2", "batch"),
        made(lambda x: x, "batch"), made(lambda x: x + 1, "batch"),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert made({"a": 1, "b": {3, 4}}, "batch") == made({"b": {4, 3}, "a": 1}, "batch")


def test_what_a_node_keeps_for_itself_is_no_parameter() -> None:
    """What a cached property keeps changes no fingerprint and is not pickled."""

    class Lazy(Node):
        def __init__(self) -> None:
            self.path = "model"

        @cached_property
        def handle(self) -> object:
            return open("/dev/null")

    node = Lazy()
    before = node.fingerprint()
    node.handle.close()  # type: ignore[attr-defined]
    assert node.fingerprint() == before
    assert list(node.parameters()) == ["path"]
    assert "handle" not in node.__getstate__()


def test_a_key_tells_source_nodes_and_span() -> None:
    """Keys differ wherever version, parameters, nodes or span do, and are the same in another process's copy."""
    span = Span(0, 32)
    chains = [
        Counting() >> Scale(2),
        Counting(version="v2") >> Scale(2),
        Counting(99) >> Scale(2),
        Counting() >> Scale(3),
        Counting() >> Scale(2) >> Scale(2),
        Counting().chain(),
    ]
    keys = [chain.key(span) for chain in chains] + [chains[0].key(Span(0, 31)), chains[0].key(Span(1, 32))]
    assert len(set(keys)) == len(keys)
    again = pickle.loads(pickle.dumps(chains[0].named("other").weighted(7)))
    assert again.key(span) == keys[0]


def test_a_frozen_source_that_changed_is_refused() -> None:
    """A frozen source is read only while it has the version it was frozen to."""
    source = Counting().frozen()
    chain = source >> Scale()
    chain.forward(Span(0, 1))
    source.stated = "v2"
    with pytest.raises(ChangedDataError, match="frozen to version v1 and has version v2"):
        chain.forward(Span(0, 1))
    with pytest.raises(ChangedDataError, match="v0"):
        Counting().frozen("v0").key(Span(0, 1))


# ---- stores --------------------------------------------------------------------------------------------------------


def test_cached_results_are_found_by_place(tmp_path: Path) -> None:
    """The second run of a span asks neither the node nor the source; another span asks both."""
    source, node = Counting().frozen(), Watched().cached(tmp_path)
    chain = source >> node
    first = chain.forward(Span(2, 5))
    again = (source >> Watched().cached(tmp_path)).forward(Span(2, 5))
    assert again.equals(first)
    assert (source.asked, node.calls) == ([Span(2, 5)], [5])
    chain.forward(Span(2, 6))
    assert node.calls == [5, 6]
    store = node.settings.store
    assert store is not None
    assert (store.hits, store.misses) == (0, 2)


def test_mapped_results_are_found_by_content(tmp_path: Path) -> None:
    """Rows that are repeated or come in another order are computed once, whatever span they come in."""
    node = Watched().mapped(tmp_path)
    chain = Counting(version=None) >> node
    assert chain.forward(Span(0, 4)).to_pydict()["seen"] == ["0", "1", "2", "3"]
    rows = pa.RecordBatch.from_pydict({"id": pa.array([3, 9, 1, 9, 0], pa.int64())})
    assert chain.forward(rows).to_pydict() == {"id": [3, 9, 1, 9, 0], "seen": ["3", "9", "1", "9", "0"]}
    assert node.calls == [4, 1]
    assert chain.forward(rows.slice(0, 0)).schema.names == ["id", "seen"]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: b"", lambda data: data[:40] + b"\0" + data[41:], lambda data: b"x" + data],
)
def test_a_damaged_result_is_computed_again(tmp_path: Path, damage) -> None:
    """Whatever is wrong with a kept file, the rows are right, and the file is written anew."""
    chain = Counting().frozen() >> Scale().cached(tmp_path)
    expected = chain.forward(Span(0, 50))
    (file,) = tmp_path.rglob("*.arrow")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert chain.forward(Span(0, 50)).equals(expected)
    assert file.read_bytes() == whole
    assert not list(tmp_path.rglob("*.partial"))


def test_a_result_under_another_key_is_none(tmp_path: Path) -> None:
    """A file that was copied to another key's name is not taken for that key's result."""
    store = NodeStore(tmp_path)
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    store.put("aa11", rows)
    (tmp_path / "aa" / "aa11.arrow").rename(tmp_path / "aa" / "aa22.arrow")
    assert store.get("aa22") is None
    assert store.get("aa11") is None


def test_a_store_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    """The rows come; the store says why it keeps none."""
    (tmp_path / "file").write_text("")
    node = Scale().cached(tmp_path / "file" / "store")
    assert (Counting().frozen() >> node).forward(Span(0, 3)).num_rows == 3
    assert node.settings.store is not None
    assert "Not a directory" in str(node.settings.store.failure)


def test_a_store_may_be_any_url_that_fsspec_knows() -> None:
    """A second store of the same URL finds what the first kept."""
    rows = pa.RecordBatch.from_pydict({"id": [1, 2]})
    NodeStore("memory://nodes-test").put("ab12", rows)
    assert NodeStore("memory://nodes-test/").get("ab12").equals(rows)


def test_naming_a_span_touches_no_row() -> None:
    """A key for 10^12 rows costs what one for a single row does: it is told without asking the source."""
    source = Counting(num_rows=10**13)
    chain = source >> Scale()
    keys = {chain.key(Span(at, 10**12)) for at in range(1000)}
    assert len(keys) == 1000
    assert source.asked == []
