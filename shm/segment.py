"""The shared segment behind the arena, and its mapping in each process.

**It has no name at any time.** The coordinator opens a nameless file on /dev/shm (`O_TMPFILE`) and passes its
descriptor over sockets. `multiprocessing.shared_memory` does the same through a name, unlinked later: a process killed
in between leaves it behind, and on Python 3.11 and 3.12 it starts a resource-tracker process (9 MB, 40 ms with its
import and the wait for it at exit) which unlinks segments that other processes still use. Nothing to track is better
than a tracker.

**Its pages are reserved at open** (`posix_fallocate`): a full /dev/shm is an error there, never a SIGBUS at the first
write. Where /dev/shm is too small (64 MB in a container) or cannot make nameless files, `memfd_create` gives the same
from the kernel's own tmpfs, which no mount limits, and seals it, so that no process can cut it short under the others.

Huge pages are not asked for: for tmpfs they are a host setting (`shmem_enabled`), and hugetlb needs a pool set aside.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from o41td.errors import SharedMemoryError
from o41td.shm.layout import ArenaLayout
from o41td.shm.pages import address_of, populate_pages

__all__ = ["MappedArena", "Segment", "SegmentKind", "create_segment", "map_arena"]

SegmentKind = Literal["shm", "memfd"]

_SHM_FOLDER = "/dev/shm"  # noqa: S108 - nothing in it is opened by name
_MFD_NOEXEC_SEAL = 8  # <linux/memfd.h>, Linux 6.3; a host may insist on it (vm.memfd_noexec)
_RESERVE_STEP_BYTES = 64 << 20  # a signal makes the kernel undo the step it interrupts: steps make progress certain
_POPULATE_STEP_BYTES = 2 << 20  # how long `populate` may go on after it was told to stop


class Segment:
    """A nameless, reserved run of shared memory, held by its descriptor.

    Owned by the coordinator. The memory lives while any process holds the descriptor or a mapping of it, and is gone
    with the last one, however these processes end.

    Args:
        fd: The descriptor, owned from here on; not inheritable.
        kind: Where the memory is: "shm" on /dev/shm, "memfd" outside it.
        total_bytes: Its length.
        notice: What to tell the user once, where the preferred kind was not to be had.
    """

    __slots__ = ("_fd", "kind", "notice", "total_bytes")

    def __init__(self, fd: int, *, kind: SegmentKind, total_bytes: int, notice: str | None = None) -> None:
        self._fd = fd
        self.kind = kind
        self.total_bytes = total_bytes
        self.notice = notice

    @property
    def fd(self) -> int:
        """The descriptor, to map or to send; it stays owned by the segment."""
        assert self._fd >= 0, "the segment is closed"
        return self._fd

    def close(self) -> None:
        """Closes the descriptor; mappings of it go on. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def create_segment(total_bytes: int, *, prefer: SegmentKind = "shm") -> Segment:
    """Makes a segment of zeroes with all its pages reserved.

    Called by the coordinator, once, at open.

    Args:
        total_bytes: Length, at least 1.
        prefer: "shm" tries /dev/shm first, whose size limit an administrator may have set on purpose, then memfd;
            "memfd" tries that alone.

    Returns:
        The segment; its `notice` says why, where it is not of the preferred kind.

    Raises:
        SharedMemoryError: There is not that much memory, with needed and free bytes.

    Blocks:
        On the kernel, about 0.5 s a GiB; the GIL is released.
    """
    assert total_bytes >= 1, f"a segment of {total_bytes} bytes"
    available = _available_bytes()
    if available is not None and total_bytes > available:
        # tmpfs would hand pages out until the OOM killer comes.
        raise _refusal("the host has too little memory for the arena", total_bytes, available)
    notice = None
    if prefer == "shm":
        try:
            return Segment(_reserved(_open_nameless(), total_bytes), kind="shm", total_bytes=total_bytes)
        except OSError as error:
            reason = os.strerror(error.errno or errno.ENOSPC)
            free = _free_bytes_of_shm()
            notice = (
                f"{_SHM_FOLDER} cannot hold the arena ({reason}: {total_bytes} bytes needed, "
                f"{'unknown' if free is None else free} free); it is in a memfd instead, which works the same"
            )
    try:
        fd = _reserved(_open_memfd(), total_bytes)
    except OSError as error:
        raise _refusal(
            f"the arena could be made neither in {_SHM_FOLDER} nor by memfd_create: {os.strerror(error.errno or 0)}",
            total_bytes,
            available if notice is None else _free_bytes_of_shm(),
        ) from error
    _seal(fd)
    return Segment(fd, kind="memfd", total_bytes=total_bytes, notice=notice)


class MappedArena:
    """This process's mapping of the arena.

    Workers map it writable and fill the slots they were told to fill. A consumer maps it writable if batches may be
    lent to it, and read-only where others take batches out of the same arena. The mapping survives the descriptor and
    the processes that made it.

    Args:
        mapping: The mapping, owned from here on.
        layout: What lies where in it.
        writable: Whether it may be written to.
    """

    __slots__ = ("_base", "_mapping", "_regions", "layout", "writable")

    def __init__(self, mapping: mmap.mmap, layout: ArenaLayout, *, writable: bool) -> None:
        self.layout = layout
        self.writable = writable
        self._mapping: mmap.mmap | None = mapping
        # Regions are made over this array, not over the mapping: np.ndarray(buffer=…) keeps a reference but gives the
        # buffer back at once, and `mapping.close()` would then unmap under views. np.frombuffer holds on to it.
        base = np.frombuffer(mapping, dtype=np.uint8)
        self._base: NDArray[np.uint8] | None = base
        self._regions: dict[str, NDArray[Any]] = {
            field.name: np.ndarray((layout.num_rows, *field.shape), field.dtype, base, field.offset)
            for field in layout.fields
        }

    def region(self, name: str) -> NDArray[Any]:
        """Returns a field's whole region, `[num_slots · block_rows, *shape]`: a view, indexed by arena row.

        A view stays valid after `close`, and keeps the memory.
        """
        assert self._mapping is not None, "the arena is closed"
        return self._regions[name]

    def bytes(self) -> NDArray[np.uint8]:
        """Returns the whole arena, `[layout.total_bytes] uint8`: a view, as those of `region`."""
        assert self._base is not None, "the arena is closed"
        return self._base

    def populate_in_background(self, stop: threading.Event) -> threading.Thread | None:
        """Begins a thread that populates all slots until `stop` is set; None where no thread may be begun.

        It only saves time later, so what forbids it (a container's limit of processes and threads) is no error.
        """
        thread = threading.Thread(target=self._populate_quietly, args=(stop,), name="o41td-populate", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _populate_quietly(self, stop: threading.Event) -> None:
        with contextlib.suppress(OSError):
            self.populate(stop)

    def populate(self, stop: threading.Event | None = None, *, first_slot: int = 0, end_slot: int | None = None) -> int:
        """Makes the pages of slots `[first_slot, end_slot)` present in this process, lowest slot first.

        For a background thread of each process: the first block or batch doesn't wait for it. Contents don't change, so
        other processes may write meanwhile. Without it, or where it ends early, pages come when they are touched.

        Args:
            stop: Ends it within a step of about 2 MiB when set.
            first_slot: First slot.
            end_slot: One past the last slot; None is all.

        Returns:
            Bytes made present: fewer than the slots' own where it was stopped, or the kernel cannot (before 5.14).

        Blocks:
            On the kernel, about 0.5 to 1 s a GiB; the GIL is released. `close` meanwhile is safe.
        """
        base, layout = self._base, self.layout  # `base` keeps the mapping while this runs
        if base is None:
            return 0
        address, done = address_of(base), 0
        last = layout.num_slots if end_slot is None else end_slot
        slots_a_step = max(1, _POPULATE_STEP_BYTES // layout.slot_bytes)
        for slot in range(first_slot, last, slots_a_step):
            for field in layout.fields:
                start, end = layout.byte_range(field, slot, min(slot + slots_a_step, last))
                for step in range(start, end, _POPULATE_STEP_BYTES):
                    length = min(_POPULATE_STEP_BYTES, end - step)
                    stopped = stop is not None and stop.is_set()
                    if stopped or not populate_pages(address + step, length, write=self.writable):
                        return done
                    done += length
        return done

    def close(self) -> None:
        """Drops the mapping: at once where no view of a region is left, else with the last view. Idempotent."""
        mapping, self._mapping = self._mapping, None
        self._regions = {}
        self._base = None
        if mapping is not None:
            # Views may be out there: each holds the mapping, and the last one takes it down.
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def map_arena(fd: int, layout: ArenaLayout, *, writable: bool) -> MappedArena:
    """Maps a segment that this process made or was sent.

    Called by workers and consumers.

    Args:
        fd: The segment's descriptor; the caller may close it afterwards. (Python's mmap keeps a duplicate while
        mapped.)
        layout: What lies where in it.
        writable: Map for reading and writing, else for reading only.

    Raises:
        SharedMemoryError: The descriptor's memory is smaller than the layout (touching the rest would be a SIGBUS), or
            cannot be mapped.
    """
    size_bytes = _size_bytes_of(fd)
    if size_bytes < layout.total_bytes:
        raise SharedMemoryError(
            f"the arena's descriptor holds {size_bytes} bytes, its layout has {layout.total_bytes}",
            needed_bytes=layout.total_bytes,
            advice="Run the same version of o41td in every process of a loader",
        )
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        mapping = mmap.mmap(fd, layout.total_bytes, flags=mmap.MAP_SHARED, prot=access)
    except (OSError, ValueError) as error:
        raise SharedMemoryError(
            f"the arena could not be mapped: {error}",
            needed_bytes=layout.total_bytes,
            advice="Raise the limit on address space (ulimit -v) or lower memory_limit_bytes",
        ) from error
    return MappedArena(mapping, layout, writable=writable)


def _size_bytes_of(fd: int) -> int:
    """Length of what a descriptor holds; nothing where it isn't one."""
    try:
        return os.fstat(fd).st_size
    except OSError:
        return 0


def _open_nameless() -> int:
    """Opens a file on /dev/shm that has no name and can never get one (O_EXCL says that of an O_TMPFILE)."""
    return os.open(_SHM_FOLDER, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _open_memfd() -> int:
    """Opens a memfd that can be sealed, not executable where the kernel knows that."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("o41td", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("o41td", flags)


def _reserved(fd: int, total_bytes: int) -> int:
    """Reserves the pages of `fd` and returns it, or closes it and raises OSError."""
    volume = os.fstatvfs(fd)
    if volume.f_blocks > 0 and volume.f_bavail * volume.f_frsize < total_bytes:
        # Known without trying: filling the volume to the brim would disturb whoever else uses it.
        os.close(fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        for start in range(0, total_bytes, _RESERVE_STEP_BYTES):
            os.posix_fallocate(fd, start, min(_RESERVE_STEP_BYTES, total_bytes - start))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _seal(fd: int) -> None:
    """Fixes a memfd's length for every holder, for good; a sandbox without seals goes without."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _free_bytes_of_shm() -> int | None:
    """Bytes free on /dev/shm, or None where it is not there."""
    try:
        volume = os.statvfs(_SHM_FOLDER)
    except OSError:
        return None
    return volume.f_bavail * volume.f_frsize


def _available_bytes() -> int | None:
    """What the host can still hand out, swap included, or None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            kibibytes = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
        return (kibibytes["MemAvailable"] + kibibytes["SwapFree"]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _refusal(detail: str, needed_bytes: int, free_bytes: int | None) -> SharedMemoryError:
    return SharedMemoryError(
        detail,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
        advice=(
            "Lower shuffle.buffer_rows, block_rows or threads, which make the arena, or give the job more memory "
            "(for a container: --shm-size, --memory)"
        ),
    )
