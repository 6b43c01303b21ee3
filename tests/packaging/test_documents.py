"""The README and docs say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import o41td

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_example_runs_from_standard_input(tmp_path: Path) -> None:
    """The Python block, piped into Python beside shards with `input_ids`, streams them and leaves a checkpoint."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"input_ids": [[i] for i in range(70)]}), tmp_path / "data" / "a.parquet")
    done = subprocess.run(
        [sys.executable, "-"], input=example, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    checkpoint = o41td.Checkpoint.load(tmp_path / "ckpt.json")
    assert checkpoint.batches_yielded == 3  # 32 + 32 + 6 rows
    assert checkpoint.rows_yielded == 70


def test_the_docs_config_example_is_a_config(tmp_path: Path) -> None:
    """The TOML block of docs/config.md loads, with the stages and fields it shows."""
    (example,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "config.md").read_text(), flags=re.DOTALL)
    (tmp_path / "example.toml").write_text(example)
    config = o41td.BatchStreamConfig.load(tmp_path / "example.toml")
    assert config.stage_names == ("warm-up", "mix")
    assert [source.weight for source in config.stages[1].sources] == [3.0, 1.0]
    assert config.fields[0].length == 2048


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link names a file of the repository, and its anchor a heading there."""
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), f"{document.name} -> {target}"


def test_the_defaults_in_the_docs_are_the_configs() -> None:
    """The table of docs/config.md and the model agree on the numbers."""
    table = (ROOT / "docs" / "config.md").read_text()
    for key in ("seed", "threads", "lookahead", "prefetch_batches"):
        default = o41td.BatchStreamConfig.model_fields[key].default
        assert f"| `{key}` | {default} |" in table
    assert o41td.BatchStreamConfig.model_fields["max_row_group_bytes"].default == 64 * 2**20
    assert o41td.BatchStreamConfig.model_fields["stall_timeout_s"].default == 120


def test_the_tables_of_the_projection_are_what_it_does() -> None:
    """docs/projection.md is as scripts/projection would write it."""
    script = [sys.executable, "-P", str(ROOT / "scripts" / "projection.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
