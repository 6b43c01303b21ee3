"""Entry point of the coordinator process: ``python -P -m o41td.coordinator --socket N --workers K``.

It imports what its workers need before it forks them, so that all of them together pay for it once.
"""

import argparse
import gc
import signal
import sys

from o41td.workers.forking import stay_single_threaded
from o41td.workers.supervisor import ChildLog, connection_from, ignore_group_signals

_GC_THRESHOLD = 20_000


def main() -> int:
    """Serves one loader until its owner is gone."""
    parser = argparse.ArgumentParser(prog="o41td.coordinator")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    arguments = parser.parse_args()
    ignore_group_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the trainer ignores it, the kernel would reap our workers
    owner = connection_from(arguments.socket, blocking=False)
    stay_single_threaded()
    import o41td.workers.worker  # noqa: F401 - for the workers
    from o41td.coordinator.server import LoaderServer
    from o41td.coordinator.worker_pool import WorkerPool

    gc.freeze()  # what was imported stays; collections need not walk it
    gc.set_threshold(_GC_THRESHOLD)
    log = ChildLog()
    pool = WorkerPool(log, owner_pid=owner.peer_pid)
    try:
        for number in range(arguments.workers):
            pool.start(number)
        LoaderServer(owner, pool, log).run()
    finally:
        pool.end_all()
        owner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
