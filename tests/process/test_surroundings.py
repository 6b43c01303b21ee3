"""Where a job runs must not matter: PID 1, odd temporary folders, a read-only root, few descriptors, other users."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loader_processes import run_python
from stream_reference import Reference, stage_of, stream_config

_JOB = """
import sys
from o41td import BatchStreamConfig, open_batch_stream
with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
    print(sum(batch.num_rows for batch in stream), flush=True)
"""
_AS_PID_1 = """
import os, sys, psutil
from o41td import BatchStreamConfig, open_batch_stream
assert os.getpid() == 1
config = BatchStreamConfig.load(sys.argv[1])
for victim in (None, "worker", "coordinator"):
    with open_batch_stream(config) as stream:
        stream.next()
        stats = stream.stats()
        if victim:
            psutil.Process((stats["workers"][0] if victim == "worker" else stats["coordinator"])["pid"]).kill()
        stream.seek(0)
        print(sum(batch.num_rows for batch in stream), flush=True)
    print(psutil.pids(), flush=True)
"""


@pytest.fixture
def config_file(write_shards, tmp_path):
    """A hundred shuffled rows."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(stream_config(stage_of(write_shards([30, 70]), buffer_rows=16)).to_document()))
    return path


def _run(*command: str | Path, **environment: str) -> tuple[int, str, str]:
    """(exit code, output, errors) of a command."""
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
        cwd="/", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def _needs(*command: str) -> None:
    """Skip the test where this host does not allow what it needs."""
    if shutil.which(command[0]) is None or _run(*command, "true")[0] != 0:
        pytest.skip(f"not allowed here: {' '.join(command)}")


def test_as_pid_1_no_zombie_is_left(config_file):
    """M11: in a container of its own, also behind a worker's and a coordinator's death: close() leaves PID 1 alone."""
    container = ("unshare", "-pf", "--mount-proc")
    _needs(*container)
    code, out, err = _run(*container, sys.executable, "-c", _AS_PID_1, config_file)
    assert (code, out, err) == (0, "100\n[1]\n" * 3, "")


def test_a_temporary_folder_that_is_gone(config_file, tmp_path):
    """M1: TMPDIR names a folder that is not there, 120 characters long: everything works, and none is made."""
    gone = tmp_path / ("t" * max(1, 120 - len(str(tmp_path)) - 1))
    assert _run(sys.executable, "-c", _JOB, config_file, TMPDIR=str(gone)) == (0, "100\n", "")
    assert not gone.exists()


def test_a_root_that_is_read_only(config_file, tmp_path):
    """M3: nothing but /dev/shm can be written, TMPDIR and HOME neither: everything works."""
    _needs("unshare", "-m")
    script = 'mount -o remount,bind,ro / && ! touch "$TMPDIR/x" 2> /dev/null && exec "$@"'
    if _run("unshare", "-m", "sh", "-c", script, "sh", "true", TMPDIR=str(tmp_path))[0] != 0:
        pytest.skip("the root cannot be made read-only here")
    command = ("unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", _JOB, config_file)
    assert _run(*command, TMPDIR=str(tmp_path), HOME=str(tmp_path)) == (0, "100\n", "")


def test_two_users_at_the_same_time(config_file, write_shards, open_stream):
    """M13: while a stream of ours is open, another user streams the same shards, and sees no loader of ours."""
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    # The other user may read what is ours to read: the interpreter, this package and the shards.
    other += ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    _needs(*other)
    config = stream_config(stage_of(write_shards([40], name="other"), buffer_rows=16))
    reference = Reference(config)
    stream = open_stream(config)
    reference.check(stream.next(), number=0)
    assert _run(*other, sys.executable, "-c", _JOB, config_file, HOME="/nonexistent") == (0, "100\n", "")
    assert _run(*other, sys.executable, "-P", "-m", "o41td", "status", "--json", HOME="/nonexistent") == (0, "[]\n", "")
    for number in range(1, 5):
        reference.check(stream.next(), number=number)


def test_500_shards_and_500_kept_batches_under_a_limit_of_128_open_files(write_shards, tmp_path):
    """K5, H8: descriptors grow neither with shards nor with kept batches, in no process; kept ones do not change."""
    (first,) = write_shards([2])
    for number in range(1, 500):
        os.link(first, first.with_name(f"part-{number:05d}.parquet"))
    config = stream_config(stage_of([first.parent / "*.parquet"], batch_size=2), threads=2)
    (tmp_path / "config.json").write_text(json.dumps(config.to_document()))
    script = (
        "import sys\nfrom o41td import BatchStreamConfig, open_batch_stream\n"
        "with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:\n"
        "    kept = list(stream)\n"
        "print(len(kept), all(batch['id'].tolist() == [0, 1] for batch in kept))\n"
    )
    ended = run_python(
        "-c", script, str(tmp_path / "config.json"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
    )  # fmt: skip
    assert (ended.code, ended.out, ended.err) == (0, "500 True\n", "")


_WITHOUT_A_THREAD = """
import sys, threading
begin = threading.Thread.start
def start(thread):
    if thread.name == sys.argv[2]:  # as where a container's pids.max is reached
        raise RuntimeError("can't start new thread")
    begin(thread)
threading.Thread.start = start
from o41td import BatchStreamConfig, O41Error, open_batch_stream
import psutil
try:
    with open_batch_stream(BatchStreamConfig.load(sys.argv[1])) as stream:
        print(sum(batch.num_rows for batch in stream))
except O41Error as error:
    print(type(error).__name__, error)
print(psutil.Process().children())
"""


def test_no_thread_left_to_map_pages_ahead(config_file):
    """Where a trainer may begin no thread but the gatherer's, the stream gives every row all the same."""
    ended = run_python("-c", _WITHOUT_A_THREAD, str(config_file), "o41td-populate")
    assert (ended.code, ended.out, ended.err) == (0, "100\n[]\n", "")


def test_no_thread_left_to_gather(config_file):
    """Where a trainer may begin no thread at all, opening says so and what to look at, and leaves no process."""
    ended = run_python("-c", _WITHOUT_A_THREAD, str(config_file), "o41td-gatherer")
    assert (ended.code, ended.err) == (0, "")
    said, children = ended.out.splitlines()
    assert said.startswith("CoordinatorError the stream's thread cannot be started: can't start new thread")
    assert "--pids-limit" in said
    assert children == "[]"


def test_a_parent_that_uses_s3fs_already(config_file):
    """I1: its event loop's thread runs in the trainer; the loader's processes are started, not forked, and stream."""
    code = (
        "import asyncio, fsspec.asyn, s3fs\n"
        "s3 = s3fs.S3FileSystem(anon=True)\n"
        "fsspec.asyn.sync(s3.loop, asyncio.sleep, 0)\n" + _JOB
    )
    assert _run(sys.executable, "-c", code, config_file) == (0, "100\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="NumPy itself refuses subinterpreters from 3.12 on")
def test_a_subinterpreter_is_refused_in_one_sentence(config_file):
    """I5: whoever opens a stream in one is told where else to."""
    code = (
        "import sys, _xxsubinterpreters as interpreters\n"
        "code = f'''import sys, warnings; sys.path[:0] = {sys.path!r}; warnings.simplefilter('ignore')\n"
        "from o41td import BatchStreamConfig, O41Error, open_batch_stream\n"
        "try: open_batch_stream(BatchStreamConfig.load({sys.argv[1]!r}))\n"
        "except O41Error as error: print(error, flush=True)\n'''\n"
        "interpreters.run_string(interpreters.create(), code)\n"
    )
    code_, out, err = _run(sys.executable, "-c", code, config_file)
    assert (code_, err) == (0, "")
    assert out.startswith("a subinterpreter cannot start the loader's processes")
