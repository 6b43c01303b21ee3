"""The wheel holds what git holds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#  Repository folder -> its place in the installed package.
PACKAGE_FOLDERS = {"o41td": "o41td", "workers": "o41td/workers", "shm": "o41td/shm"}


@pytest.fixture(scope="module")
def repository_files() -> list[str]:
    """Every file that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list to compare with")
    return sorted(name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file())


@pytest.fixture(scope="module")
def wheel(repository_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from those files alone, without isolation and so without the network."""
    tree = tmp_path_factory.mktemp("tree")
    for name in repository_files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, str(out)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_exactly_the_packages_files(wheel: zipfile.ZipFile, repository_files: list[str]) -> None:
    """Every source file of the three folders is installed at its place, and nothing else is."""
    expected = set()
    for name in repository_files:
        folder, _, rest = name.partition("/")
        if folder in PACKAGE_FOLDERS and rest:
            expected.add(f"{PACKAGE_FOLDERS[folder]}/{rest}")
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == expected


def test_the_wheel_carries_its_licence_and_types(wheel: zipfile.ZipFile) -> None:
    """The licence's text and the marker that says the package is typed are installed."""
    names = wheel.namelist()
    assert "o41td/py.typed" in names
    (licence,) = [name for name in names if name.endswith("/LICENSE")]
    assert "Apache License" in wheel.read(licence).decode()


def test_the_wheel_states_the_version_and_command(wheel: zipfile.ZipFile) -> None:
    """Version and the console command are those of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    assert f"\nVersion: {project['version']}\n" in wheel.read(metadata).decode()
    assert "o41td = o41td.cli:main" in wheel.read(entry_points).decode()


def test_every_package_folder_has_an_init(repository_files: list[str]) -> None:
    """A mapped folder without `__init__.py` breaks editable imports, so each has one."""
    sources = [name for name in repository_files if name.endswith(".py") and name.split("/")[0] in PACKAGE_FOLDERS]
    folders = {str(Path(name).parent) for name in sources}
    assert {f"{folder}/__init__.py" for folder in folders} <= set(repository_files)
