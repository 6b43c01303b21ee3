"""The sample that `scripts/run` streams."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command_line import command
from loader_processes import wait_until
from memory_use import MemoryWatch
from o41td import open_batch_stream
from o41td.demo import DEMO_SHARDS, TOKENS_A_ROW, demo_config, write_demo_data
from o41td.errors import StorageError

pytestmark = pytest.mark.slow_first


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, written once for this file by a process that counts shards and must not import pyarrow."""
    folder = tmp_path_factory.mktemp("sample") / "demo"
    code = (
        "import sys; from o41td.demo import write_demo_data, demo_config\n"
        f"counted = []; write_demo_data({str(folder)!r}, on_shard=counted.append); demo_config({str(folder)!r})\n"
        f"assert counted == list(range(1, {DEMO_SHARDS} + 1)), counted\n"
        "assert 'pyarrow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def digest_of(path: Path) -> str:
    """A digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_sample_is_as_large_as_it_says(sample: Path) -> None:
    """12 shards of 5 120 rows and 8 of 4 608; 512 tokens of 4 bytes and 16 bytes of scalars a row are 203 MB."""
    shards = write_demo_data(sample)
    assert {name: len(paths) for name, paths in shards.items()} == {"web": 12, "books": 8}
    rows = {name: sum(pq.ParquetFile(path).metadata.num_rows for path in paths) for name, paths in shards.items()}
    assert rows == {"web": 61_440, "books": 36_864}
    assert sum(rows.values()) * (TOKENS_A_ROW * 4 + 16) == 202_899_456
    table = pq.read_table(shards["books"][3])
    assert table.column("num_tokens").to_pylist() == [len(row) for row in table.column("tokens").to_pylist()]
    assert table.column("doc_id").to_pylist() == list(range(20_013_824, 20_018_432))


def test_a_second_call_writes_nothing(sample: Path) -> None:
    """The sample is used again: no shard is touched, and nothing new lies beside it."""
    before = {path: path.stat().st_mtime_ns for path in sample.rglob("*.parquet")}
    write_demo_data(sample)
    assert {path: path.stat().st_mtime_ns for path in sample.rglob("*.parquet")} == before
    assert len(before) == DEMO_SHARDS
    assert list(sample.parent.iterdir()) == [sample]


def test_a_killed_writer_leaves_no_half_sample_and_the_next_has_the_same_rows(sample: Path, tmp_path: Path) -> None:
    """Killed in the middle the folder is absent; the next call makes it whole, every shard with the same bytes."""
    again = tmp_path / "demo"
    code = f"from o41td.demo import write_demo_data; write_demo_data({str(again)!r}, on_shard=print)"
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1")
        process.kill()
    assert not again.exists()
    write_demo_data(again)
    shards = list(sample.rglob("*.parquet"))
    assert len(shards) == DEMO_SHARDS
    for path in shards:
        assert digest_of(path) == digest_of(again / path.relative_to(sample))


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    """A folder that holds other files is left alone, and the error names it."""
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(StorageError, match=str(tmp_path)):
        write_demo_data(tmp_path)
    with pytest.raises(StorageError, match="this is a file"):
        write_demo_data(tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_command_that_is_asked_to_end_leaves_no_draft(tmp_path: Path) -> None:
    """SIGHUP in the middle of the sample: its writer ends at once, and nothing of it stays."""
    words = command("demo", "--folder", tmp_path / "a" / "b")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob("a/b.draft-*/web/*")), "a shard is begun")
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=110)
    assert (process.returncode, out, err) == (129, "", "Hung up.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_sample_that_could_not_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parents that were made for it go as well, where no process can be started to write it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(StorageError, match="could not be written"):
        write_demo_data(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_its_config_is_a_curriculum_of_two_stages(sample: Path) -> None:
    """A warm-up on half of the web, then both sources 1 : 3."""
    config = demo_config(sample)
    assert [stage.name for stage in config.stages] == ["warm-up", "mix"]
    assert [len(source.files) for stage in config.stages for source in stage.sources] == [6, 12, 8]
    assert [source.weight for source in config.stages[1].sources] == [1.0, 3.0]


def test_streaming_it_takes_no_more_than_its_bound(sample: Path) -> None:
    """Peaks of all processes, while tokens and scalars of two sources are mixed."""
    config = demo_config(sample)
    with MemoryWatch() as watch, open_batch_stream(config.model_copy(update={"stages": config.stages[1:]})) as stream:
        for _ in range(500):
            assert stream.next() is not None
        stats = stream.stats()
    assert watch.total_bytes(stats) <= stats["memory"]["bound_bytes"], (watch.use, stats["memory"])
