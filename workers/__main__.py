"""Entry point of a worker process: ``python -P -m o41td.workers --socket N --worker K --owner PID``."""

import argparse
import sys

from o41td.workers.owner_watch import watch_owner
from o41td.workers.supervisor import OUT_OF_MEMORY, become_worker, connection_from, ignore_group_signals


def main() -> int:
    """Works until the coordinator is gone."""
    parser = argparse.ArgumentParser(prog="o41td.workers")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--worker", type=int, required=True, help="its number, for those who read a process list")
    parser.add_argument("--owner", type=int, required=True, help="the process that the loader is for")
    arguments = parser.parse_args()
    ignore_group_signals()
    become_worker()
    channel = connection_from(arguments.socket, blocking=True)
    watch_owner(arguments.owner, channel.peer_pid)
    try:
        import pyarrow as pa

        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        from o41td.workers.worker import Worker

        Worker(channel).run()
    except MemoryError:
        return OUT_OF_MEMORY  # a new process has more room than one that has run out
    return 0


if __name__ == "__main__":
    sys.exit(main())
