"""A loader whose coordinator is stopped, and so cannot hear that its owner has died, is ended by its workers.

Nothing else would: a stopped process reads no socket, and the kernel's own way to tell a child of its parent's death
(PR_SET_PDEATHSIG, as workers have it) looks at the thread that started the child, which in an owner need not live long.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

__all__ = ["watch_owner"]

_GOODBYE_MS = 1000
"""How long a coordinator may take to end behind its owner's death; one that runs takes milliseconds."""


def watch_owner(owner_pid: int, coordinator_pid: int) -> None:
    """Kills the coordinator, this process's parent, where it outlives its owner; with it its workers die.

    Does nothing where the coordinator is dead already: this process is about to hear of it.

    Called by: the worker's main thread, once; the watch is a thread of its own that sleeps.
    """
    with contextlib.suppress(ProcessLookupError):
        coordinator = os.pidfd_open(coordinator_pid)
        if os.getppid() == coordinator_pid:  # else its number may be another's by now
            arguments = (owner_pid, coordinator)
            threading.Thread(target=_watch, args=arguments, name="o41td-owner-watch", daemon=True).start()


def _watch(owner_pid: int, coordinator: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        _is_dead(os.pidfd_open(owner_pid), None)
    if not _is_dead(coordinator, _GOODBYE_MS):
        signal.pidfd_send_signal(coordinator, signal.SIGKILL)


def _is_dead(pidfd: int, within_ms: int | None) -> bool:
    """Waits for a process's end, for ever with None."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_ms))
