"""Wheel and sdist hold what git holds."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tarfile
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
def sdist(repository_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of those files alone, unpacked; built without isolation and so without the network."""
    tree = tmp_path_factory.mktemp("tree")
    for name in repository_files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built("build_sdist", tree, out)) as archive:
        archive.extractall(out, filter="data")
    (unpacked,) = (path for path in out.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from the source distribution, as whoever has no wheel gets it."""
    return zipfile.ZipFile(built("build_wheel", sdist, tmp_path_factory.mktemp("wheel")))


def built(hook: str, tree: Path, out: Path) -> Path:
    """What setuptools makes of a tree."""
    build = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, str(out)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return path


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


def test_the_wheel_asks_for_what_the_project_does(wheel: zipfile.ZipFile) -> None:
    """Python version, extras and dependencies are those of pyproject.toml; an extra's are needed by it alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    needed = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == set(project["dependencies"])
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_sdist_says_what_it_is(sdist: Path) -> None:
    """README, licence and pyproject.toml are in the source distribution; nothing of an environment is."""
    assert {"README.md", "LICENSE", "pyproject.toml", "o41td", "workers", "shm"} <= {p.name for p in sdist.iterdir()}
    assert not [path for path in sdist.rglob("*") if path.name in {".venv", "__pycache__", ".git"}]


def test_the_citation_names_the_version() -> None:
    """CITATION.cff states the version of pyproject.toml."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_package_folder_has_an_init(repository_files: list[str]) -> None:
    """A mapped folder without `__init__.py` breaks editable imports, so each has one."""
    sources = [name for name in repository_files if name.endswith(".py") and name.split("/")[0] in PACKAGE_FOLDERS]
    folders = {str(Path(name).parent) for name in sources}
    assert {f"{folder}/__init__.py" for folder in folders} <= set(repository_files)
