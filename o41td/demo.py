"""A sample data set to try o41td on: two sources of token lists, 20 Parquet shards, 200 MB when decoded.

`write_demo_data(folder)` writes it once and uses it again from then on; `demo_config(folder)` streams it as a
curriculum of two stages. The writing is done by a second process (`python -m o41td.demo FOLDER`), because the trainer's
process does not import pyarrow.

The folder is complete or absent: the shards are written beside it under a temporary name, and one rename puts them in
place. Values follow from shard numbers alone, so everyone has the same rows.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from o41td.errors import StorageError
from o41td.made_folders import MadeFolders

if TYPE_CHECKING:
    import pyarrow as pa

    from o41td.config import BatchStreamConfig

__all__ = ["DEMO_SHARDS", "TOKENS_A_ROW", "DemoSource", "demo_config", "default_demo_folder", "write_demo_data"]

TOKENS_A_ROW = 512
_VOCABULARY = 50_257
_OLD_DRAFT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSource:
    """How one of the sample's sources is laid out.

    Attributes:
        name: its name, and its folder's.
        number: goes into its random numbers.
        num_shards: how many files.
        shard_rows: rows of each.
        row_group_rows: rows of each row group.
        median_tokens: half of its lists are shorter.
    """

    name: str
    number: int
    num_shards: int
    shard_rows: int
    row_group_rows: int
    median_tokens: int


#  98 304 rows of 512 int32 tokens and 16 bytes of scalars: 203 MB decoded, 69 MB on disk.
_SOURCES = (
    DemoSource(name="web", number=1, num_shards=12, shard_rows=5_120, row_group_rows=1_024, median_tokens=220),
    DemoSource(name="books", number=2, num_shards=8, shard_rows=4_608, row_group_rows=512, median_tokens=480),
)
DEMO_SHARDS = sum(source.num_shards for source in _SOURCES)


def default_demo_folder() -> Path:
    """Where the sample is kept unless told otherwise: a folder of the user's cache."""
    return Path.home() / ".cache" / "o41td" / "demo-1"


def demo_config(folder: str | os.PathLike[str]) -> BatchStreamConfig:
    """The config that streams the sample: a warm-up on half of the web, then web and books mixed 1 : 3.

    Args:
        folder: where `write_demo_data` has put the sample.
    """
    from o41td.config import BatchStreamConfig, FileSource, ProjectedField, Shuffle, Stage

    web, books = ([str(path) for path in _shard_paths(Path(folder), source)] for source in _SOURCES)
    return BatchStreamConfig(
        fields=[
            ProjectedField(name="tokens", dtype="i32", length=TOKENS_A_ROW, pad=0),
            ProjectedField(name="num_tokens", dtype="i32"),
            ProjectedField(name="doc_id", dtype="i64"),
            ProjectedField(name="quality", dtype="f32"),
        ],
        stages=[
            Stage(
                name="warm-up",
                sources=[FileSource(name="web", files=web[: len(web) // 2])],
                batch_size=32,
                shuffle=Shuffle(buffer_rows=4096),
            ),
            Stage(
                name="mix",
                sources=[
                    FileSource(name="web", files=web, weight=1.0),
                    FileSource(name="books", files=books, weight=3.0),
                ],
                batch_size=64,
                shuffle=Shuffle(buffer_rows=8192),
                drop_last=True,
            ),
        ],
        seed=41,
    )


def write_demo_data(
    folder: str | os.PathLike[str], *, on_shard: Callable[[int], object] | None = None
) -> dict[str, list[Path]]:
    """Write the sample, unless it is there, and return each source's shards in order.

    Args:
        folder: where it goes; made with its parents. It is there either whole or not at all.
        on_shard: called with the number of shards written so far.

    Raises:
        StorageError: The folder cannot be written, or something else is in its place.

    Blocks: for some seconds while a second process writes; not at all where the sample is there.
    """
    folder = Path(folder)
    shards = {source.name: _shard_paths(folder, source) for source in _SOURCES}
    wanted = [path for paths in shards.values() for path in paths]
    if all(map(os.path.isfile, wanted)):
        return shards
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise StorageError("this is a file, and the sample is a folder", uri=folder, advice="Name a folder")
    if _holds_something(folder):
        raise StorageError(
            "this folder holds something, but not the whole sample",
            uri=folder,
            advice="remove it, or name another folder",
        )
    _run_writer(folder, on_shard)
    return shards


def _holds_something(folder: Path) -> bool:
    """Whether a folder, which need not be there, holds anything."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _entry in entries)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(
            f"the sample could not be written: {error.strerror}", uri=folder, advice="Name a folder you can write to"
        ) from error


def _shard_paths(folder: Path, source: DemoSource) -> list[Path]:
    return [folder / source.name / f"part-{number:05d}.parquet" for number in range(source.num_shards)]


def _run_writer(folder: Path, on_shard: Callable[[int], object] | None) -> None:
    """Have a second process write the sample beside `folder`, then put it in place."""
    draft = folder.with_name(f"{folder.name}.draft-{secrets.token_hex(4)}")
    _remove_old_drafts(folder)
    folders = MadeFolders()
    try:
        folders.make(draft)
        command = [sys.executable, "-P", "-m", "o41td.demo", str(draft)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stderr is not None
            try:
                for num_written, _ in enumerate(writer.stdout, start=1):
                    if on_shard is not None:
                        on_shard(num_written)
            except BaseException:
                writer.kill()  # a writer that is left alone would be waited for
                raise
            complaint = writer.stderr.read().strip().splitlines()
        if writer.returncode:
            raise StorageError(
                f"the sample could not be written: {complaint[-1] if complaint else f'exit {writer.returncode}'}",
                uri=folder,
                advice="Free some 100 MB there, or name another folder",
            )
        _put_in_place(draft, folder)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"the sample could not be written: {error.strerror}", uri=folder, advice="Name a folder you can write to"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        folders.remove_empty()  # none where the sample is in place


def _remove_old_drafts(folder: Path) -> None:
    """Remove what killed writers left: a draft that nobody has touched for ten minutes."""
    for draft in folder.parent.glob(f"{glob.escape(folder.name)}.draft-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > _OLD_DRAFT_S:
                shutil.rmtree(draft)


def _put_in_place(draft: Path, folder: Path) -> None:
    """Rename the whole draft; where another process was faster its sample is the same, and stays."""
    try:
        draft.rename(folder)  # replaces an empty folder, and nothing else
    except OSError:
        if not all(os.path.isfile(path) for source in _SOURCES for path in _shard_paths(folder, source)):
            raise


def _demo_table(source: DemoSource, shard_number: int) -> pa.Table:
    """One shard's rows: ragged tokens by Zipf's law, and a few scalars."""
    import pyarrow as pa

    random = np.random.default_rng([source.number, shard_number])
    num_rows = source.shard_rows
    lengths = np.clip(random.lognormal(np.log(source.median_tokens), 0.6, num_rows), 8, 2 * TOKENS_A_ROW)
    offsets = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(lengths.astype(np.int32), out=offsets[1:])
    uniform = random.random(int(offsets[-1]), dtype=np.float32)
    tokens = np.minimum(np.power(np.float32(_VOCABULARY), uniform).astype(np.int32), _VOCABULARY - 1)
    doc_ids = np.arange(num_rows, dtype=np.int64) + source.number * 10_000_000 + shard_number * num_rows
    return pa.table(
        {
            "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            "num_tokens": pa.array(np.diff(offsets)),
            "doc_id": pa.array(doc_ids),
            "quality": pa.array(random.random(num_rows, dtype=np.float32)),
            "title": pa.array([f"{source.name} document {doc_id}" for doc_id in doc_ids]),
        }
    )


def _write_all_shards(folder: Path) -> None:
    """The second process: write every shard, and say so with a line each.

    Called by: `python -m o41td.demo FOLDER`.
    """
    import pyarrow.parquet as pq

    def write_shard(source: DemoSource, shard_number: int, path: Path) -> Path:
        table = _demo_table(source, shard_number)
        pq.write_table(table, path, compression="zstd", row_group_size=source.row_group_rows)
        return path

    for source in _SOURCES:
        (folder / source.name).mkdir()
    jobs = [(source, number, path) for source in _SOURCES for number, path in enumerate(_shard_paths(folder, source))]
    with ThreadPoolExecutor(max_workers=2) as pool:
        for path in pool.map(lambda job: write_shard(*job), jobs):
            print(path.name, flush=True)  # noqa: T201 - the parent counts these lines


if __name__ == "__main__":
    _write_all_shards(Path(sys.argv[1]))
