"""No part of the package turns data into code: what a socket, a file or a message holds stays data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MODULES = sorted(path for folder in ("o41td", "workers", "shm") for path in (ROOT / folder).rglob("*.py"))

_CODE_MODULES = {
    "_pickle", "cPickle", "cloudpickle", "code", "codeop", "copyreg", "dill", "joblib", "jsonpickle", "marshal",
    "pickle", "pickletools", "runpy", "shelve", "xmlrpc",
}  # fmt: skip
_CODE_CALLS = {"__import__", "compile", "eval", "exec"}
_CODE_METHODS = {
    "full_load", "load_module", "popen", "read_pickle", "set_allow_pickle", "system", "to_pickle", "unsafe_load",
    "unsafe_load_all",
}  # fmt: skip
_ONLY_OF = {"load": {"yaml", "np", "numpy", "torch"}, "compile": {"builtins"}}
_NODES = "o41td/nodes/parcel.py"  # code of the user's own, which only the loader's owner sends and only workers open
_LAZY_EXPORTS = ("o41td/__init__.py", "import_module")  # of names that stand in its own table


def _offences(path: Path) -> list[str]:
    """What in a module could run data, as "line: what"."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: import {name}" for name in names if name.partition(".")[0] in _CODE_MODULES]
        if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            found.append(f"{node.value.lineno}: {node.arg}=")
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in _CODE_CALLS:
            found.append(f"{node.lineno}: {function.id}()")
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in _CODE_METHODS or owner in _ONLY_OF.get(function.attr, ()):
                found.append(f"{node.lineno}: {owner}.{function.attr}()")
            if function.attr == "import_module" and (_name_of(path), function.attr) != _LAZY_EXPORTS:
                found.append(f"{node.lineno}: import_module()")
    return found


def _name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.skipif(not MODULES, reason="the sources are not beside the tests")
def test_no_module_can_run_what_it_reads() -> None:
    """No pickle, eval, shell, or loader that builds objects, in any module, whether a socket reaches it or not."""
    found = [f"{_name_of(path)}:{offence}" for path in MODULES for offence in _offences(path)]
    assert [offence for offence in found if not offence.startswith(_NODES)] == []


@pytest.mark.skipif(not MODULES, reason="the sources are not beside the tests")
def test_only_workers_open_nodes() -> None:
    """Where a chain's bytes become nodes again is named by one module of the workers, and by none of the others."""
    users = {
        _name_of(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.ImportFrom) and node.module == "o41td.nodes.parcel"
        for alias in node.names
        if alias.name == "opened"
    }
    assert users == {"workers/chain_reader.py"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f(x):\n    import cloudpickle.cloudpickle",
        "eval(x)",
        "exec(x)",
        "np.load(p)",
        "yaml.load(x)",
        "yaml.unsafe_load(x)",
        "os.system(x)",
        "subprocess.run(x, shell=True)",
        "np.fromfile(p, allow_pickle=True)",
        "importlib.import_module(x)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of running data is seen in a module that has it."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "m.py").write_text(source)
    assert len(_offences(tmp_path / "m.py")) == 1
