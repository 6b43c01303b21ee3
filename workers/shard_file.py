"""A shard as a file: opened, identified, and every failure said in one line that names it.

Local files are opened plainly and never memory-mapped: a mapped file that is cut short is a SIGBUS, an open one an
error. The file's size and mtime are looked at after it was opened, so they belong to what is read or to something
newer. Remote shards are read through `RemoteObjects`, which compares size and etag with every answer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from o41td.encodings import foreign_format_of
from o41td.errors import ChangedDataError, CorruptDataError, DataError, MissingShardError, StorageError
from o41td.index import version_of_etag
from o41td.listing import is_local, local_path_of
from o41td.workers.object_store import ObjectInfo, compares_answers

if TYPE_CHECKING:
    from o41td.workers.remote_objects import RemoteObjects

__all__ = [
    "ShardIdentity",
    "check_unchanged",
    "content_version",
    "failure_of",
    "not_parquet",
    "identity_of",
    "indexed_identity",
    "open_shard_file",
    "raise_failure",
    "remote_version",
]

_MARK = b"PAR1"
_HEAD_BYTES = 32 << 10
_TAIL_BYTES = 64 << 10
_SAMPLE_BYTES = 4 << 10
_NUM_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIdentity:
    """What tells a shard from one that replaced it: size and mtime of a local file, size and etag elsewhere."""

    size_bytes: int
    mtime_ns: int
    etag: str | None = None

    @property
    def info(self) -> ObjectInfo:
        """The same of a remote object."""
        return ObjectInfo(self.size_bytes, self.etag)

    def check(self, now: ShardIdentity, *, source: str | None, shard: str) -> None:
        """Compares the shard as it was indexed with the shard as it is now.

        Raises:
            ChangedDataError: They differ.
        """
        changes = []
        if now.size_bytes != self.size_bytes:
            changes.append(f"its size was {self.size_bytes} bytes and is {now.size_bytes}")
        if now.mtime_ns != self.mtime_ns:
            changes.append(f"its modification time was {self.mtime_ns} ns and is {now.mtime_ns} ns")
        if self.etag is not None and now.etag != self.etag:
            changes.append(f"its etag was {self.etag} and is {now.etag}")
        if changes:
            raise ChangedDataError(
                f"the shard changed after it was indexed: {', '.join(changes)}", source=source, shard=shard
            )


def identity_of(path: str, objects: RemoteObjects | None = None, *, source: str | None = None) -> ShardIdentity:
    """The identity of the shard at `path` now.

    Args:
        path: A local path, or the URI of a remote object.
        objects: Where remote shards are read, or None for this machine's files.
        source: The source's name, for errors.

    Raises:
        MissingShardError: There is no such file.
        CorruptDataError: It is a folder, a pipe or the like; nothing is opened, so a pipe that nobody writes does not
            block.
        StorageError: The store does not say.
    """
    try:
        if objects is not None:
            info = objects.stat(path)
            return ShardIdentity(size_bytes=info.size_bytes, mtime_ns=0, etag=info.etag)
        found = os.stat(path)
    except (OSError, DataError) as error:
        raise failure_of(error, source=source, shard=path) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "pipe, socket or device"
        raise CorruptDataError(f"this is a {kind}, not a file", source=source, shard=path)
    return ShardIdentity(size_bytes=found.st_size, mtime_ns=found.st_mtime_ns)


def indexed_identity(
    path: str,
    objects: RemoteObjects | None = None,
    *,
    source: str | None = None,
    size_bytes: int | None = None,
    mtime_ns: int | None = None,
    etag: str | None = None,
) -> ShardIdentity:
    """The identity that a shard had when it was indexed, which it must still have; without a size, the one of now.

    Raises:
        ChangedDataError: It is another one now.
        DataError: As `identity_of`.
    """
    if objects is not None and size_bytes is not None and compares_answers(path):
        return ShardIdentity(size_bytes=size_bytes, mtime_ns=0, etag=etag)
    now = identity_of(path, objects, source=source)
    if size_bytes is None:
        return now
    mtime_ns = now.mtime_ns if mtime_ns is None else mtime_ns
    indexed = ShardIdentity(size_bytes=size_bytes, mtime_ns=mtime_ns, etag=etag)
    indexed.check(now, source=source, shard=path)
    return indexed


def check_unchanged(
    identity: ShardIdentity, path: str, objects: RemoteObjects | None = None, *, source: str | None = None
) -> None:
    """Looks whether a local file is still the one of this identity; of a remote one every answer tells.

    Raises:
        ChangedDataError: It is not.
        DataError: As `identity_of`.
    """
    if objects is None:
        identity.check(identity_of(path, source=source), source=source, shard=path)


def open_shard_file(path: str) -> Any:
    """Opens a local shard for reading at any place; the caller closes it."""
    return pa.OSFile(os.fsencode(path), "rb")  # as bytes: file names need not be text, and Arrow takes text for UTF-8


def remote_version(identity: ShardIdentity, tail: Any) -> str:
    """What names a remote shard's content: its etag; where it has none, a digest of its size and its end.

    Args:
        identity: The shard's.
        tail: The last bytes of it.
    """
    if identity.etag is not None:
        return version_of_etag(identity.etag)
    digest = hashlib.blake2b(identity.size_bytes.to_bytes(8, "little"), digest_size=8)
    digest.update(tail)
    return digest.hexdigest()


def content_version(file: Any, identity: ShardIdentity) -> str:
    """A digest of size, head, tail (the footer) and 16 samples between: 16 hex digits.

    Derived from content, so a copy with another mtime has the same version and a rewritten file another one.
    """
    size = identity.size_bytes
    digest = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=8)
    middle = max(0, size - _HEAD_BYTES - _TAIL_BYTES)
    ranges = [(0, min(size, _HEAD_BYTES)), (max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))]
    ranges += [
        (_HEAD_BYTES + middle * sample // _NUM_SAMPLES, _SAMPLE_BYTES) for sample in range(_NUM_SAMPLES) if middle
    ]
    for start, length in ranges:
        file.seek(start)
        digest.update(file.read(length))
    return digest.hexdigest()


def failure_of(
    error: BaseException, *, source: str | None = None, shard: str, row_group: int | None = None
) -> DataError | StorageError:
    """Turns what a read raised into the error that names the shard and says why in one line."""
    if isinstance(error, DataError | StorageError):
        if isinstance(error, DataError) and error.source is None:
            error.source = source  # the storage thread knows objects, and not whose they are
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return MissingShardError(source=source, shard=shard)
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return MissingShardError(f"the shard cannot be opened: {os.strerror(code or 0)}", source=source, shard=shard)
    if isinstance(error, PermissionError) or code is not None:
        return StorageError(
            f"the shard cannot be read: {reason if code is None else os.strerror(code)}",
            uri=shard,
            advice="Check the file's permissions and its disk",
        )
    if "crypt" in reason.lower():
        reason = f"it is encrypted ({reason})"
    if row_group is None:
        return not_parquet(reason, source=source, shard=shard)
    return CorruptDataError(
        f"the row group cannot be decoded: {reason}", source=source, shard=shard, row_group=row_group
    )


def not_parquet(reason: str, *, source: str | None, shard: str) -> CorruptDataError:
    """Returns the error of a shard that is no Parquet file, with what to do about one whose format is known."""
    if "magic bytes not found" in reason and _begins_as_parquet(shard):
        reason = "it begins as one, and its end is missing: it was cut short, or is still being written"
    known = foreign_format_of(shard)
    advice = f"Its suffix says {known}: `o41td write {shard} --to FOLDER` makes shards of it" if known else None
    if advice is None and shard.lower().endswith(".json"):
        advice = "Its suffix says json: a manifest is a source's `manifest_uri`, and not one of its files"
    return CorruptDataError(
        f"the shard is no readable Parquet file: {reason}", source=source, shard=shard, advice=advice
    )


def _begins_as_parquet(shard: str) -> bool:
    """Whether a local file has Parquet's mark at its beginning; false of any that cannot be read."""
    if not is_local(shard):
        return False
    try:
        with open(local_path_of(shard), "rb") as file:
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False


def raise_failure(error: BaseException, *, source: str | None, shard: str, row_group: int | None = None) -> NoReturn:
    """Raises the error of `failure_of`; running out of memory and being interrupted stay what they are."""
    if isinstance(error, MemoryError):
        raise error
    raise failure_of(error, source=source, shard=shard, row_group=row_group) from error
