"""What stands under examples/ runs, and says what it ought to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from c_programs import compiled
from o41td import BatchStreamConfig, Checkpoint, FileSource, ProjectedField, Shuffle, Stage

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("add_column", ["[0.91, 0.986]", "{'rate': array([0.75], dtype=float32)}"]),
        ("decode_images", ["(64, 8, 8) int32"]),
        # 1000 texts: the 1, cat 2, number and its value 0, sat 3, on 4, the 1, mat 5, and 8 pads of -1
        ("tokenize_text", [str(1000 * (1 + 2 + 0 + 0 + 3 + 4 + 1 + 5 - 8))] * 2),
    ],
)
def test_an_example_runs(name: str, lines: list[str], tmp_path: Path) -> None:
    """An example ends well, prints what follows from the rows it wrote, and complains of nothing."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.splitlines(), done.stderr) == (lines, "")


def test_the_planted_shortcut_is_found(tmp_path: Path) -> None:
    """The model that looks at the hospital alone is told, and drawn."""
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shortcut.py", "shares.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "SOLE_RELIANCE(hospital)\n" in done.stdout
    assert "IGNORED_INPUT(shoe_size)\n" in done.stdout
    assert (tmp_path / "shares.png").stat().st_size > 1000


def test_the_c_example_fits_a_line_and_goes_on_from_its_checkpoint(tmp_path: Path, serve) -> None:
    """Two runs over 3200 rows of y = 2a - b + 0.5: the first ends at the end of the stage, and the second at once."""
    inputs = np.random.default_rng(1).uniform(-1, 1, (3200, 2)).astype(np.float32)
    shard = {"x": list(inputs), "y": 2 * inputs[:, 0] - inputs[:, 1] + np.float32(0.5)}
    pq.write_table(pa.table(shard), tmp_path / "line.parquet")
    config = BatchStreamConfig(
        fields=[ProjectedField(name="y", dtype="f32"), ProjectedField(name="x", dtype="f32", length=2)],
        stages=[
            Stage(
                sources=[FileSource(files=[str(tmp_path / "*.parquet")])],
                batch_size=16,
                shuffle=Shuffle(buffer_rows=800),
            )
        ],
        threads=1,
    )
    served = serve(config, "--ranks", "1")
    train = [compiled(EXAMPLES / "c" / "train.c", tmp_path, "-O2"), served.name, "0", "line.ckpt"]
    runs = [subprocess.run(train, cwd=tmp_path, capture_output=True, text=True, timeout=60) for _ in range(2)]
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 2
    (first, first_digest), (second, second_digest) = (run.stdout.splitlines() for run in runs)
    assert first == "200 steps, loss 0.000000, bias 0.500, weights 2.000 -1.000"
    assert second == "0 steps, loss 0.000000, bias 0.000, weights 0.000 0.000"
    checkpoint = Checkpoint.load(tmp_path / "line.ckpt")
    assert (checkpoint.cursor, checkpoint.rows_yielded) == (((0, 200),), 3200)
    assert [first_digest, second_digest] == [f"order digest {checkpoint.order_digest:016x}"] * 2
