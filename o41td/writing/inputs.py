"""Files of other formats as record batches: what `o41td write` and `o41td pack` take in.

    format       a file is                                   rows come as
    parquet      a Parquet file, packed lists among them     its columns
    arrow        an Arrow IPC file or stream (HF datasets)   its columns
    csv          text with a header line, .csv or .csv.gz    columns of inferred types
    jsonl        lines of JSON objects, plain, .gz or .zst   keys
    msgpack      frames as in `msgpack.zstf` shards          keys
    mds          a folder with the index.json of MDS         its columns
    webdataset   a tar whose files come in samples           `__key__` and a column for each suffix

Nothing in any of them is executed: pickles are refused.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from o41td.encodings import FOREIGN_SUFFIXES
from o41td.errors import ConfigError, CorruptDataError, MissingShardError, O41Error, StorageError
from o41td.folder_walk import check_globbed_folders, is_data_name, paths_below
from o41td.listing import is_local, local_path_of
from o41td.writing.column_inputs import arrow_batches, csv_batches, parquet_batches
from o41td.writing.mds_input import MDS_INDEX, mds_batches
from o41td.writing.packed_lists import unpacked
from o41td.writing.record_inputs import json_batches, message_batches
from o41td.writing.saved_shard import RECORDS_FOLDER
from o41td.writing.tar_input import tar_batches

__all__ = ["INPUT_FORMATS", "InputFile", "InputRows", "list_inputs", "read_inputs"]

_RECORD_READERS: dict[str, Callable[[Path, Sequence[str] | None], Iterator[Any]]] = {
    "jsonl": json_batches,
    "msgpack": message_batches,
}
_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "parquet": parquet_batches,
    "arrow": arrow_batches,
    "csv": csv_batches,
    "mds": mds_batches,
    "webdataset": tar_batches,
}
INPUT_FORMATS = ("parquet", "arrow", "csv", "jsonl", "msgpack", "mds", "webdataset")
"""The formats' names."""

_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".parq": "parquet",
    ".jsonl.gz": "jsonl",
    ".msgpack.zstf": "msgpack",
    **FOREIGN_SUFFIXES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file to read: its absolute path, its format, its size, and when it was last changed."""

    path: str
    format: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRows:
    """Some rows of an input.

    Attributes:
        file: Which input, by its place in the list.
        first_row: The number of the first of them in that input.
        batch: The rows, a record batch.
    """

    file: int
    first_row: int
    batch: Any


def list_inputs(
    entries: Sequence[str], input_format: str | None = None, *, to: str | None = None
) -> tuple[InputFile, ...]:
    """Returns the files that paths, folders and globs name, in the order given, folders and globs sorted.

    Args:
        entries: Paths, folders, globs. An MDS folder is the one that holds an index.json.
        input_format: What they are; from the suffixes if left out.
        to: The manifest of the data set that they go into: a folder's files are those that are not of it.

    Raises:
        MissingShardError: A path does not exist.
        StorageError: A folder cannot be listed.
        ConfigError: Nothing matches, a format is not known, a file is named twice or lies in a store, a folder is a
            data set of several splits, or it is the one to write into.
    """
    if input_format is not None and input_format not in INPUT_FORMATS:
        raise ConfigError(f"{input_format!r} is no format; give one of {', '.join(INPUT_FORMATS)}")
    output = os.path.dirname(os.path.abspath(local_path_of(to))) if to is not None and is_local(to) else None
    paths = [path for entry in entries for path in _matches(entry, input_format, output)]
    found = [_input_file(path, input_format) for path in paths]
    seen: set[str] = set()
    for each in found:
        if each.path in seen:
            raise ConfigError(f"{each.path} is named twice, so its rows would come twice")
        seen.add(each.path)
    return tuple(found)


def read_inputs(files: Sequence[InputFile], columns: Sequence[str] | None = None) -> Iterator[InputRows]:
    """Yields all rows of all files, in order, packed lists as the lists they stand for.

    Args:
        files: The files.
        columns: What is wanted of files of records, whose other keys may then hold anything; columnar files give all.

    Raises:
        StorageError: A file cannot be read at all: its permissions or its disk do not let it.
        CorruptDataError: A file cannot be read as what it claims to be; it is named.
        O41Error: As the format's reader says.

    Blocks: on the disk.
    """
    for place, file in enumerate(files):
        first_row = 0
        path = Path(file.path)
        of_records = _RECORD_READERS.get(file.format)
        batches = _READERS[file.format](path) if of_records is None else of_records(path, columns)
        while True:
            try:
                batch = next(batches, None)
            except (O41Error, MemoryError):
                raise
            except Exception as error:
                told = " ".join(str(error).split()) or type(error).__name__
                if isinstance(error, OSError) and error.errno is not None:
                    raise StorageError(
                        f"the file cannot be read: {os.strerror(error.errno)}",
                        uri=file.path,
                        advice="Check its permissions and its disk",
                    ) from error
                raise CorruptDataError(
                    f"the file cannot be read as {file.format} from row {first_row} on: {told}",
                    shard=file.path,
                    advice="Replace the file, or leave it out of the inputs",
                ) from error
            if batch is None:
                break
            if batch.num_rows:
                plain = unpacked(batch).replace_schema_metadata(None)
                yield InputRows(file=place, first_row=first_row, batch=plain)
                first_row += batch.num_rows


def columns_of(batch: Any, columns: Sequence[str] | None) -> Any:
    """Returns a batch with some of its columns, in the order given; all of them where none are named.

    Raises:
        ConfigError: There is no such column.
    """
    if columns is None:
        return batch
    missing = next((name for name in columns if name not in batch.schema.names), None)
    if missing is not None:
        raise ConfigError(f"there is no column {missing!r}; there are {', '.join(batch.schema.names)}")
    arrays = [batch.column(batch.schema.get_field_index(name)) for name in columns]
    fields = [batch.schema.field(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _matches(entry: str, input_format: str | None, output: str | None) -> list[str]:
    if not is_local(entry):
        raise ConfigError(
            f"{entry} is not on this machine, and only local files are read here",
            advice="Fetch it first. A stream needs no copy: name it in a config's source, and give --storage",
        )
    path = os.path.abspath(local_path_of(entry))
    if os.path.isdir(path):
        if path == output:
            raise ConfigError(f"{path} is an input, and where the data set goes", advice="Write into another folder")
        if input_format in (None, "mds") and os.path.isfile(os.path.join(path, MDS_INDEX)):
            return [path]
        _check_one_split(path)
        found = [name for name in paths_below(path) if output is None or not name.startswith(f"{output}/")]
        found = sorted(
            name
            for name in found
            if _format_of(name) is not None and is_data_name(name[len(path) :].split("/")) and os.path.isfile(name)
        )
        formats = sorted({str(_format_of(name)) for name in found})
        if input_format is not None:
            found = [name for name in found if _format_of(name) == input_format]
        elif len(formats) > 1:
            raise ConfigError(f"{path} holds {' and '.join(formats)} files; say which with --format, or name the files")
    elif os.path.exists(path):
        found = [path]
    elif glob.has_magic(path):
        check_globbed_folders(path)
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    else:
        raise MissingShardError(shard=path, detail="there is no such file or folder")
    if not found:
        folders = sorted(os.path.dirname(index) for index in glob.glob(os.path.join(glob.escape(path), "*", MDS_INDEX)))
        if folders:
            names = ", ".join(map(os.path.basename, folders))
            raise ConfigError(f"{entry} holds the MDS folders {names}", advice="Give the one, or each, that is meant")
        below = sorted(filter(os.path.isdir, glob.glob(path, recursive=True))) if glob.has_magic(path) else []
        if below:
            raise ConfigError(
                f"{entry!r} matches only folders, such as {below[0]}",
                advice="Name the folder, which stands for the files below it, or add /* to the pattern",
            )
        raise ConfigError(f"{entry!r} names no file", advice=f"Known are {', '.join(_SUFFIXES)}, and MDS folders")
    return found


def _check_one_split(path: str) -> None:
    """Refuses a data set of several splits: read as one, what validates would be trained on."""
    folder = os.path.join(path, RECORDS_FOLDER, "shards")
    splits = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if len(splits) > 1:
        raise ConfigError(
            f"{path} is a data set of several splits, {', '.join(splits)}",
            advice="Give the folder of the one that is meant, or of each if they are to be mixed",
        )


def _input_file(path: str, input_format: str | None) -> InputFile:
    of_path = "mds" if os.path.isdir(path) else _format_of(path)
    chosen = input_format or of_path
    if chosen is None:
        raise ConfigError(
            f"{path}: its suffix tells no format; say with --format which of {', '.join(INPUT_FORMATS)} it is"
        )
    facts = os.stat(os.path.join(path, MDS_INDEX) if chosen == "mds" else path)
    size = sum(entry.stat().st_size for entry in os.scandir(path)) if os.path.isdir(path) else facts.st_size
    return InputFile(path=path, format=chosen, size_bytes=size, mtime_ns=facts.st_mtime_ns)


def _format_of(path: str) -> str | None:
    name = os.path.basename(path).lower()
    suffixes = [suffix for suffix in _SUFFIXES if name.endswith(suffix)]
    return _SUFFIXES[max(suffixes, key=len)] if suffixes else None
