"""Writes a text file atomically and reads it back: the disk side of a checkpoint."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from o41td.durable_files import force_folder
from o41td.errors import CheckpointError

__all__ = ["read_text", "replace_text"]

_DEFAULT_MODE = 0o644
_STALE_S = 3600


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Puts a text in a file's place in one step.

    The text is written to a file beside it, forced to disk, and renamed over it; then the folder is forced to disk. A
    kill or a power loss at any moment leaves the old file or the new one. What a kill leaves beside it
    (`.NAME.*.tmp`) is removed by a later call, an hour later at the earliest so that no other writer is disturbed.

    Blocks: on the disk.

    Args:
        path: The file; a link is followed. An existing file keeps its mode, a new one gets 0644.
        text: ASCII text.

    Raises:
        OSError: It cannot be written; the old file is untouched.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mode = _DEFAULT_MODE
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with open(descriptor, "w", encoding="ascii", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            written_s = os.fstat(descriptor).st_mtime
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    force_folder(target.parent)
    _remove_stale(target, written_s)


def read_text(path: str | os.PathLike[str], *, max_bytes: int) -> bytes:
    """The bytes of a checkpoint's file.

    Raises:
        CheckpointError: It cannot be read, or is longer than `max_bytes`; the error says why.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointError("there is no such checkpoint file", path=path, advice="Check the path") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"the checkpoint file cannot be read: {reason}", path=path) from None
    if len(data) > max_bytes:
        raise CheckpointError(f"this is not an o41td checkpoint: it is longer than {max_bytes} bytes", path=path)
    return data


def _remove_stale(target: Path, now_s: float) -> None:
    """Removes what killed writers of the same file left, by the file system's own clock."""
    prefix = f".{target.name}."
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if now_s - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                        os.unlink(entry.path)
