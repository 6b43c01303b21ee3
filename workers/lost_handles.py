"""Files of network file systems: an open handle may be lost, though the file is not, and opened anew is read on.

A server that was restarted or failed over answers ESTALE to the handles of before. Whoever reads local files comes by
here: whole reads are done again by `again_if_lost`, and a `LocalFile` reads on where it stood.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from o41td.errors import ChangedDataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["LocalFile", "again_if_lost"]

T = TypeVar("T")


def again_if_lost(read: Callable[[], T], *, reopen: Callable[[], object] = lambda: None) -> T:
    """Returns what a read of local files brings; where a handle was lost, what it brings the second time.

    Args:
        read: Reads; with what it opens itself, or what `reopen` opens.
        reopen: Opens anew what is open, and looks whether it is the same file.

    Raises:
        OSError: As `read`, whose handle was lost twice, or which failed for another reason.

    Blocks: On the file system.
    """
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    reopen()
    return read()


class LocalFile(io.FileIO):
    """A file of this machine, open for reading; where its handle is lost, it goes on from its place with another.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, "rb")
        self._is_of = _identity_of(self.fileno())

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads on, into a buffer; 0 at the end.

        Raises:
            ChangedDataError: Its handle was lost, and another file has its name now.
            OSError: It cannot be read.
        """
        return again_if_lost(lambda: os.readv(self.fileno(), [buffer]), reopen=self._reopen)

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, by way of `readinto`, which FileIO's own way passes by."""
        return bytes(io.RawIOBase.read(self, -1 if size is None else size) or b"")

    def readall(self) -> bytes:
        """The rest."""
        return bytes(io.RawIOBase.readall(self) or b"")

    def _reopen(self) -> None:
        """Puts a new handle in the place of the old one, under the same number."""
        fresh = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _identity_of(fresh) != self._is_of:
                raise ChangedDataError("the shard was replaced while it was read", shard=self.name)
            os.lseek(fresh, self.tell(), os.SEEK_SET)
            os.dup2(fresh, self.fileno(), inheritable=False)
        finally:
            os.close(fresh)


def _identity_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
