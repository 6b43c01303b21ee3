"""`o41td serve`: a loader for all ranks of this host, in the foreground, until a signal ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from o41td.cli.ending import AskedToEnd, asked_to_end
from o41td.cli.progress import opening_shown
from o41td.cli.wording import count_text
from o41td.service import Loader, LoaderRequest
from o41td.sizes import human_bytes

__all__ = ["serve_config"]


def serve_config(
    config_path: Path,
    *,
    name: str,
    ranks: str,
    world_size: int | None,
    storage_path: Path | None = None,
    as_json: bool,
) -> None:
    """Serve the config's stream under a name until Ctrl-C, SIGTERM or SIGHUP, which is how it is meant to end.

    Args:
        config_path: the config.
        name: what `connect` finds it by.
        ranks: as `served_ranks_of` takes them.
        world_size: how many ranks there are on all hosts; None where `ranks` says it.
        storage_path: settings to reach remote storage; None where all is local.
        as_json: print a JSON line when it is ready, for programs.

    Raises:
        O41Error: The config, the data or this host do not allow it, or the loader cannot go on.

    Blocks: until then.
    """
    from o41td import BatchStreamConfig
    from o41td.cli.storage import storage_of
    from o41td.serving import keep_serving, request_to_serve, served_name, served_ranks_of

    config = BatchStreamConfig.load(config_path)
    request = request_to_serve(config, name, *served_ranks_of(ranks, world_size), storage=storage_of(storage_path))
    console = Console(stderr=True, highlight=False)
    try:
        with asked_to_end(), served_name(name), opening_shown(Console(stderr=True, quiet=as_json)) as on_footer:
            keep_serving(
                request,
                on_open=lambda loader: _tell_ready(request, loader, as_json=as_json),
                on_notice=lambda text: console.print(text, markup=False, soft_wrap=True),
                progress=on_footer,
            )
    except AskedToEnd as asked:
        console.print(f"{asked.word}: {name} is served no more.", markup=False)


def _tell_ready(request: LoaderRequest, loader: Loader, *, as_json: bool) -> None:
    """One line on stdout, for whoever waits for it before the trainers start."""
    record: dict[str, Any] = {
        "name": request.name,
        "pid": loader.coordinator_pid,
        "ranks": list(request.ranks),
        "world_size": request.world_size,
        "arena_bytes": loader.layout.total_bytes,
        "bound_bytes": loader.bound["bound_bytes"],
    }
    if as_json:
        print(json.dumps(record), flush=True)  # noqa: T201 - a program reads this
        return
    first, last = request.ranks[0], request.ranks[-1]
    which = f"rank {first}" if first == last else f"ranks {first} to {last}"
    print(  # noqa: T201 - a script waits for it
        f"Ready: {request.name} serves {which} of {request.world_size}, from an arena of "
        f"{human_bytes(loader.layout.total_bytes)} (pid {loader.coordinator_pid}, "
        f"{count_text(sum(source.num_rows for source in loader.sources))} rows).",
        flush=True,
    )
