"""Pages of memory: private ones for batches, making pages present ahead of use, and letting shared ones go.

The first touch of a page costs far more than every later one (fault, zeroing, page table). `populate_pages` pays it
ahead, in one call for many pages, while other threads run.
"""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["address_of", "make_private", "map_private", "populate_pages", "remove_pages"]

# Of <linux/mman.h>; the latter two since Linux 5.14. Python's mmap module does not name them.
_MADV_REMOVE = 9
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23

# Not mmap.madvise: it keeps the GIL, so populating would stop the training thread. A ctypes call releases it.
_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_madvise.restype = ctypes.c_int
_mmap = _libc.mmap  # Python's mmap cannot map over what is mapped
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_MAP_FIXED = 0x10


def address_of(array: NDArray[Any]) -> int:
    """Returns the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def populate_pages(address: int, num_bytes: int, *, write: bool) -> bool:
    """Makes the pages of `[address, address + num_bytes)` present; what they hold does not change.

    Args:
        address: First byte; the range is widened outwards to whole pages, all of which must be mapped.
        num_bytes: Length of the range.
        write: Make them present for writing, which the mapping must allow; else for reading.

    Returns:
        Whether it was done. It is not on a kernel before 5.14, or where memory is short: the pages then come when they
        are touched.

    Blocks:
        On the kernel, about 0.5 s a GiB; the GIL is released.
    """
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + num_bytes - start
    done: int = _madvise(start, length, _MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ)
    return done == 0


def map_private(num_bytes: int) -> NDArray[np.uint8]:
    """Maps fresh, zeroed, populated memory of this process alone.

    The mapping uses no descriptor, is private to the process (a forked child gets a copy), starts on a page, and goes
    when the last array or memoryview over it goes. Huge pages are left to the host's setting: asked for by madvise they
    were no faster here (8 MiB: 15 ms populated by huge pages, 8 ms by small ones).

    Args:
        num_bytes: Length, at least 1.

    Returns:
        `[num_bytes] uint8`, writable.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, dtype=np.uint8)
    populate_pages(address_of(array), num_bytes, write=True)
    return array


def remove_pages(address: int, num_bytes: int) -> None:
    """Gives back the memory of the whole pages in `[address, address + num_bytes)` of a shared, writable mapping.

    In every process that maps them they read as zeroes from now on. A page that is only in part in the range stays.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        _madvise(start, length, _MADV_REMOVE)  # memory that cannot be had back stays until it is unmapped


def make_private(address: int, num_bytes: int) -> None:
    """Puts fresh, zeroed pages of this process alone in the place of those at `address`, which starts a page.

    Raises:
        OSError: The kernel has no room for one more mapping.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if _mmap(address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        raise OSError(ctypes.get_errno(), "pages of a forked child cannot be made its own")
