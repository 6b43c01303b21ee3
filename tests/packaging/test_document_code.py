"""The Python in README and docs is right: it compiles, names what there is, and runs where it says so.

A block behind `<!-- run: … -->` is run, in a folder with small shards; the blocks of a page one after the other.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import o41td

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- run: .*? -->\n)?```python\n(.*?)```", flags=re.DOTALL)
#  What a variable of this name is wherever documents use it.
KINDS: dict[str, tuple[type, ...]] = {
    "stream": (o41td.BatchStream,),
    "batch": (o41td.Batch, pa.RecordBatch),  # a node gets one of Arrow's
    "config": (o41td.BatchStreamConfig,),
    "writer": (o41td.DatasetWriter,),
}


def pages_with(pattern: re.Pattern[str]) -> pytest.MarkDecorator:
    """Runs a test with each page in which a pattern is found."""
    pages = [page for page in PAGES if pattern.search(page.read_text())]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


def check_names(page: Path, *, skipped: tuple[str, ...] = ()) -> None:
    """What blocks take from modules of ours that are not skipped is there, and takes the arguments that it is given."""
    for _run, code in BLOCK.findall(page.read_text()):
        tree = ast.parse(textwrap.dedent(code))
        names: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "o41td":
                if node.module in skipped:
                    continue
                module = importlib.import_module(node.module or "")
                names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                unknown = {word.arg for word in node.keywords if word.arg} - keywords_of(names[node.func.id])
                assert not unknown, f"{node.func.id}({', '.join(sorted(unknown))}=…)"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in KINDS:
                kinds = KINDS[node.value.id]
                assert any(node.attr in members_of(kind) for kind in kinds), f"{node.value.id}.{node.attr}"


@pages_with(BLOCK)
def test_blocks_name_what_there_is(page: Path) -> None:
    """Each block compiles; what it takes from o41td is there, and takes the arguments that it is given by name."""
    check_names(page, skipped=("o41td.torch",))


@pytest.mark.usefixtures("torch")
@pages_with(re.compile("from o41td.torch import"))
def test_blocks_for_pytorch_name_what_there_is(page: Path) -> None:
    """So is what it takes from o41td.torch, which needs PyTorch to be imported."""
    check_names(page)


def test_blocks_that_say_so_run(tmp_path: Path) -> None:
    """Every block marked as run does, the blocks of a page in turn, all pages in one process; nothing is printed."""
    pages = []
    for number, page in enumerate(PAGES):
        codes = [code for run, code in BLOCK.findall(page.read_text()) if run]
        if codes:
            (tmp_path / str(number) / "data").mkdir(parents=True)
            table = pa.table({"input_ids": [list(range(row % 20)) for row in range(200)]})
            pq.write_table(table, tmp_path / str(number) / "data" / "a.parquet", row_group_size=50)
            pages.append((str(page), str(tmp_path / str(number)), codes))
    assert len(pages) >= 2
    program = """
        import os
        for page, folder, codes in {pages!r}:
            os.chdir(folder)
            names = {{"__name__": "__main__"}}
            for code in codes:
                exec(compile(code, page, "exec"), names)
    """
    program = textwrap.dedent(program).format(pages=pages)
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def keywords_of(called: Any) -> set[str]:
    """The arguments that a function or class takes by name."""
    if hasattr(called, "model_fields"):
        return set(called.model_fields)
    return set(inspect.signature(called).parameters)


def members_of(kind: type) -> set[str]:
    """What an object of a class has: methods, properties, annotated attributes."""
    return set(dir(kind)).union(*(getattr(base, "__annotations__", {}) for base in kind.__mro__))
