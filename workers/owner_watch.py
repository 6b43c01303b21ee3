"""A loader whose coordinator is stopped, and so cannot hear that its owner has died, is ended by its workers.

Nothing else would: a stopped process reads no socket, and the kernel's own way to tell a child of its parent's death
(PR_SET_PDEATHSIG, as workers have it) looks at the thread that started the child, which in an owner need not live long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from o41td.workers.supervisor import is_dead

__all__ = ["watch_owner"]

_GOODBYE_S = 1.0
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
        is_dead(os.pidfd_open(owner_pid), within_s=None)
    if not is_dead(coordinator, within_s=_GOODBYE_S):
        signal.pidfd_send_signal(coordinator, signal.SIGKILL)
