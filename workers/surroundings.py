"""What stores' libraries would find by themselves: environment variables, profile files, a host's metadata service.

Unless the user allows it, nothing is read from there. A worker is a process of ours that is started for this alone, so
its environment can be emptied: what is not there cannot be read, whatever a library's next release looks for.
"""

from __future__ import annotations

import os

__all__ = ["forget_surroundings"]

_KEPT = frozenset(
    {"HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "O41TD_PROFILE", "PATH", "PYTHONHASHSEED", "TMPDIR", "TZ"}
)
_SET = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "FSSPEC_CONFIG_DIR": os.devnull,
}


def forget_surroundings() -> None:
    """Empties this process's environment of what a store's library could read there.

    Called by: a worker, before it imports any such library.
    """
    for name in set(os.environ) - _KEPT:
        if not name.startswith("LC_"):
            del os.environ[name]
    os.environ.update(_SET)
