"""Which files a source names: globs and folders resolved to a sorted list of shards, by stated rules.

* A path without wildcard names that file; it must exist. `file://` URIs are local paths, percent-decoded; plain paths
  are taken literally (`%`, `#` and spaces mean themselves).
* A path that exists is taken as it stands even if it contains `*`, `?` or `[`.
* A folder stands for every shard below it; a glob (`**` crosses folders) for every match. Both list in sorted order and
  leave out hidden names, names that begin with `_` (`_SUCCESS`, `_metadata`), empty "folder" markers, and, for folders,
  names without a suffix of the source's encoding (case does not matter). A dangling link that matches is an error:
  somebody meant it to be there. Links to folders are followed; a folder that cannot be listed is an error.
* A folder that holds several splits of a written data set is refused: validation rows would be trained on.
* A folder of a Delta, Iceberg or Hudi table is refused: files of former versions lie beside those of the table's own.
* Files listed twice by one source are refused: a row would come twice an epoch.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from o41td.encodings import suffixes_of
from o41td.errors import ConfigError, MissingShardError
from o41td.folder_walk import check_globbed_folders, is_data_name, paths_below

__all__ = [
    "RECORDS_FOLDER",
    "is_local",
    "list_files",
    "local_path_of",
    "refuse_repeats",
    "refuse_splits",
]

RECORDS_FOLDER = "_o41td"
"""Where a written data set keeps completion records and registrations, below the manifest's folder."""


_NOT_REPLACED = "Write the path out: `~` and `$NAME` mean themselves here, and no variable is looked up"
_SPLITS_FOLDER = f"{RECORDS_FOLDER}/shards/"
_TABLE_MARKS = {"_delta_log": "Delta", ".hoodie": "Hudi"}


def is_local(uri: str) -> bool:
    """Whether `uri` names a file of this machine."""
    return "://" not in uri or uri.startswith(("file://", "local://"))


def local_path_of(uri: str) -> str:
    """Returns the path of a local shard: literal for plain paths, percent-decoded for `file://`."""
    if uri.startswith(("file://", "local://")):
        return unquote(urlsplit(uri).path)
    return uri


def list_files(entries: Sequence[str], *, source: str, encoding: str | None = None) -> list[str]:
    """Returns the local shards that `entries` name, in the listed order, each as an absolute path.

    Args:
        entries: Paths, folders and globs.
        source: The source's name, for errors.
        encoding: What the files of folders are to be; None takes every shard.

    Raises:
        MissingShardError: A named file, or any match of a glob, does not exist.
        ConfigError: Nothing matches, a file is named twice, or a folder is that of a table with versions.
        StorageError: A folder cannot be listed.
    """
    try:
        return _listed(entries, source, suffixes_of(encoding))
    except UnicodeError as error:
        raise ConfigError(
            f"source {source!r}: a file name cannot be told in this process's locale ({error})",
            advice="Run under a UTF-8 locale (LANG=C.UTF-8), or rename the file",
        ) from error


def _listed(entries: Sequence[str], source: str, suffixes: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        path = os.path.abspath(local_path_of(entry))
        if os.path.isdir(path):
            matches = _below(path, suffixes, source)
        elif os.path.lexists(path):
            matches = [path]
        elif glob.has_magic(path):
            matches = _matching(path, source)
        else:
            advice = _NOT_REPLACED if _looks_unreplaced(path) else None
            raise MissingShardError(source=source, shard=path, detail="there is no such file", advice=advice)
        if not matches:
            rules = (
                "Check the path. Hidden names and names that begin with '_' are left out, and a folder stands for "
                f"the files below it that end in {', '.join(suffixes)}"
            )
            raise ConfigError(
                f"source {source!r}: {entry!r} matches no file",
                advice=_NOT_REPLACED if _looks_unreplaced(path) else rules,
            )
        found.extend(matches)
    refuse_repeats(found, source)
    for path in found:
        if not os.path.exists(path):
            raise MissingShardError(source=source, shard=path, detail="this link points to a file that does not exist")
    return found


def _below(folder: str, suffixes: tuple[str, ...], source: str) -> list[str]:
    found: list[str] = []
    records: list[str] = []
    for path in paths_below(folder):
        inside = path[len(folder) :].lstrip("/")
        parts = inside.split("/")
        if _SPLITS_FOLDER in path:
            records.append(inside)
        table = _TABLE_MARKS.get(parts[-1])
        if path.endswith(".metadata.json") and parts[-2:-1] == ["metadata"]:
            table = "Iceberg"
        if table is not None:
            raise ConfigError(
                f"source {source!r}: {folder} holds a table of {table} ({inside}), so files of "
                "former versions and of deleted rows may lie there as well",
                advice="List the files that the table's own library names for the version you want",
            )
        if path.lower().endswith(suffixes) and is_data_name(parts) and not os.path.isdir(path):
            found.append(path)
    refuse_splits(records, folder, source)
    return sorted(found)


def _matching(pattern: str, source: str) -> list[str]:
    check_globbed_folders(pattern)
    fixed = pattern[: min(pattern.find(c) for c in "*?[" if c in pattern)]
    root = fixed[: fixed.rfind("/") + 1]  # every match begins with it
    matches = sorted(path for path in glob.iglob(pattern, recursive=True) if is_data_name(path[len(root) :].split("/")))
    files = [path for path in matches if not os.path.isdir(path)]
    if matches and not files:
        raise ConfigError(
            f"source {source!r}: {pattern!r} matches only folders, such as {matches[0]}",
            advice="Name the folder, which stands for the shards below it, or add /*.parquet to the pattern",
        )
    return files


def _looks_unreplaced(path: str) -> bool:
    return "$" in path or any(part.startswith("~") for part in path.split("/"))


def refuse_splits(names: Iterable[str], folder: str, source: str) -> None:
    """Refuses a folder that holds several splits of one written data set.

    Args:
        names: What lies below it, relative to it; data sets are known by what they keep of their shards.
        folder: The folder.
        source: The source's name, for errors.

    Raises:
        ConfigError: It does.
    """
    splits: dict[str, set[str]] = {}
    for name in names:
        place, mark, record = f"/{name}".partition(f"/{_SPLITS_FOLDER}")
        if mark and "/" in record:
            splits.setdefault(place.strip("/"), set()).add(record.partition("/")[0])
    for place, held in splits.items():
        if len(held) > 1:
            whole = "/".join(filter(None, (folder.rstrip("/"), place)))
            raise ConfigError(
                f"source {source!r}: {whole} holds the splits {', '.join(sorted(held))} of a written data set, and a "
                "folder stands for all of them",
                advice=(
                    f"Take one from the manifest, ManifestSource(manifest_uri=…, split={min(held)!r}), or name its own "
                    f"folder, {whole}/{min(held)}"
                ),
            )


def refuse_repeats(paths: Sequence[str], source: str) -> None:
    """Refuses a file that is named twice.

    Raises:
        ConfigError: One is.
    """
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise ConfigError(
                f"source {source!r}: {path} is listed more than once, so its rows would come more than once an epoch. "
                f"Leave one entry, or give it a higher weight."
            )
        seen.add(path)
