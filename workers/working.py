"""A worker process's life, however it was started."""

from o41td.workers.owner_watch import watch_owner
from o41td.workers.supervisor import OUT_OF_MEMORY, become_worker, connection_from, ignore_group_signals

__all__ = ["work"]


def work(descriptor: int, *, owner_pid: int) -> int:
    """Does what comes over the socket inherited as `descriptor`, until its other end is closed.

    Returns:
        The exit code where the process is out of memory; else the process is ended from within.
    """
    ignore_group_signals()
    become_worker()
    channel = connection_from(descriptor, blocking=True)
    watch_owner(owner_pid, channel.peer_pid)
    try:
        import pyarrow as pa

        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        from o41td.workers.worker import Worker

        Worker(channel).run()
    except MemoryError:
        return OUT_OF_MEMORY  # a new process has more room than one that has run out
    return 0
