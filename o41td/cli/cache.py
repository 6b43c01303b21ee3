"""`o41td cache`: what a block cache holds, and how it is emptied."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from o41td.cli.console import open_console
from o41td.cli.failure import UsageProblem
from o41td.cli.wording import bytes_text, counted_text, duration_text
from o41td.workers.block_cache_folder import CacheFolder

__all__ = ["show_cache"]


def show_cache(cache_dir: Path, *, clear: bool, as_json: bool) -> None:
    """Print how many files a cache holds, their bytes on disk, and when they were used; or remove them.

    Args:
        cache_dir: a config's `cache_dir`.
        clear: remove every file of the cache, and nothing else; running loaders go on, and keep new ones.
        as_json: for programs.

    Raises:
        UsageProblem: There is no such folder, or a file of it may not be removed.

    Blocks: for some microseconds a file.
    """
    if not os.path.isdir(cache_dir):
        raise UsageProblem(f"{cache_dir} is no folder; give a config's cache_dir")
    folder = CacheFolder(str(cache_dir))
    files = list(folder.files())
    num_files, num_bytes = len(files), sum(file.num_bytes for file in files)
    if clear:
        try:
            cleared = folder.clear()
        except OSError as error:
            raise UsageProblem(f"{cache_dir} cannot be cleared: {error}") from error
        num_files, num_bytes = cleared.num_files, cleared.num_bytes
    oldest_s, newest_s = (choose((file.used_ns / 1e9 for file in files), default=None) for choose in (min, max))
    if as_json:
        uses = {"oldest_use": oldest_s, "newest_use": newest_s}
        record = {"dir": str(cache_dir), "files": num_files, "bytes": num_bytes, **uses, "cleared": clear}
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
        return
    text = f"{cache_dir}: {'removed ' if clear else ''}{counted_text(num_files, 'file')}, {bytes_text(num_bytes)}"
    if oldest_s is not None and newest_s is not None and not clear:
        oldest, newest = (duration_text(max(0.0, time.time() - used_s)) for used_s in (oldest_s, newest_s))
        text += f"; used last between {oldest} and {newest} ago"
    open_console().print(text, soft_wrap=True)
