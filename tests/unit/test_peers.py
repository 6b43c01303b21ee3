"""What adapters of other loaders have in common: digests of rows, arrays out of lists, tables of figures."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peers.digest import SeenRows, mixed
from peers.field import PEERS
from peers.peer import Job
from peers.tables import Results, document_of, row_faults
from peers.workloads import Column, Workload, dense_columns, padded

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
SMALL = Workload(
    name="small",
    columns=(Column(name="tokens", dtype="int32", length=3), Column(name="doc_id", dtype="int64")),
    batch_size=4,
    part=2,
)


def rows(first: int, last: int) -> dict[str, np.ndarray]:
    """Rows of those ids, each with three tokens that follow from its id."""
    ids = np.arange(first, last)
    return {"tokens": (ids[:, None] * 3 + np.arange(3)).astype(np.int32), "doc_id": ids}


def record_of(*batches: dict[str, np.ndarray]) -> dict[str, object]:
    """What is told of some batches."""
    seen = SeenRows(SMALL)
    for batch in batches:
        seen.add(batch)
    return seen.to_record()


def by_hand(batch: dict[str, np.ndarray]) -> int:
    """The digest in Python's integers, value by value."""

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    def hashed(data: bytes) -> int:
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        return mix(sum(word * (mix(place + 1) | 1) for place, word in enumerate(words)) % 2**64)

    total = 0
    for tokens, row_id in zip(batch["tokens"].tolist(), batch["doc_id"].tolist(), strict=True):
        columns = [b"".join(token.to_bytes(4, "little") for token in tokens), row_id.to_bytes(8, "little")]
        total += mix(sum(mix((hashed(data) + number) % 2**64) for number, data in enumerate(columns)) % 2**64)
    return total % 2**64


def test_the_mixer_is_splitmix64s() -> None:
    """The first number of splitmix64 from seed 0, as published: its state is the golden ratio's fraction by then."""
    assert mixed(np.array([0x9E3779B97F4A7C15], np.uint64)).tolist() == [0xE220A8397B1DCDAF]


def test_a_digest_is_the_sum_of_hashes_of_rows() -> None:
    """Python's integers, which do not overflow, come to the same digest."""
    assert record_of(rows(5, 9)) == {"rows": 4, "distinct": 4, "digest": f"{by_hand(rows(5, 9)):016x}"}


def test_order_batches_and_dtypes_do_not_matter() -> None:
    """The same rows in another order, cut otherwise, as other dtypes that hold the values, have the same digest."""
    whole = record_of(rows(0, 10))
    order = np.random.default_rng(1).permutation(10)
    mixed_up = {name: array[order].astype(np.int64) for name, array in rows(0, 10).items()}
    assert record_of(mixed_up) == record_of(rows(4, 10), rows(0, 4)) == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: {name: array[1:] for name, array in batch.items()}, "1 of 10 rows lost"),
        (lambda batch: {name: array[[*range(10), 3, 3]] for name, array in batch.items()}, "2 repeated"),
        (lambda batch: batch | {"tokens": batch["tokens"][::-1]}, "values differ"),
        (lambda batch: batch | {"tokens": batch["tokens"][:, ::-1]}, "values differ"),
    ],
)
def test_rows_that_are_not_the_same_are_seen(change, said: str) -> None:
    """A lost row, a repeated one, rows whose values were exchanged and values in another order are told apart."""
    expected = record_of(rows(0, 10))
    assert row_faults({"seen": expected, "expected": expected}) == ""
    assert row_faults({"seen": record_of(change(rows(0, 10))), "expected": expected}) == said


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32())])
def test_lists_are_cut_and_padded(kind: pa.DataType) -> None:
    """Lists of four, one and no values as rows of three, also in a slice of a longer array."""
    lists = pa.array([[9], [1, 2, 3, 4], [5], []], kind)[1:]
    assert padded(lists, SMALL.columns[0]).tolist() == [[1, 2, 3], [5, 0, 0], [0, 0, 0]]


def test_lists_of_one_length_are_not_copied() -> None:
    """Lists of the wanted length, of either kind, are views into the values, slices too."""
    values = pa.array(np.arange(12, dtype=np.int32))
    same = pa.ListArray.from_arrays(pa.array([0, 3, 6, 9, 12], pa.int32()), values)[2:]
    fixed = pa.FixedSizeListArray.from_arrays(values, 3)[2:]
    for lists in (same, fixed):
        array = padded(lists, SMALL.columns[0])
        assert array.tolist() == [[6, 7, 8], [9, 10, 11]]
        assert np.shares_memory(array, values.to_numpy())


def test_a_table_of_chunks_becomes_arrays() -> None:
    """Columns in their order, in their dtypes, whatever chunks a table has."""
    table = pa.table({"doc_id": pa.chunked_array([[1], [2, 3]]), "tokens": [[1], [2, 2], [3, 3, 3]]})
    arrays = dense_columns(table, SMALL)
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "tokens": ("int32", [[1, 0, 0], [2, 2, 0], [3, 3, 3]]),
        "doc_id": ("int64", [1, 2, 3]),
    }


def test_every_peer_has_what_opens_it() -> None:
    """Each adapter defines the function that its peer names, and `convert` where there is a format of its own."""
    for name, peer in PEERS.items():
        source = (SCRIPTS / "peers" / "adapters" / f"{peer.module}.py").read_text()
        defined = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert {peer.opens, *(["convert"] if peer.converts else [])} <= defined, name


def test_tables_tell_medians_cuts_faults_and_refusals() -> None:
    """Of three passes the median, a star where one was cut, what was refused and why, and rows that were lost."""
    results = Results(limit_s=6.0, rounds=3, versions={"torch": "2.0", "o41td": "1.0"})
    results.floors["tokens"] = [{"rows_per_s": 100, "cpu_s": 2.0, "rows": 1000} for _ in range(3)]
    of_pass = {"cpu_s": 3.0, "rows": 1000, "first_batch_s": 1.25, "whole": True}
    results.times["o41td", "tokens"] = [of_pass | {"rows_per_s": r, "of_floor": r / 100} for r in (90, 70, 80)]
    results.times["torch-here", "tokens"] = [of_pass | {"rows_per_s": 20.0, "of_floor": 0.2, "whole": False}]
    results.failures["ray", "tokens"] = "time: ImportError: no `ray`"
    expected = {"rows": 1000, "distinct": 1000, "digest": "a"}
    results.checks["o41td", "tokens"] = {"seen": expected, "expected": expected}
    results.checks["torch-here", "tokens"] = {
        "seen": {"rows": 990, "distinct": 980, "digest": "b"},
        "expected": expected,
    }
    results.resumes["o41td"] = {"begin_s": 1.0, "resume_s": 1.06, "state_bytes": 1234, "lost": 0, "repeated": 0}
    lines = document_of(results, ["torch-here", "o41td", "ray"]).splitlines()
    assert "o41td 1.0, torch 2.0" in lines[0]
    table = [line for line in lines if line.startswith("|")]
    assert table[2].startswith("| bare pyarrow, 2 processes: the floor | 100 (1.00) [200] |")
    assert table[3] == "| **o41td**, 2 workers | 80 (0.80) [300] | 1.2 | yes |"
    assert table[4].endswith("| 20* (0.20) [300] | 1.2 | tokens: 20 of 1,000 rows lost, 10 repeated |")
    assert table[5] == "| Ray Data, 2 CPUs, local shuffle | refused | – | not compared |"
    assert "- Ray Data, 2 CPUs, local shuffle, tokens: `time: ImportError: no ray`" in lines
    assert table[-1] == "| o41td, 2 workers | 1.0 | 1.1 | 1,234 | each once |"


@pytest.mark.usefixtures("torch")
def test_loaders_by_hand_give_each_row_once(tmp_path: Path) -> None:
    """Batches of windows and rows out of a buffer, as a DataLoader is given them, are each row of shards once."""
    pytest.importorskip("torchdata")
    from peers.adapters import torch_by_hand

    files = []
    for shard in range(2):
        files.append(str(tmp_path / f"{shard}.parquet"))
        columns = rows(shard * 40, shard * 40 + 40)
        table = pa.table({"tokens": columns["tokens"].tolist(), "doc_id": columns["doc_id"]})
        pq.write_table(table, files[-1], row_group_size=16)
    job = Job(workload=SMALL, files=files, folder=tmp_path)
    singles = [{name: value[None] for name, value in row.items()} for row in torch_by_hand.ShuffledRows(job)]
    assert record_of(*torch_by_hand.open_windows_here(job)) == record_of(*singles) == record_of(rows(0, 80))
