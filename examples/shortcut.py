"""A planted shortcut, found: a model that seems to read a lung looks at which hospital the picture came from.

    python examples/shortcut.py shares.png

Of the training pictures of the sick 95 of 100 come from one hospital, and as many of the well from the other. A
logistic regression is trained on what is seen, on age, on the hospital, and on the shoe size. It does well;
`contribution` says by what.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from o41td import (
    BatchStreamConfig,
    Parquet,
    ProjectedField,
    Shuffle,
    Stage,
    contribution,
    findings,
    open_batch_stream,
    plot_shares,
    shares,
)

INPUTS = ("opacity", "age", "hospital", "shoe_size")


def write_patients(path: str, num_rows: int = 8000) -> None:
    """Patients whose hospital says more of their diagnosis than their picture does."""
    rng = np.random.default_rng(7)
    sick = rng.random(num_rows) < 0.5
    columns = {
        "opacity": sick * 0.9 + rng.standard_normal(num_rows),
        "age": sick * 0.5 + rng.standard_normal(num_rows),
        "hospital": (rng.random(num_rows) < np.where(sick, 0.95, 0.05)) * 2.0 - 1.0,
        "shoe_size": rng.standard_normal(num_rows),
        "sick": sick.astype(np.float64),
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)


def inputs_of(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The inputs side by side, and a constant: [rows, 5]."""
    return np.stack([*(arrays[name] for name in INPUTS), np.ones(len(arrays["age"]))], axis=1)


def main(picture: str) -> None:
    """Trains, asks, tells and draws."""
    with tempfile.TemporaryDirectory() as folder:
        write_patients(f"{folder}/patients.parquet")
        config = BatchStreamConfig(
            fields=[ProjectedField(name=name, source=name, dtype="f64") for name in (*INPUTS, "sick")],
            stages=[
                Stage(
                    sources=[Parquet(f"{folder}/patients.parquet").named("patients")],
                    batch_size=250,
                    shuffle=Shuffle(buffer_rows=2000),
                )
            ],
        )
        weights = np.zeros(len(INPUTS) + 1)

        def forward(arrays: dict[str, np.ndarray]) -> np.ndarray:
            return 1 / (1 + np.exp(-inputs_of(arrays) @ weights))

        def likelihood(predictions: np.ndarray, target: np.ndarray) -> float:
            return float(np.mean(np.log(np.where(target > 0.5, predictions, 1 - predictions))))

        with open_batch_stream(config) as stream:
            for batch in stream:
                error = forward(batch.arrays()) - batch["sick"]
                weights -= 1.0 * inputs_of(batch.arrays()).T @ error / batch.num_rows
            stream.seek(0)
            found = contribution(forward, stream, likelihood, target="sick", repeats=5)

    print(f"log likelihood {found.score:.3f} on {found.num_rows} rows")
    for name, share in shares(found).items():
        print(f"{name:10} {found.worth[name]:+.3f}  {share:6.1%}")
    print(*findings(found), sep="\n")
    plot_shares(found, picture)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "shares.png")
