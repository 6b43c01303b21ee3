"""However a training script is started, whatever lies around it: it runs once, reads right, and says nothing."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from leaks import descriptors, shared_memory_names
from loader_processes import Ended, processes_of_loaders, run_python
from o41td import open_batch_stream
from stream_reference import stage_of, stream_config

_JOB = """
import pathlib, sys
from o41td import BatchStreamConfig, open_batch_stream

with pathlib.Path(sys.argv[2]).open("a") as runs:
    runs.write("ran ")
with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    print(sum(batch.num_rows for batch in stream))
"""


@pytest.fixture
def job(write_shards, tmp_path):
    """(arguments of the job, the file to which each run appends)."""
    config = stream_config(stage_of(write_shards([30, 70]), buffer_rows=16))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_document()))
    return [str(path), str(tmp_path / "runs")], tmp_path / "runs"


def _ran_once(ended: Ended, runs: Path) -> None:
    assert (ended.code, ended.out, ended.err) == (0, "100\n", "")
    assert runs.read_text() == "ran "


def test_a_script_without_a_guard_with_warnings_as_errors(job, tmp_path):
    """M7, H7: runs once; under -W error and PYTHONWARNINGS=error nothing is written to stderr by any process."""
    arguments, runs = job
    (tmp_path / "job.py").write_text(_JOB)
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"}
    _ran_once(run_python("-W", "error", str(tmp_path / "job.py"), *arguments, env=env), runs)


def test_python_c(job):
    """M5: python -c."""
    _ran_once(run_python("-c", _JOB, *job[0]), job[1])


def test_standard_input(job):
    """M5: python - < job.py."""
    _ran_once(run_python("-", *job[0], text=_JOB), job[1])


def test_a_module_of_a_package(job, tmp_path):
    """M5: python -m pkg.job."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "job.py").write_text(_JOB)
    _ran_once(run_python("-m", "pkg.job", *job[0], cwd=tmp_path), job[1])


def test_a_zip_application(job, tmp_path):
    """M5: python job.pyz."""
    with zipfile.ZipFile(tmp_path / "job.pyz", "w") as archive:
        archive.writestr("__main__.py", _JOB)
    _ran_once(run_python(str(tmp_path / "job.pyz"), *job[0]), job[1])


def test_a_thread_that_is_not_the_main_one(job, tmp_path):
    """The whole job in a thread, the main thread only waiting; and an exit without close()."""
    job_in_thread = (
        "import sys, threading\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "def work():\n"
        "    global stream\n"
        "    open(sys.argv[2], 'a').write('ran ')\n"
        "    stream = open_batch_stream(BatchStreamConfig.load(sys.argv[1]))\n"
        "    print(sum(batch.num_rows for batch in stream))\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    _ran_once(run_python("-c", job_in_thread, *job[0]), job[1])


def test_a_folder_of_decoys_and_a_long_tmpdir(job, tmp_path):
    """M1, M5: workers/, shm/, numpy.py, o41td/ and others where the script runs; a TMPDIR of 150 characters."""
    arguments, runs = job
    around, scripts = tmp_path / "around", tmp_path / "scripts"
    for folder in (
        around / "workers",
        around / "shm",
        around / "coordinator",
        around / "o41td",
        around / "msgpack",
        scripts,
    ):
        folder.mkdir(parents=True)
        if folder != scripts:
            (folder / "__init__.py").write_text("raise SystemExit('a decoy was imported')")
    for name in ("numpy", "pyarrow", "psutil", "selectors", "socket", "queue", "runpy", "sitecustomize"):
        (around / f"{name}.py").write_text("raise SystemExit('a decoy was imported')")
    for name in ("workers", "shm", "coordinator", "messages", "channel", "supervisor"):  # beside the script itself
        (scripts / f"{name}.py").write_text("raise SystemExit('a decoy was imported')")
    (scripts / "job.py").write_text(_JOB)
    long = tmp_path / ("t" * (150 - len(str(tmp_path)) - 1))
    long.mkdir()
    env = {**os.environ, "TMPDIR": str(long)}
    _ran_once(run_python(str(scripts / "job.py"), *arguments, cwd=around, env=env), runs)
    assert not list(long.iterdir())


def test_descriptors_threads_and_segments_stay_flat_over_many_streams(write_shards):
    """H8: 5 streams opened and closed in one process, a batch read or none, leave it as it was after the first."""
    config = stream_config(stage_of(write_shards([64]), infinite=True))
    seen = []
    for number in range(5):
        with open_batch_stream(config) as stream:
            if number % 2 == 0:
                assert stream.next()["id"].tolist() == list(range(8))
        seen.append((len(descriptors()), threading.active_count(), shared_memory_names()))
        assert not processes_of_loaders()
    assert all(one == seen[0] for one in seen)


def test_a_bystander_that_asks_for_figures_changes_nothing(write_shards, open_stream):
    """H5: `o41td status` attaches and leaves, twice; the stream and the loader's processes go on."""
    stream = open_stream(stream_config(stage_of(write_shards([400]), batch_size=10, infinite=True)))
    before = stream.stats()
    for number in range(2):
        ended = run_python("-P", "-m", "o41td", "status", "--json")
        assert (ended.code, ended.err) == (0, "")
        mine = [loader for loader in json.loads(ended.out) if loader["pid"] == before["pid"]]
        assert len(mine) == 1
        assert stream.next()["id"].tolist() == list(range(10 * number, 10 * number + 10))
    after = stream.stats()
    assert after["coordinator_restarts"] == 0
    assert [worker["pid"] for worker in after["workers"]] == [worker["pid"] for worker in before["workers"]]


def test_nothing_but_the_script_name_of_workers_shows_in_their_arguments(write_shards, open_stream):
    """Argument vectors hold module, socket number and worker number: no path, no config."""
    open_stream(stream_config(stage_of(write_shards([8]))))
    loader = processes_of_loaders()
    assert len(loader) == 2
    for process in loader:
        words = " ".join(process.cmdline()).removeprefix(sys.executable).rstrip()
        assert re.search(r"-P -m o41td\.(coordinator|workers) (--\w+ \d+ ?)+$", words), words
