"""The README and docs say what is there."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import o41td

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


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
    """Every relative link names a file of the repository, and its anchor a heading of that page."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(document)):
        if target.startswith(("http://", "https://")):
            continue
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name} -> {target}"
        assert not anchor or anchor in anchors_of(path), f"{document.name} -> {target}#{anchor}"


def test_every_page_is_in_the_menu_and_reached_from_the_first() -> None:
    """The site's menu lists every page, and index.md links to each, so that none is lost on either way of reading."""
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    menu = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert pages <= menu
    assert pages <= set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))


def test_the_api_page_has_every_public_name() -> None:
    """Each name of `o41td.__all__` is on the page, by the module that it is defined in."""
    told = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    objects = [getattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in told]
    missing = [name for name in o41td.__all__ if name != "__version__" and getattr(o41td, name) not in objects]
    assert missing == []


def test_tuning_says_what_to_do_about_every_verdict() -> None:
    """Each verdict that docs/observing.md lists is in the first column of a table of docs/tuning.md."""
    rows = re.findall(r"^\| `\w+` \| ([^|]+) \|", section_of("observing.md", "### The verdict"), flags=re.MULTILINE)
    verdicts = set(rows) - {"verdict"}  # the table's head
    told = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "tuning.md").read_text(), flags=re.MULTILINE)
    assert len(verdicts) >= 8
    assert verdicts <= set(told)


def section_of(page: str, heading: str) -> str:
    """A section of a page of docs/, to its next heading."""
    rest = (ROOT / "docs" / page).read_text().partition(f"\n{heading}\n")[2]
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    """docs/cli.md is as `scripts/docs write` would write it."""
    script = [sys.executable, "-P", str(ROOT / "scripts" / "cli_page.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def without_code(document: Path) -> str:
    """A page's text without its fenced blocks and its code in lines."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings that all readers of Markdown agree on."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)]
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    on_git_hosts = {re.sub(r"\s", "-", heading) for heading in words}
    in_the_site = {re.sub(r"[-\s]+", "-", heading.encode("ascii", "ignore").decode()) for heading in words}
    return on_git_hosts & in_the_site


def test_the_defaults_in_the_docs_are_the_configs() -> None:
    """The table of docs/config.md and the model agree on the numbers."""
    table = (ROOT / "docs" / "config.md").read_text()
    for key in ("seed", "threads", "prefetch_batches"):
        default = o41td.BatchStreamConfig.model_fields[key].default
        assert f"| `{key}` | {default} |" in table
    assert o41td.BatchStreamConfig.model_fields["max_row_group_bytes"].default == 64 * 2**20
    assert o41td.BatchStreamConfig.model_fields["stall_timeout_s"].default == 120


def test_the_tables_of_the_projection_are_what_it_does() -> None:
    """docs/projection.md is as scripts/projection would write it."""
    script = [sys.executable, "-P", str(ROOT / "scripts" / "projection.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
