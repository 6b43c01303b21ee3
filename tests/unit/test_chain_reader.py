from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from o41td import ProjectedField
from o41td.nodes import Chain
from o41td.nodes.parcel import packed
from o41td.workers.chain_reader import ChainReader
from o41td.workers.piece import Piece
from sample_nodes import Counting, Scale

MIB = 1 << 20


def piece_of(decoding_bytes: int) -> Piece:
    """A unit of 4000 rows of a source without shards, the first of which is row 8192."""
    return Piece(0, "node:Counting", 0, 0, None, 1, 4000, decoding_bytes, 8192, 0, 4000, 0, "v1")


def rows_of(chain: Chain, piece: Piece, start: int, stop: int) -> list[int]:
    """The ids that come at once of rows of a piece, where units of more than 64 MiB are large."""

    def nothing(_start: int, _stop: int) -> pa.Table:
        raise AssertionError("a source of its own is not read from a shard")

    fields = [ProjectedField(name="id", source="id", dtype="i64").plan()]
    reader = ChainReader(packed(chain), fields, source="s", encoding="node", max_row_group_bytes=64 * MIB)
    ids: list[int] = reader.rows(piece, start, stop, nothing).parts[0][1][0]["id"].to_pylist()
    return ids


@pytest.mark.parametrize(
    ("decoding_bytes", "num_rows"),
    [
        (64 * MIB, 3990),  # small enough: all that were asked for
        (80 * MIB, 400),  # 8 MiB at once, of 4000 rows in 80 MiB
        (64_000 * MIB, 1),  # a row of 16 MiB: one by one
    ],
)
def test_large_rows_are_run_a_few_at_a_time(decoding_bytes: int, num_rows: int) -> None:
    """Nodes get no more rows at once than take 8 MiB, where the unit is too large to be run whole."""
    ids = rows_of(Counting(20000) >> Scale(), piece_of(decoding_bytes), 10, 4000)
    assert ids == list(range(8202, 8202 + num_rows))


@pytest.mark.parametrize(("decoding_bytes", "grid"), [(MIB, 1024), (80 * MIB, 256)])
def test_results_are_kept_in_runs_that_do_not_depend_on_blocks(tmp_path: Path, decoding_bytes: int, grid: int) -> None:
    """Rows asked for within a run keep the whole run; those behind it come with the next."""
    chain = Counting(20000).frozen() >> Scale().cached(tmp_path)
    piece = piece_of(decoding_bytes)
    assert rows_of(chain, piece, 300, 2000) == list(range(8492, 8192 + (300 // grid + 1) * grid))
    (kept,) = tmp_path.rglob("*.arrow")
    assert rows_of(chain, piece, 300 // grid * grid, 301) == list(range(8192 + 300 // grid * grid, 8493))
    assert list(tmp_path.rglob("*.arrow")) == [kept]
    assert rows_of(chain, piece, 3990, 4000) == list(range(12182, 12192))
    assert len(list(tmp_path.rglob("*.arrow"))) == 2
