"""What this user may not read or write: told at once, by name, and never passed over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import toml_config

_GIVEN_UP = "-dac_override,-dac_read_search"
_UNPRIVILEGED = ("setpriv", f"--bounding-set={_GIVEN_UP}", f"--inh-caps={_GIVEN_UP}")
_CASES = """
import os, sys
from o41td.cli.app import run_app
from o41td.listing import list_files
from o41td.writing.inputs import list_inputs
os.chdir(sys.argv[1])

def told(action, *arguments, **keys):
    try:
        print([os.path.relpath(path) for path in action(*arguments, **keys)])
    except Exception as error:
        print(type(error).__name__, str(error).replace(os.getcwd(), "."))

for entry in (
    "closed", "closed/*.parquet", "some", "some/**/*.parquet", "some/*/*.parquet", "fine", "fine/**/*.parquet"
):
    told(list_files, [entry], source="s")
told(list_inputs, ["some"])
"""


@pytest.fixture
def folder(tmp_path: Path):
    """Folders and files that their own owner may not read or write; they can be removed afterwards."""
    for name in ("closed", "some/closed", "some/open", "fine/lost+found", "fine/_scratch", "fine/.hidden", "out"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": list(range(40))}), tmp_path / name / "a.parquet")
    pq.write_table(pa.table({"id": list(range(40))}), tmp_path / "fine" / "b.parquet")
    pq.write_table(pa.table({"id": list(range(40))}), tmp_path / "unread.parquet")
    modes = {"out": 0o500, "unread.parquet": 0}
    modes |= dict.fromkeys(["closed", "some/closed", "fine/lost+found", "fine/_scratch", "fine/.hidden"], 0)
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    yield tmp_path
    for name in modes:
        (tmp_path / name).chmod(0o700)


def _run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    prefix = _UNPRIVILEGED if os.geteuid() == 0 else ()
    if prefix and (shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"], check=False).returncode):
        pytest.skip("this user may read everything, and cannot give that up here")
    done = subprocess.run(
        [*prefix, sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=110, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_folders_that_cannot_be_listed(folder):
    """A folder, a glob and an input through one are refused by name; what holds no data by rule is passed over."""
    code, out, err = _run("-c", _CASES, str(folder), cwd=folder)
    assert (code, err) == (0, "")
    closed = "the folder cannot be listed: Permission denied"
    lines = out.splitlines()
    assert [line.partition("). ")[0] for line in lines] == [
        f"StorageError {closed} (./closed",
        f"StorageError {closed} (./closed",
        f"StorageError {closed} (./some/closed",
        f"StorageError {closed} (./some/closed",
        f"StorageError {closed} (./some/closed",
        "['fine/b.parquet']",
        "['fine/b.parquet']",
        f"StorageError {closed} (./some/closed",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["inspect", "unread.parquet"], 1, "the file cannot be read: Permission denied (", ),
        (["write", "unread.parquet", "--to", "new"], 1, "the file cannot be read: Permission denied ("),
        (["run", "c.toml", "--checkpoint", "out/c.json"], 2, "--checkpoint out/c.json: this user may not write into"),
        (["plan", "c.toml", "--plot", "out/c.png"], 2, "--plot out/c.png: this user may not write into its folder"),
        (["plan", "c.toml", "--plot", "closed/c.png"], 2, "--plot closed/c.png: this user may not write into its"),
        (["run", "closed/c.toml"], 2, "the config file cannot be read: Permission denied (closed/c.toml"),
        (["run", "c.toml", "--checkpoint", "closed/c"], 2, "--checkpoint closed/c: this user may not write into"),
        (["demo", "--folder", "closed/demo"], 1, "the sample could not be written: Permission denied (closed/demo"),
        (["write", "fine/b.parquet", "--to", "out/x"], 1, "it cannot be written or read: Permission denied ("),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_commands_say_what_is_not_allowed(folder, arguments, code, said):
    """What cannot be read is told as that, not as damage; what cannot be written, before anything is streamed."""
    toml_config(folder / "c.toml", [{"batch_size": 4, "sources": [("a", [str(folder / "fine" / "b.parquet")], 1.0)]}])
    ended = _run("-P", "-m", "o41td", *arguments, cwd=folder)
    assert ended[:2] == (code, "")
    assert said in ended[2]
    assert "Traceback" not in ended[2]
    assert not (folder / "new" / "data-manifest-v1.json").exists()
