"""Runs as `sitecustomize` at the start of every Python process of a `FaultyHost`: faults on order. Imports none of us.

A fault has a name and lies as a file of that name in the folder O41TD_FAULTS: "MODULE ACT TIMES". Processes whose
arguments hold MODULE come to these points, and do ACT there, TIMES times in all; the file NAME.done grows by a byte
each time.

* ``start``: the process starts, or a forked worker begins to work, or a forked coordinator calls `start`;
* the file name of a shard: the process looks at it with `os.stat`;
* ``call.QUALNAME`` or ``return.QUALNAME``: a function of that name is called or returns, on any thread, from the first
  look at a shard on (a training script calls `watch` itself). ``return.QUALNAME.KIND``: where one of its argument
  `messages` is of that class;
* ``signal``: the process is sent SIGRTMIN, and its main thread hears of it.

A file ``clock`` holds by how many seconds the wall clock of all these processes is wrong.
"""

import os
import signal
import sys
import threading
import time

POINTS = {
    "Assembler._assemble_next",
    "BatchFeed.close",
    "BatchStream.next",
    "Channel.send",
    "ServingPhase._send_batches",
    "ShardReader.read_rows",
    "TaskDesk.next_for",
    "WorkerCrew.give",
    "WorkerPool.end_all",
    "ColumnWriter.write",
    "start_child",
}
_HEADROOM_BYTES = 64 << 20

_stat = os.stat
_getuid = os.getuid
_time = time.time


def _file(name):
    """The path of a file of this host's orders: a fork may be of another host than what it was forked from."""
    return os.path.join(os.environ["O41TD_FAULTS"], name)


def _arguments():
    """Return this process's arguments: those that it shows, which a forked worker has changed."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().decode().split("\0")


def _due(name):
    """Return the act that is ordered under a name and not yet done as often as it should be, else None."""
    try:
        with open(_file(name)) as file:
            module, act, times = file.read().split()
    except FileNotFoundError:
        return None
    if module not in _arguments():
        return None
    done = os.open(_file(name + ".done"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(done, b"x")
        # Where our own byte ends: where the file ends, several that come at once would each see the others' too.
        return act if os.lseek(done, 0, os.SEEK_CUR) <= int(times) else None
    finally:
        os.close(done)


def _come_to(name):
    act = _due(name)
    if act:
        _do(act)


def _do(act):
    if act == "raise":
        raise RuntimeError("a fault on order")
    if act == "exit":
        os._exit(0)
    if act == "fail":
        os.write(2, b"a fault on order\n")
        os._exit(1)
    if act == "memory":
        _run_out_of_memory()
    if act.startswith("write:"):
        me = _arguments()
        os.write(int(me[me.index("--socket") + 1]), bytes.fromhex(act.partition(":")[2]))
        return
    if act.startswith("sleep:"):
        time.sleep(float(act.partition(":")[2]))
        return
    os.kill(os.getpid(), getattr(signal, act))
    while act != "SIGSTOP":
        time.sleep(1)


def _run_out_of_memory():
    """Raise MemoryError as the system makes it: an allocation beyond RLIMIT_AS."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _HEADROOM_BYTES, before[1]))
    try:
        bytearray(4 * _HEADROOM_BYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def watch():
    """Look at every call and return of this thread, and of threads that start from now on."""
    sys.setprofile(_profile)
    threading.setprofile(_profile)


def _profile(frame, event, _argument):
    if event not in ("call", "return"):
        return
    name = frame.f_code.co_qualname
    if name not in POINTS:
        return
    _come_to(f"{event}.{name}")
    for message in frame.f_locals.get("messages", ()):
        _come_to(f"{event}.{name}.{type(message).__name__}")


def _watched_stat(path, *arguments, **keys):
    if isinstance(path, str) and path.endswith(".parquet"):
        if sys.getprofile() is None and os.path.exists(_file("profiled")):
            watch()
        _come_to(os.path.basename(path))
    return _stat(path, *arguments, **keys)


def _watched_getuid():
    """A coordinator asks for it between its answer to the trainer and its first order."""
    if "o41td.coordinator" in _arguments():
        if sys.getprofile() is None and os.path.exists(_file("profiled")):
            watch()
        _come_to("getuid")
    return _getuid()


class _FailingImport:
    """Raises where a process imports its own code: what this file itself raises, Python prints and forgets."""

    def __init__(self, act):
        self._act = act

    def find_spec(self, name, _path=None, _target=None):
        if name in ("o41td.workers.worker", "o41td.coordinator.server"):
            _do(self._act)


def _wrong_time():
    try:
        with open(_file("clock")) as file:
            return _time() + float(file.read() or 0)
    except FileNotFoundError:
        return _time()


def _watch_birth():
    """A forked worker starts where it begins to work."""
    profile = sys.getprofile()

    def wait_for_work(frame, event, _argument):
        if event == "call" and frame.f_code.co_qualname == "work":
            sys.setprofile(profile)
            _come_to("start")

    sys.setprofile(wait_for_work)


def start():
    """Do what is ordered of the start of this process, a fork that has imported its own code already."""
    _come_to("start")


time.time = _wrong_time
os.register_at_fork(after_in_child=_watch_birth)
os.stat = _watched_stat
os.getuid = _watched_getuid
signal.signal(signal.SIGRTMIN, lambda _number, _frame: _come_to("signal"))
_first_act = _due("start") if "O41TD_FAULTS" in os.environ else None
if _first_act in ("raise", "memory"):
    sys.meta_path.insert(0, _FailingImport(_first_act))
elif _first_act:
    _do(_first_act)
