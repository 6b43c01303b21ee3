"""Serving a loader under a name: the process that owns its coordinator, and starts another when that dies.

The ranks are not its concern: they join the coordinator themselves, and go on from their own cursors with a new one.

Called by: `o41td serve`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from o41td.config import BatchStreamConfig, StorageConfig
from o41td.coordinator_process import Progress
from o41td.error_records import error_from_record
from o41td.errors import ConfigError, CoordinatorError
from o41td.job import job_of
from o41td.joining import served_loader
from o41td.rank_info import check_rank
from o41td.runtime_folder import NameTaken, claimed_name
from o41td.service import Loader, LoaderRequest, start_loader
from o41td.workers.channel import ChannelClosed
from o41td.workers.messages import LoaderFailed, LoaderNotice, StatsRequest

__all__ = ["keep_serving", "request_to_serve", "served_name", "served_ranks_of"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_RANKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_SHORT_LIFE_S = 10.0
_LAST_BREATH_S = 5.0
"""How long the coordinator of a server that was killed may take to end."""
_LOOK_AGAIN_S = 0.05
_MAX_SHORT_LIVES = 5


def served_ranks_of(text: str, world_size: int | None = None) -> tuple[tuple[int, ...], int]:
    """Returns the ranks that `--ranks` names, and the world size: "8" is 0 to 7 of 8, "8-15" needs a world size.

    Raises:
        ConfigError: It makes no sense.
    """
    match = _RANKS.fullmatch(text)
    if match is None:
        raise _senseless_ranks(text, "is none: give a number of ranks, such as 8, or a range, such as 8-15")
    first, last = int(match[1]), match[2]
    if last is None:
        if world_size not in (None, first):
            raise _senseless_ranks(
                text, f"are all ranks of {first}; of a world of {world_size}, give a range such as 0-7"
            )
        if not first:
            raise _senseless_ranks(text, "is no rank at all: give a number of ranks, such as 8")
        return tuple(range(first)), first
    if world_size is None:
        raise _senseless_ranks(text, "is a range: say of how many ranks, with --world-size")
    check_rank(int(last), world_size)
    if int(last) < first:
        raise _senseless_ranks(text, "ends before it begins")
    return tuple(range(first, int(last) + 1)), world_size


def request_to_serve(
    config: BatchStreamConfig,
    name: str,
    ranks: tuple[int, ...],
    world_size: int,
    *,
    storage: StorageConfig | None = None,
) -> LoaderRequest:
    """Returns the request for a loader that those ranks can join under `name`; `storage` says how to reach stores.

    Raises:
        ConfigError: The name is none, or the config asks for something that this version does not have.
    """
    if not _NAME.fullmatch(name):
        problem = f"{name!r} is none: up to 64 letters, digits, dots, dashes and underscores"
        raise ConfigError("a loader needs a name to be found by", problems=[("name", problem)])
    return LoaderRequest(
        job=job_of(config, lanes=config.lanes or world_size),
        ranks=ranks,
        world_size=world_size,
        name=name,
        config=config.to_document(),
        storage=None if storage is None else storage.secret_record(),
    )


@contextmanager
def served_name(name: str) -> Iterator[None]:
    """Has a name for loaders of this process alone, inside the block.

    Blocks: where a server of that name was killed, until its processes have ended too, seconds at most.

    Raises:
        ConfigError: Another process serves under it.
    """
    try:
        with claimed_name(name):
            _outwait_orphan(name)
            yield
    except NameTaken as taken:
        raise ConfigError(
            "this name is taken",
            problems=[("name", f"{name!r} is served by process {taken}")],
            advice="End that one, or take another name",
        ) from None


def _outwait_orphan(name: str) -> None:
    """Waits for the end of a loader whose server has died."""
    deadline_s = time.monotonic() + _LAST_BREATH_S
    while (orphan := served_loader(name)) is not None:
        if time.monotonic() > deadline_s:
            raise NameTaken(str(orphan.pid))
        time.sleep(_LOOK_AGAIN_S)


def keep_serving(
    request: LoaderRequest,
    *,
    on_open: Callable[[Loader], None],
    on_notice: Callable[[str], None],
    progress: Progress | None = None,
) -> None:
    """Serves until an exception, such as that of a signal, ends it; the loader's processes have ended by then.

    Args:
        request: What to serve.
        on_open: Called when ranks can join, anew after each death of a coordinator.
        on_notice: Called with what is worth telling.
        progress: As for `open_batch_stream`.

    Blocks: for good.

    Raises:
        O41Error: It cannot be opened, or cannot go on.
    """
    num_short_lives = 0
    has_opened = False
    while True:
        began_s = time.monotonic()
        try:
            loader = start_loader(request, progress=progress)
        except CoordinatorError as error:
            if not has_opened:
                raise
            words = str(error)
        else:
            try:
                on_open(loader)
                _watch(loader, request.job.stall_timeout_s, on_notice)
            finally:
                words = loader.end()
            has_opened = True
            request = replace(request, known_sources=[source.to_record() for source in loader.sources])
        num_short_lives = num_short_lives + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 0
        if num_short_lives >= _MAX_SHORT_LIVES:
            raise CoordinatorError(
                f"the loader's coordinator died {num_short_lives} times in a row within {_SHORT_LIFE_S:g} s",
                log_tail=words,
            )
        on_notice(f"the loader's coordinator is replaced: {words}")


def _watch(loader: Loader, stall_timeout_s: float, on_notice: Callable[[str], None]) -> None:
    """Passes on what a coordinator tells, until it is dead; one that gives no sign of life for long is killed.

    Raises:
        O41Error: It cannot go on.
    """
    is_asked = False
    while True:
        try:
            message = loader.channel.receive(stall_timeout_s / 2)
            is_asked = False
        except TimeoutError:
            if is_asked:
                on_notice(f"the loader's coordinator has been silent for {stall_timeout_s:g} s and is killed")
                loader.kill()
                return
            is_asked = True
            try:
                loader.channel.send(StatsRequest(0))
            except ChannelClosed:
                return
            continue
        except ChannelClosed:
            return
        if isinstance(message, LoaderFailed):
            raise error_from_record(message.error)
        if isinstance(message, LoaderNotice):
            on_notice(message.text)


def _senseless_ranks(text: str, problem: str) -> ConfigError:
    return ConfigError("these ranks do not make sense", problems=[("ranks", f"{text!r} {problem}")])
