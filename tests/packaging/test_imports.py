"""What an import brings in, and from where."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import o41td
from public_api import api_lines

ROOT = Path(__file__).parent.parent.parent


def python(code: str, *, cwd: Path, safe_path: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new Python in folder `cwd`, which is on its path as it is for a user, unless `safe_path`."""
    options = ["-P"] if safe_path else []
    return subprocess.run([sys.executable, *options, "-c", code], cwd=cwd, capture_output=True, text=True)


def modules_after(statement: str, cwd: Path) -> set[str]:
    """The modules that a new Python holds after `statement`."""
    done = python(f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def test_the_public_api_is_pinned() -> None:
    """Names, arguments and attributes are those of public_api.txt; a change of it is a decision."""
    pinned = (ROOT / "tests" / "packaging" / "public_api.txt").read_text().splitlines()
    assert list(api_lines()) == pinned, "if this is meant, write public_api.txt anew: see tests/support/public_api.py"


def test_every_public_name_is_there_and_documented() -> None:
    """Each name of `__all__` can be had, and has a docstring of our own."""
    for name in o41td.__all__:
        value = getattr(o41td, name)
        assert name == "__version__" or value.__doc__, name


def test_version_is_that_of_the_project() -> None:
    """`o41td.__version__`, the installed metadata and pyproject.toml say the same."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert o41td.__version__ == declared == importlib.metadata.version("o41td")


def test_trainer_import_stays_light(tmp_path: Path) -> None:
    """What trains brings in neither pyarrow nor the command line's or remote storage's libraries; what writes may."""
    heavy = {"pyarrow", "typer", "rich", "s3fs", "fsspec", "aiohttp", "yaml", "zstandard", "asyncio", "matplotlib"}
    names = "[getattr(o41td, name) for name in o41td.__all__ if name != 'DatasetWriter']"
    assert not modules_after(f"import o41td; {names}", tmp_path) & heavy


def test_coordinator_import_stays_light(tmp_path: Path) -> None:
    """A coordinator touches no row bytes and no config, so it imports neither pyarrow nor pydantic."""
    heavy = {"pyarrow", "pydantic", "typer", "rich", "s3fs", "fsspec", "yaml"}
    assert not modules_after("import o41td.coordinator", tmp_path) & heavy


def test_worker_import_stays_light(tmp_path: Path) -> None:
    """A worker imports neither pydantic, nor the command line's libraries, nor s3fs before it meets s3."""
    heavy = {"pydantic", "typer", "rich", "s3fs", "aiohttp", "yaml"}
    assert not modules_after("import o41td.workers", tmp_path) & heavy


_DECODE = """
import numpy as np
from o41td.fields import FieldPlan
from o41td.workers.parquet import ShardReader
fields = [
    FieldPlan(name="tokens", source="tokens", dtype="i32", shape=(8,), pad=0),
    FieldPlan(name="packed", source="packed", dtype="i32", shape=(2,), source_dtype="i32"),
    FieldPlan(name="time", source="time", dtype="i64", null=0),
    FieldPlan(name="id", source="id", dtype="f32"),
]
out = {item.name: np.zeros((50, *item.shape), item.numpy_dtype) for item in fields}
reader = ShardReader("a.parquet", fields)
rows = reader.read_rows(0, 0, 50)
reader.projector.write(rows, out, row_offset_in_shard=0, shard="a.parquet", source="s")
assert out["tokens"][3].tolist() == [0, 1, 2, 0, 0, 0, 0, 0] and out["packed"][9].tolist() == [9, 10]
assert out["time"][:2].tolist() == [1_000_000_000, 0] and out["id"][49] == 49
"""


@pytest.mark.parametrize("binary", ["binary", "binary_view"])
def test_decoding_does_without_arrows_functions(tmp_path: Path, binary: str) -> None:
    """Ragged lists, packed bytes, INT96 and casts: none imports pyarrow.compute in the middle of a stream."""
    packed = [struct.pack("<ii", row, row + 1) for row in range(50)]
    times = [None if row == 1 else 1_000_000_000 for row in range(50)]
    table = pa.table(
        {
            "tokens": [list(range(row % 6)) for row in range(50)],
            "packed": pa.array(packed, getattr(pa, binary)()),
            "time": pa.array(times, pa.timestamp("ns")),
            "id": list(range(50)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert "pyarrow.compute" not in modules_after(_DECODE, tmp_path)


def test_a_users_own_folders_do_not_shadow_ours(tmp_path: Path) -> None:
    """Beside a decoy `workers/` and `shm/`, ours are imported as parts of o41td, and the decoys as themselves."""
    for name in ("workers", "shm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("DECOY = True\n")
    code = (
        "import o41td.workers, o41td.shm, workers, shm\n"
        "assert workers.DECOY and shm.DECOY\n"
        "assert not hasattr(o41td.workers, 'DECOY') and not hasattr(o41td.shm, 'DECOY')\n"
    )
    done = python(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["workers", "shm"])
def test_a_stray_import_from_the_checkout_is_refused(name: str) -> None:
    """In the repository's root `import workers` would load a second copy; it is an ImportError naming the right one."""
    done = python(f"import {name}", cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert f"o41td.{name}" in done.stderr.splitlines()[-1]


def test_shm_imports_nothing_of_ours_but_errors() -> None:
    """The only place that maps memory depends on no other part."""
    for path in (ROOT / "shm").rglob("*.py"):
        for module in imported_modules(path):
            if module.split(".")[0] == "o41td":
                assert module.startswith(("o41td.shm", "o41td.errors")), f"{path.name} imports {module}"


def test_imports_are_absolute() -> None:
    """No module imports relative to its own place, and none imports the mapped folders by their names on disk."""
    for folder in ("o41td", "workers", "shm"):
        for path in (ROOT / folder).rglob("*.py"):
            for module in imported_modules(path):
                assert module.split(".")[0] not in {"", "workers", "shm"}, f"{path} imports {module!r}"


def imported_modules(path: Path) -> list[str]:
    """The modules that a source file imports anywhere in it; a relative one starts with a dot."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
    return found
