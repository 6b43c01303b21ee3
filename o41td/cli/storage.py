"""The option `--storage`: a file of settings, which no command line shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from o41td import StorageConfig

__all__ = ["storage_of"]


def storage_of(path: Path | None) -> StorageConfig | None:
    """Returns the settings in a file; None where none is named.

    Raises:
        ConfigError: The file cannot be read, or makes no sense.
    """
    from o41td import StorageConfig

    return None if path is None else StorageConfig.load(path)
