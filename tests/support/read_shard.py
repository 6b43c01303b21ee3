"""One shard read whole through footer, reader and projector: in this process, or as a script in one of its own."""

import json
import sys
from pathlib import Path

import numpy as np

from o41td.errors import O41Error
from o41td.fields import FieldPlan
from o41td.workers.footer import read_footer
from o41td.workers.parquet import ShardReader


def read_shard(
    path: str | Path, fields: list[FieldPlan], *, block_rows: int = 10**9, **reader_options
) -> dict[str, np.ndarray]:
    """Every row of every field, each row group in slices of `block_rows`."""
    path = str(path)
    footer = read_footer(None, path, fields, source="s")
    out = {field.name: np.zeros((footer.num_rows, *field.shape), field.numpy_dtype) for field in fields}
    reader = ShardReader(
        path, fields, source="s", size_bytes=footer.size_bytes, mtime_ns=footer.mtime_ns, **reader_options
    )
    first = 0
    for group, num_rows in enumerate(footer.rows.tolist()):
        for start in range(0, num_rows, block_rows):
            stop = min(start + block_rows, num_rows)
            decoding_bytes = int(footer.decoding_bytes[group])
            table = reader.read_rows(group, start, stop, group_rows=num_rows, decoding_bytes=decoding_bytes)
            slot = {name: values[first + start : first + stop] for name, values in out.items()}
            place = {"row_offset_in_shard": first + start, "row_group": group, "shard": path, "source": "s"}
            reader.projector.write(table, slot, **place)
        first += num_rows
    reader.close()
    return out


def answer_of(path: str | Path, fields: list[FieldPlan]) -> dict[str, object]:
    """`{"rows": {name: values}}`, or `{"error": class, "text": message}`."""
    try:
        return {"rows": {name: values.tolist() for name, values in read_shard(path, fields).items()}}
    except O41Error as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps(answer_of(sys.argv[1], [FieldPlan.from_record(record) for record in json.loads(sys.argv[2])])))
