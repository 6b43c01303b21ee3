"""What stands under examples/ runs, and says what it ought to."""

from __future__ import annotations

import re
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from c_programs import compiled
from forked_runs import Program, forked_runs
from golden_server import golden_server
from o41td import BatchStreamConfig, Checkpoint, FileSource, ProjectedField, Shuffle, Stage

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


LINES = {
    "add_column": ["[0.91, 0.986]", "{'rate': array([0.75], dtype=float32)}"],
    "decode_images": ["(64, 8, 8) int32"],
    # 1000 texts: the 1, cat 2, number and its value 0, sat 3, on 4, the 1, mat 5, and 8 pads of -1
    "tokenize_text": [str(1000 * (1 + 2 + 0 + 0 + 3 + 4 + 1 + 5 - 8))] * 2,
    # Shards of 200 rows, batches of 20, rows 20 to 79 of the fourth are bad: batches 31, 32 and 33.
    "loss_spike": [
        "batch 31: rows 20 to 39 of {'part-3.parquet': 20}",
        "batch 32: rows 40 to 59 of {'part-3.parquet': 20}",
        "batch 33: rows 60 to 79 of {'part-3.parquet': 20}",
        "spikes of the second run: []",
        "batches passed over: 3",
        "[1.0, 2.0, 3.0]",  # the rule that made the labels
    ],
    "serve_model": [
        "True",
        (
            "the value 1099511627776 does not fit i32, which holds -2147483648 to 2147483647 "
            "(source 'stage0/source0', row 0, column 'age')."
        ),
    ],
}
"""What each prints."""

Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Ended]:
    """Runs of the examples, as forks of one process."""
    programs = {name: Program([str(EXAMPLES / f"{name}.py")]) for name in [*LINES, "curriculum"]}
    if find_spec("matplotlib"):
        programs["shortcut"] = Program([str(EXAMPLES / "shortcut.py"), "shares.png"])
    imports = ["pyarrow.compute", "pyarrow.parquet", "o41td.opening", "o41td.stream", "o41td.nodes"]
    return dict(zip(programs, forked_runs(imports, list(programs.values()), folder)))


@pytest.mark.parametrize("name", LINES)
def test_an_example_runs(name: str, runs: dict[str, Ended]) -> None:
    """An example ends well, prints what follows from the rows it wrote, and complains of nothing."""
    done = runs[name]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, LINES[name], "")


def test_the_planted_shortcut_is_found(runs: dict[str, Ended], folder: Path) -> None:
    """The model that looks at the hospital alone is told, and drawn."""
    pytest.importorskip("matplotlib")
    done = runs["shortcut"]
    assert "SOLE_RELIANCE(hospital)\n" in done.stdout
    assert "IGNORED_INPUT(shoe_size)\n" in done.stdout
    assert (folder / "shares.png").stat().st_size > 1000


@pytest.fixture(scope="module")
def c_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train.c` as a program."""
    return compiled(EXAMPLES / "c" / "train.c", tmp_path_factory.mktemp("c"), "-O2")


def test_the_c_example_fits_a_line_and_goes_on_from_its_checkpoint(c_example: Path, tmp_path: Path, serve) -> None:
    """Over 3200 rows of y = 2a - b + 0.5 one run ends with the stage, the next at once; a folder is no checkpoint."""
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

    def train(checkpoint: str) -> subprocess.CompletedProcess[str]:
        command = [c_example, served.name, "0", checkpoint]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    runs = [train("line.ckpt") for _ in range(2)]
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 2
    (first, first_digest), (second, second_digest) = (run.stdout.splitlines() for run in runs)
    assert first == "200 steps, loss 0.000000, bias 0.500, weights 2.000 -1.000"
    assert second == "0 steps, loss 0.000000, bias 0.000, weights 0.000 0.000"
    checkpoint = Checkpoint.load(tmp_path / "line.ckpt")
    assert (checkpoint.cursor, checkpoint.rows_yielded) == (((0, 200),), 3200)
    assert [first_digest, second_digest] == [f"order digest {checkpoint.order_digest:016x}"] * 2
    unreadable = train(".")
    assert (unreadable.returncode, unreadable.stdout, unreadable.stderr) == (1, "", ".: Is a directory\n")


def test_the_c_example_ends_well_on_sigterm_before_it_is_in(c_example: Path, tmp_path: Path) -> None:
    """The loader has not answered yet: there is nothing to save, and nothing to complain of."""
    with golden_server() as server:
        command = [str(c_example), server.name, "1", "none.ckpt"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        server.accept()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_curriculum_advances_when_a_stage_is_learnt(runs: dict[str, Ended]) -> None:
    """Each stage is left when its loss is low, and what is learnt is how the sums were made: place i counts i times."""
    done = runs["curriculum"]
    easy, hard, weights = done.stdout.splitlines()
    assert done.stderr == ""
    left = [
        int(re.fullmatch(rf"{name}: learnt after batch (\d+)", line)[1])
        for name, line in (("easy", easy), ("hard", hard))
    ]
    assert 10 <= left[0] < left[1]
    assert [float(weight) for weight in weights.strip("[]").split(", ")] == pytest.approx(range(1, 9), abs=0.5)
