"""Fixtures and marks that every test has.

A test's folder is its mark (`pytest -m unit`). In tests/process and tests/kill each test is followed by a look at what
it left behind: no process, thread, descriptor or name in /dev/shm may outlive it.
"""

from __future__ import annotations

import gc
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leaks
import shard_writer
from o41td.workers.forking import stay_single_threaded

pytest_plugins = ["stream_fixtures"]
TESTS = Path(__file__).parent
CASES = TESTS.parent.parent / "shared" / "cases"
KINDS = ("unit", "property", "simulation", "process", "kill", "packaging")


def pytest_configure() -> None:
    """Let processes that tests start hear signals that nohup, or a shell's `&`, has this one and them ignore.

    Nor do libraries start threads in them when they are imported: half of what a program costs that imports Arrow.
    """
    stay_single_threaded()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the folder it is in, and begin with those that take long, lest everyone waits for them.

    Those with PyTorch follow, so that one of the processes that run tests has them all, and alone imports it.
    """
    for item in items:
        kind = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        if kind in KINDS:
            item.add_marker(getattr(pytest.mark, kind))
    items.sort(key=lambda item: (item.get_closest_marker("slow_first") is None, "torch" not in _fixtures_of(item)))


def _fixtures_of(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


def pytest_collection_finish() -> None:
    """Set apart what imports and collecting have made: garbage is looked for behind each test of processes."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch; the test is skipped where it is not installed.

    It is imported where a test runs, and not by each process that collects tests: 2.5 s of CPU. What it makes is set
    apart too, of which there is more than of all else.
    """
    module = pytest.importorskip("torch")
    gc.collect()
    gc.freeze()
    return module


@pytest.fixture
def write_shards(tmp_path: Path) -> shard_writer.ShardWriter:
    """Writes small Parquet shards.

    Call it: `paths = write_shards([100, 37], name="web", row_group_rows=16)`.
    """
    return shard_writer.ShardWriter(tmp_path)


@pytest.fixture
def parquet_testing() -> Path:
    """The folder of the public Parquet sample files; the test is skipped where it is absent."""
    folder = CASES / "parquet-testing"
    if not folder.is_dir():
        pytest.skip("the public Parquet sample files are not beside this checkout")
    return folder


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test of tests/process or tests/kill that leaves something running, open or in /dev/shm."""
    if not any(request.node.get_closest_marker(kind) for kind in ("process", "kill")):
        yield
        return
    mark = uuid.uuid4().hex
    monkeypatch.setenv(leaks.MARK, mark)
    before = leaks.Surroundings.now(mark)
    yield
    left = before.leftovers()
    assert not left, "left behind by this test:\n  " + "\n  ".join(left)
