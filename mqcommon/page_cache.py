"""Calls of the C library that Python lacks: what of a map is in memory (mincore), a wish (madvise), syncfs.

A page fault inside a copy out of a map waits for the disk with Python's lock held, and so stops every thread of the
process; who asks first can read such bytes with pread in a thread instead, which lets the others run.
The answer costs some 2.5 µs (4 µs for 4 MiB). The alternative, preadv with RWF_NOWAIT, costs as much and is refused by
some file systems. Neighbour: files.py.
"""

import ctypes
import mmap
import os

_PAGE_BYTES = mmap.PAGESIZE
# Linux 5.14; older kernels refuse it, and the pages come one by one as they are written to.
_MADV_POPULATE_WRITE = 23
# PyDLL keeps Python's lock: the call never waits, and giving the lock away costs more than it takes.
_LIBC = ctypes.PyDLL(None)
_MINCORE = _LIBC.mincore
_MINCORE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
# CDLL gives it away: this call may wait for the disk.
_WAITING_LIBC = ctypes.CDLL(None, use_errno=True)
_MADVISE = _WAITING_LIBC.madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# Linux has it; elsewhere all file systems are synced.
_SYNCFS = getattr(_WAITING_LIBC, "syncfs", None)


def address_of(view: mmap.mmap) -> int:
    """Where a map begins in this process's memory; holds until the map is closed, and does not keep it open."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def resident(address: int, size: int) -> bool:
    """Whether ``size`` bytes of a map at ``address`` are in memory; True also where the kernel does not tell."""
    start = address & -_PAGE_BYTES
    pages = -(-(address + size - start) // _PAGE_BYTES)
    vector = bytearray(pages)
    found: int = _MINCORE(start, pages * _PAGE_BYTES, ctypes.byref(ctypes.c_char.from_buffer(vector)))
    return found != 0 or 0 not in vector


def populate(address: int, size: int) -> None:
    """Bring the pages of these bytes into the map, ready to be written to. Blocks, and lets other threads run."""
    start = address & -_PAGE_BYTES
    _MADVISE(start, address + size - start, _MADV_POPULATE_WRITE)


def syncfs(fd: int) -> None:
    """Write all that is in the page cache for the file system of ``fd``. Blocks, and lets other threads run."""
    if _SYNCFS is None:
        os.sync()
    elif _SYNCFS(fd):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
