"""Writes the tables of docs/projection.md by projecting values of every Arrow type and looking at what comes out.

The values, and what each is as an exact number, are those of the projection's own tests: tests/support.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from o41td.errors import SchemaError
from o41td.projection import plan_projection
from o41td.workers.project import Projector

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "projection.md"
BEGIN, END = "<!-- begin: scripts/projection -->", "<!-- end: scripts/projection -->"

sys.path.insert(0, str(ROOT / "tests" / "support"))
from projection_matrix import DTYPES, FORMS, LEAVES, NO_NUMBERS, Leaf, field_of  # noqa: E402 - the path is set above


def cell_of(leaf: Leaf, dtype: str) -> str:
    """What becomes of a type's values in a dtype, in the words of the table."""
    field = field_of(dtype)
    table = pa.table({"c": leaf.array})
    try:
        plan = plan_projection(table.schema, [field])
    except SchemaError:
        return "—"
    out = np.zeros(len(leaf.array), field.numpy_dtype)
    refused = Projector(plan).write_fitting(table, {"c": out})
    bad = set() if refused is None else set(refused.rows.tolist())
    pairs = [(out[row].item(), number) for row, number in enumerate(leaf.numbers) if row not in bad]
    is_exact = all(number is None or got == number or number != number for got, number in pairs)  # noqa: PLR0124 - NaN
    return f"{'exact' if is_exact else 'nearest'}{' or refused' if bad else ''}"


def types_table() -> Iterator[str]:
    """The types that are read; neighbours that fare alike share a row."""
    yield "| Arrow type | " + " | ".join(f"`{dtype}`" for dtype in DTYPES) + " |"
    yield "|---" * (1 + len(DTYPES)) + "|"
    rows = [(leaf.name, [cell_of(leaf, dtype) for dtype in DTYPES]) for leaf in LEAVES]
    for cells, group in groupby(rows, key=lambda row: row[1]):
        yield f"| {', '.join(f'`{name}`' for name, _cells in group)} | {' | '.join(cells)} |"


def refusals_table() -> Iterator[str]:
    """The types that are not, and what the error says."""
    yield "| column | refused at open as |"
    yield "|---|---|"
    for name, array in NO_NUMBERS.items():
        yield f"| {name} | {refusal_of(array.type)} |"


def refusal_of(arrow_type: Any) -> str:
    """What the error says of a type."""
    try:
        plan_projection(pa.schema([("c", arrow_type)]), [field_of("i64")])
    except SchemaError as error:
        said = str(error).partition(f"has type {arrow_type}, ")[2]
        return said.partition(". Accepted are")[0]
    raise SystemExit(f"{arrow_type} is accepted")


def tables() -> Sequence[str]:
    """Everything between the marks."""
    forms = ", ".join(form for form in FORMS if form not in ("plain", "sliced"))
    return [*types_table(), "", f"Each of them also as: {forms}.", "", *refusals_table()]


def main() -> int:
    """Writes the document, or compares it."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    after = rest.split(END)[1]
    text = "\n".join([f"{before}{BEGIN}", *tables(), f"{END}{after}"])
    if "--check" not in sys.argv:
        DOCUMENT.write_text(text)
        return 0
    if text != DOCUMENT.read_text():
        print("docs/projection.md is stale: run scripts/projection")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
