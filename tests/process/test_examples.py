"""What stands under examples/ runs, and says what it ought to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
