"""Calls of the C library that Python lacks, for the maps and file systems of a store. Linux only.

A page fault in a copy out of a map waits for the disk while it holds the GIL, and so stops every thread of the process.
A caller that calls mincore first can use pread in a thread instead, which lets other threads run. The call of mincore
costs some 2.5 µs (4 µs for 4 MiB). The alternative, preadv with RWF_NOWAIT, costs as much, and some file systems refuse
it.
"""

import ctypes
import mmap
import os

_PAGE_BYTES = mmap.PAGESIZE
# Since Linux 5.14; older kernels refuse it, and pages are then mapped one by one as they are written.
_MADV_POPULATE_WRITE = 23
# PyDLL keeps the GIL: the call never waits, and releasing the GIL costs more than the call.
_LIBC = ctypes.PyDLL(None)
_MINCORE = _LIBC.mincore
_MINCORE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
# CDLL releases the GIL: these calls may wait for the disk.
_WAITING_LIBC = ctypes.CDLL(None, use_errno=True)
_MADVISE = _WAITING_LIBC.madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
# Only Linux has it; elsewhere all file systems are synced.
_SYNCFS = getattr(_WAITING_LIBC, "syncfs", None)


def address_of(view: mmap.mmap) -> int:
    """Where a map begins in this process's memory. Valid until the map is closed; does not keep the map open."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def resident(address: int, size: int) -> bool:
    """Whether ``size`` bytes of a map at ``address`` are in memory; also True when the kernel cannot tell."""
    start = address & -_PAGE_BYTES
    pages = -(-(address + size - start) // _PAGE_BYTES)
    vector = bytearray(pages)
    found: int = _MINCORE(start, pages * _PAGE_BYTES, ctypes.byref(ctypes.c_char.from_buffer(vector)))
    return found != 0 or 0 not in vector


def populate(address: int, size: int) -> None:
    """Map the pages of these bytes in advance, ready to be written. Blocks, and lets other threads run."""
    start = address & -_PAGE_BYTES
    _MADVISE(start, address + size - start, _MADV_POPULATE_WRITE)


def syncfs(fd: int) -> None:
    """Write the page cache of the file system of ``fd`` to disk. Blocks, and lets other threads run."""
    if _SYNCFS is None:
        os.sync()
    elif _SYNCFS(fd):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
