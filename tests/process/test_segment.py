"""The segment across real processes: mapped by descriptor, killed at any point, on a full /dev/shm."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from leaks import shared_memory_names
from o41td.errors import SharedMemoryError
from o41td.shm.layout import ArenaLayout, plan_arena
from o41td.shm.segment import Segment, create_segment, map_arena

FIELDS = [("tokens", "<i4", (500,)), ("label", "<f8", ())]
KINDS = ("shm", "memfd")


def layout_of(num_slots: int = 4, block_rows: int = 100) -> ArenaLayout:
    """Plan a small arena of two fields."""
    return plan_arena(FIELDS, num_slots=num_slots, block_rows=block_rows)


def run_python(code: str, *arguments: str, prefix: tuple[str, ...] = (), **options) -> subprocess.CompletedProcess[str]:
    """Run dedented code in a Python of its own, started through `prefix`."""
    command = [*prefix, sys.executable, "-P", "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


CHILD = """
    import sys
    import numpy as np
    from o41td.shm.layout import plan_arena
    from o41td.shm.segment import map_arena
    layout = plan_arena([("tokens", "<i4", (500,)), ("label", "<f8", ())], num_slots=4, block_rows=100)
    arena = map_arena(int(sys.argv[1]), layout, writable=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_sees_the_same_bytes(kind):
    """What a process writes into its mapping of the descriptor is what another reads, silently."""
    layout = layout_of()
    with create_segment(layout.total_bytes, prefer=kind) as segment:
        assert (segment.kind, segment.notice) == (kind, None)
        assert not os.get_inheritable(segment.fd)
        child = (
            CHILD
            + """
    arena.region("tokens")[layout.slot_rows(2)] = np.arange(100)[:, None]
    arena.region("label")[399] = 2.5
"""
        )
        done = run_python(child, str(segment.fd), pass_fds=(segment.fd,))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        with map_arena(segment.fd, layout, writable=False) as arena:
            tokens, label = arena.region("tokens"), arena.region("label")
            assert tokens.shape == (400, 500)
            assert not tokens.flags.writeable
            # 0 + 1 + … + 99 = 4950, times 500 columns.
            assert int(tokens.sum()) == 4950 * 500
            assert np.array_equal(np.take(tokens, [201, 299], axis=0)[:, 0], [1, 99])
            assert (label[399], label[398]) == (2.5, 0.0)
            del tokens, label


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_no_name(kind):
    """Making a segment puts no name into /dev/shm, and starts no process."""
    before = shared_memory_names()
    done = run_python(
        """
        import os, sys
        from o41td.shm.segment import create_segment
        segment = create_segment(1 << 20, prefer=sys.argv[1])
        own = str(os.getpid())
        with open(f"/proc/{own}/task/{own}/children") as children:
            print(repr(children.read()), os.fstat(segment.fd).st_nlink, oct(os.fstat(segment.fd).st_mode & 0o077))
        """,
        kind,
    )
    assert done.stderr == ""
    # A memfd's link count is the kernel's affair; a nameless file has none.
    assert done.stdout.split()[0] == "''"
    if kind == "shm":
        assert done.stdout.split()[1:] == ["0", "0o0"]
    assert shared_memory_names() == before


@pytest.mark.parametrize("delay_lines", range(6))
def test_nothing_is_left_by_a_kill(delay_lines):
    """A process killed while it makes, maps or fills a segment leaves nothing in /dev/shm."""
    before = shared_memory_names()
    script = [
        "from o41td.shm.segment import create_segment, map_arena",
        "from o41td.shm.layout import plan_arena",
        "layout = plan_arena([('a', '<i4', (1000,))], num_slots=8, block_rows=1000)",
        "segment = create_segment(layout.total_bytes)",
        "arena = map_arena(segment.fd, layout, writable=True)",
        "arena.region('a')[:4000] = 1",
    ]
    script.insert(delay_lines + 1, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = run_python("\n".join(script))
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert shared_memory_names() == before


@pytest.mark.parametrize("kind", KINDS)
def test_mappings_survive_descriptor_and_owner(kind):
    """A mapping goes on after the descriptor is closed and the process that made the segment was killed."""
    layout = layout_of()
    code = """if True:
        import sys
        from o41td.shm.segment import create_segment
        segment = create_segment(int(sys.argv[1]), prefer=sys.argv[2])
        print(segment.fd, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(layout.total_bytes), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    fd = os.open(f"/proc/{owner.pid}/fd/{int(owner.stdout.readline())}", os.O_RDWR | os.O_CLOEXEC)
    arena = map_arena(fd, layout, writable=True)
    os.close(fd)
    owner.kill()
    owner.communicate()
    arena.region("tokens")[...] = 7
    assert arena.region("tokens").sum() == 7 * 400 * 500
    arena.close()


def test_views_stay_valid_after_close():
    """Closing the arena takes the mapping down with the last view, not before."""
    layout = layout_of()
    descriptors = set(os.listdir("/proc/self/fd"))
    with create_segment(layout.total_bytes) as segment:
        arena = map_arena(segment.fd, layout, writable=True)
    region = arena.region("tokens")
    view = region[5:][:, 1:]
    del region
    view[0] = 9
    arena.close()
    arena.close()
    assert view[0].sum() == 9 * 499
    with pytest.raises(AssertionError, match="closed"):
        arena.region("tokens")
    assert arena.populate() == 0
    del view
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_a_closed_segment_has_no_descriptor():
    """Closing twice is fine; using the descriptor afterwards is a bug of ours."""
    segment = create_segment(4096)
    segment.close()
    segment.close()
    with pytest.raises(AssertionError, match="closed"):
        _ = segment.fd


def test_reading_mappings_cannot_write():
    """A region mapped for reading refuses to be written to, and to be made writable."""
    layout = layout_of()
    with create_segment(layout.total_bytes) as segment, map_arena(segment.fd, layout, writable=False) as arena:
        with pytest.raises(ValueError, match="read-only"):
            arena.region("label")[0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            arena.region("label").flags.writeable = True


@pytest.mark.parametrize("writable", [True, False])
def test_populate_makes_every_page_present(writable):
    """After populate, touching each page of the mapping faults none in, and contents are as they were."""
    layout = plan_arena([("tokens", "<i4", (1024,)), ("label", "<f8", ())], num_slots=8, block_rows=256)
    with create_segment(layout.total_bytes) as segment, map_arena(segment.fd, layout, writable=True) as writer:
        writer.region("tokens")[...] = 3
        with map_arena(segment.fd, layout, writable=writable) as arena:
            populated = arena.populate(threading.Event())
            if populated == 0:
                pytest.skip("this kernel has no MADV_POPULATE_*")
            assert populated == layout.num_rows * layout.row_bytes
            tokens = arena.region("tokens")
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            total = sum(int(row[0]) for row in tokens)
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
            assert total == 3 * 2048
            assert faults < 100  # 2 048 pages lie in that region
            del tokens


def test_populate_stops_when_told():
    """With the event set beforehand nothing is populated; a range of slots is populated by itself."""
    layout = layout_of()
    stop = threading.Event()
    with create_segment(layout.total_bytes) as segment, map_arena(segment.fd, layout, writable=True) as arena:
        part = arena.populate(stop, first_slot=1, end_slot=3)
        assert part in (0, 2 * 100 * 2008)
        stop.set()
        assert arena.populate(stop) == 0


def test_close_during_populate_is_safe():
    """Closing the arena while another thread populates it neither crashes nor hangs."""
    layout = plan_arena([("a", "<i4", (1024,))], num_slots=16, block_rows=1024)
    with create_segment(layout.total_bytes) as segment:
        arena = map_arena(segment.fd, layout, writable=True)
    thread = threading.Thread(target=arena.populate)
    thread.start()
    arena.close()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_too_small_descriptor_is_refused():
    """A received descriptor whose memory is shorter than the layout is refused, not mapped."""
    layout = layout_of()
    with (
        create_segment(layout.total_bytes - 1) as segment,
        pytest.raises(SharedMemoryError, match=str(layout.total_bytes)) as caught,
    ):
        map_arena(segment.fd, layout, writable=True)
    assert caught.value.needed_bytes == layout.total_bytes


def test_what_is_no_memory_is_refused():
    """A pipe, or a closed descriptor, is refused as an error of ours."""
    read, write = os.pipe()
    for fd in (read, write):
        with pytest.raises(SharedMemoryError):
            map_arena(fd, layout_of(), writable=True)
        os.close(fd)
    with pytest.raises(SharedMemoryError):
        map_arena(read, layout_of(), writable=True)


def test_a_memfd_is_sealed():
    """Nobody who holds a memfd segment can change its length."""
    with create_segment(1 << 20, prefer="memfd") as segment:
        seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK
        for length in (0, 1 << 21):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, length)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_reserved(kind):
    """All blocks of the segment are allocated when it is made."""
    with create_segment(3 << 20, prefer=kind) as segment:
        status = os.fstat(segment.fd)
        assert status.st_size == 3 << 20
        assert status.st_blocks * 512 >= 3 << 20


def test_more_than_the_host_has_is_refused():
    """A segment beyond all memory of the host is refused with needed and free bytes, before the OOM killer comes."""
    descriptors = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SharedMemoryError, match="buffer_rows") as caught:
        create_segment(1 << 50)
    assert caught.value.needed_bytes == 1 << 50
    assert 0 < caught.value.free_bytes < 1 << 50
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_many_segments_leave_descriptors_flat():
    """500 segments made, mapped and closed within 64 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    layout = plan_arena([("a", "<i4", ())], num_slots=1, block_rows=10)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, len(before) + 16), hard))
    try:
        for number in range(500):
            with (
                create_segment(layout.total_bytes, prefer=KINDS[number % 2]) as segment,
                map_arena(segment.fd, layout, writable=True) as arena,
            ):
                arena.region("a")[...] = number
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(os.listdir("/proc/self/fd")) == before


SMALL_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh")
NO_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m,ro tmpfs /dev/shm && exec "$@"', "sh")


@pytest.fixture
def needs_unshare():
    """Skips where this user may not make a mount namespace."""
    try:
        done = subprocess.run([*SMALL_SHM, "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode:
        pytest.skip(f"no mount namespace for this user: {done.stderr.strip()}")


FALLBACK = """
    import numpy as np
    from o41td.shm.layout import plan_arena
    from o41td.shm.segment import create_segment, map_arena
    layout = plan_arena([("a", "<i4", (1024,))], num_slots=8, block_rows=256)
    segment = create_segment(layout.total_bytes)
    with map_arena(segment.fd, layout, writable=True) as arena:
        arena.region("a")[...] = 1
        print(segment.kind, int(arena.region("a").sum()))
    print(segment.notice)
    small = create_segment(1 << 19)
    print(small.kind, small.notice)
"""


def test_a_small_dev_shm_falls_back_to_memfd(needs_unshare):
    """Where /dev/shm has 1 MiB, 8 MiB go to a memfd with a notice that says the sizes, and no signal comes."""
    done = run_python(FALLBACK, prefix=SMALL_SHM)
    assert (done.returncode, done.stderr) == (0, "")
    first, notice, small = done.stdout.splitlines()
    assert first == f"memfd {2048 * 1024}"
    assert "No space left on device: 8388608 bytes needed, 1048576 free" in notice
    assert small == "shm None"


def test_a_read_only_dev_shm_falls_back_to_memfd(needs_unshare):
    """Where /dev/shm cannot be written to, the arena is a memfd."""
    done = run_python(FALLBACK, prefix=NO_SHM)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("memfd ")
    assert "Read-only" in lines[1]
    assert lines[2].startswith("memfd ")


def test_no_memory_anywhere_is_an_error_not_a_signal(needs_unshare):
    """Where neither kind can be had, the error has needed and free bytes and says what to change."""
    code = """
        import resource
        from o41td.errors import SharedMemoryError
        from o41td.shm.segment import create_segment
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            create_segment(8 << 20)
        except SharedMemoryError as error:
            print(error.needed_bytes, error.free_bytes, "buffer_rows" in str(error), "--shm-size" in str(error))
    """
    done = run_python(code, prefix=SMALL_SHM)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{8 << 20} {1 << 20} True True\n", "")


def test_one_descriptor_a_mapping():
    """A mapping holds one descriptor of its own while it is open, whatever became of the segment's."""
    layout = layout_of()
    before = len(os.listdir("/proc/self/fd"))
    segment: Segment = create_segment(layout.total_bytes)
    arena = map_arena(segment.fd, layout, writable=True)
    segment.close()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    arena.close()
    assert len(os.listdir("/proc/self/fd")) == before
