"""Where a data set lies: a folder in which a name is made once, whole, or not at all.

    draft ──write──► a local file nobody sees ──publish──► a shard under its name
    create ────────► a small document, or false where there is one of that name already

Everything that must happen only once rests on `create`: a link on a local file system, a conditional put on S3.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from o41td.durable_files import force_folder
from o41td.errors import O41Error, StorageError
from o41td.listing import is_local, local_path_of
from o41td.made_folders import MadeFolders
from o41td.storage_config import StorageConfig
from o41td.workers.object_store import StorageSettings
from o41td.workers.retry import StoreFault
from o41td.workers.s3_options import s3_options

__all__ = ["DataFolder", "LocalFolder", "RemoteFolder", "open_folder", "told_as_storage"]

_STALE_S = 3600.0
_DRAFT_PREFIX = ".o41td-draft-"


class DataFolder(ABC):
    """A folder of a data set; names are relative, with slashes.

    Attributes:
        uri: The folder itself.
    """

    uri: str

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Makes a document, durable, unless there is one of that name; returns whether it was made.

        Blocks: on the store.
        """

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns a document, None where there is none.

        Blocks: on the store.
        """

    @abstractmethod
    def publish(self, draft: Path, name: str) -> None:
        """Gives a draft its name, whole and durable; the draft is gone afterwards.

        Blocks: on the store.
        """

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Returns the size of every file whose name begins with the prefix, a folder with its slash; drafts left out.

        Blocks: on the store.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""

    @abstractmethod
    def remove_old_drafts(self) -> int:
        """Removes the drafts that ended processes left an hour ago or more; returns how many."""

    @abstractmethod
    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Yields the path of a new local file; what is left of it at the end is removed.

        Where it ends in an error, folders that were made for it and are empty go as well.
        """

    @abstractmethod
    def remove_empty_folders(self) -> None:
        """Removes the folders that were made here and hold nothing: what a job that comes to nothing would leave."""

    def at(self, name: str) -> str:
        """The URI of a name."""
        return f"{self.uri.rstrip('/')}/{name}"


def open_folder(uri: str, storage: StorageConfig | None = None) -> DataFolder:
    """Returns a folder, which need not be there yet.

    Args:
        uri: A local path, or a URI that fsspec knows.
        storage: How to reach a remote one.

    Raises:
        StorageError: There is no such kind of storage.
    """
    if is_local(uri):
        return LocalFolder(Path(os.path.abspath(local_path_of(uri))))
    return RemoteFolder(uri, storage)


class LocalFolder(DataFolder):
    """A folder of this machine, or of a file system that knows hard links and renames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        self._folders = MadeFolders()

    def create(self, name: str, data: bytes) -> bool:
        """See `DataFolder`."""
        target = self.path / name
        with self.draft() as draft, told_as_storage(target):
            _write_durably(draft, data)
            self._folders.make(target.parent)
            try:
                os.link(draft, target)
            except FileExistsError:
                return False
            force_folder(target.parent)
        return True

    def read(self, name: str) -> bytes | None:
        """See `DataFolder`."""
        with told_as_storage(self.path / name):
            try:
                return (self.path / name).read_bytes()
            except FileNotFoundError:
                return None

    def publish(self, draft: Path, name: str) -> None:
        """See `DataFolder`."""
        target = self.path / name
        with told_as_storage(target):
            self._folders.make(target.parent)
            _force_file(draft)
            os.replace(draft, target)
            force_folder(target.parent)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `DataFolder`."""
        found: dict[str, int] = {}
        for folder, _, names in os.walk(self.path / prefix):
            for name in names:
                path = Path(folder, name)
                if not name.startswith(_DRAFT_PREFIX):
                    with contextlib.suppress(FileNotFoundError):
                        found[str(path.relative_to(self.path))] = path.stat().st_size
        return found

    def remove(self, name: str) -> None:
        """See `DataFolder`."""
        with told_as_storage(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def remove_old_drafts(self) -> int:
        """See `DataFolder`."""
        now = time.time()
        removed = 0
        for draft in self.path.glob(f"{_DRAFT_PREFIX}*"):
            with contextlib.suppress(OSError):
                if now - draft.stat().st_mtime > _STALE_S:
                    draft.unlink()
                    removed += 1
        return removed

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """See `DataFolder`."""
        path = self.path / f"{_DRAFT_PREFIX}{secrets.token_hex(8)}"
        try:
            with told_as_storage(self.path):
                self._folders.make(self.path)
            yield path
        except BaseException:
            _unlink(path)
            self.remove_empty_folders()
            raise
        _unlink(path)

    def remove_empty_folders(self) -> None:
        """See `DataFolder`."""
        self._folders.remove_empty()


class RemoteFolder(DataFolder):
    """A prefix of an object store, through fsspec. Objects appear whole, so drafts are local files.

    Args:
        uri: The prefix.
        storage: Endpoint and credentials for S3; nothing is read from the environment unless it says so.
    """

    def __init__(self, uri: str, storage: StorageConfig | None = None) -> None:
        import fsspec

        self.uri = uri.rstrip("/")
        protocol = uri.partition("://")[0]
        options = {"use_listings_cache": False, "skip_instance_cache": True}
        if protocol in ("s3", "s3a"):
            options = _s3_options(uri, storage or StorageConfig())
        with told_as_storage(uri):
            self._files: Any = fsspec.filesystem(protocol, **options)
            self._root = str(self._files._strip_protocol(self.uri)).rstrip("/")  # noqa: SLF001 - fsspec's own way to do it

    def create(self, name: str, data: bytes) -> bool:
        """See `DataFolder`."""
        with told_as_storage(self.at(name)):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if _is_refused_condition(error):
                    return False
                raise
        return True

    def read(self, name: str) -> bytes | None:
        """See `DataFolder`."""
        with told_as_storage(self.at(name)):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def publish(self, draft: Path, name: str) -> None:
        """See `DataFolder`."""
        with told_as_storage(self.at(name)):
            self._files.put_file(str(draft), self._path(name))
        draft.unlink(missing_ok=True)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `DataFolder`."""
        with told_as_storage(self.at(prefix)):
            found = self._files.find(self._path(prefix).rstrip("/"), detail=True)
        return {path[len(self._root) + 1 :]: int(entry["size"]) for path, entry in found.items()}

    def remove(self, name: str) -> None:
        """See `DataFolder`."""
        with told_as_storage(self.at(name)), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_old_drafts(self) -> int:
        """See `DataFolder`. Drafts are temporary files of this machine, which it clears away itself."""
        return 0

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """See `DataFolder`."""
        with tempfile.TemporaryDirectory(prefix="o41td-") as folder:
            yield Path(folder, "draft")

    def remove_empty_folders(self) -> None:
        """See `DataFolder`. An object store has none."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _s3_options(uri: str, storage: StorageConfig) -> dict[str, Any]:
    try:
        return s3_options(StorageSettings.from_record(storage.secret_record()))
    except StoreFault as fault:
        raise StorageError(fault.answer, uri=uri, advice="Pass a StorageConfig, or --storage FILE") from fault


def _is_refused_condition(error: OSError) -> bool:
    """Whether a store says that there is an object of that name, or that somebody is just making one."""
    answer = getattr(error.__cause__, "response", None) or getattr(error, "response", None) or {}
    code = str(answer.get("Error", {}).get("Code", ""))
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


@contextlib.contextmanager
def told_as_storage(what: str | Path) -> Iterator[None]:
    """Turns an OSError into a `StorageError` that names the object."""
    try:
        yield
    except O41Error:
        raise
    except OSError as error:
        raise StorageError(
            f"it cannot be written or read: {error.strerror or error}",
            uri=what,
            advice="Name a folder with room that you can write to",
        ) from error


def _unlink(path: Path) -> None:
    """Removes a file that may be gone, or never have been."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _force_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
