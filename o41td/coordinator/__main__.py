"""Entry point of the coordinator process: ``python -P -m o41td.coordinator --socket N --workers K``.

Workers are started before anything large is imported here: they take longest to be ready.
"""

import argparse
import gc
import sys

from o41td.coordinator.worker_pool import WorkerPool
from o41td.workers.supervisor import ChildLog, connection_from, ignore_group_signals

_GC_THRESHOLD = 20_000


def main() -> int:
    """Serves one loader until its owner is gone."""
    parser = argparse.ArgumentParser(prog="o41td.coordinator")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    arguments = parser.parse_args()
    ignore_group_signals()
    owner = connection_from(arguments.socket, blocking=False)
    log = ChildLog()
    pool = WorkerPool(log, owner_pid=owner.peer_pid)
    try:
        for number in range(arguments.workers):
            pool.start(number)
        from o41td.coordinator.server import LoaderServer

        gc.freeze()  # what was imported stays; collections need not walk it
        gc.set_threshold(_GC_THRESHOLD)
        LoaderServer(owner, pool, log).run()
    finally:
        pool.end_all()
        owner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
