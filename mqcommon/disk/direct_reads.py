"""Reads of the medium itself, past the page cache: they find damage that a page in memory hides. Linux only.

O_DIRECT wants buffer, position and size in whole pages. A file system that refuses it (tmpfs before Linux 6.6, some
network disks) is read after its pages were dropped from memory as far as no map holds them.
"""

import errno
import mmap
import os

from skylark.mqcommon.disk.descriptors import Descriptors

# A multiple of the sector of any disk in use.
_ALIGNMENT = 4096
_BUFFER_BYTES = 256 * 1024
# The kernel's errors for a sector that cannot be read: a direct read gets the error of the block layer, where a read
# through the page cache gets EIO.
_BAD_SECTOR = (errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EREMOTEIO)
# Scrub and repair read at once; more reads than that allocate, which costs as much processor time as the read.
_KEPT_BUFFERS = 2


class DirectReads:
    """Reads files without the page cache. For any thread."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._buffers: list[mmap.mmap] = []

    def read(self, path: str, at: int, size: int) -> bytes:
        """As `FileSystem.read_direct`."""
        try:
            fd = self._descriptors.open(path, os.O_RDONLY | os.O_DIRECT, must=False)
            try:
                return self._read_aligned(fd, at, size)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _BAD_SECTOR:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path) from error
            if error.errno != errno.EINVAL:
                raise
        return self._read_uncached(path, at, size)

    def _read_aligned(self, fd: int, at: int, size: int) -> bytes:
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = mmap.mmap(-1, _BUFFER_BYTES)
        parts: list[bytes] = []
        end = at + size
        while at < end:
            start = at // _ALIGNMENT * _ALIGNMENT
            wanted = min(_BUFFER_BYTES, -(-(end - start) // _ALIGNMENT) * _ALIGNMENT)
            with memoryview(buffer) as whole, whole[:wanted] as part:
                got = os.preadv(fd, [part], start)
            if start + got <= at:
                break
            parts.append(buffer[at - start : min(got, end - start)])
            at = start + got
            if got % _ALIGNMENT:  # the end of the file
                break
        if len(self._buffers) < _KEPT_BUFFERS:
            self._buffers.append(buffer)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_uncached(self, path: str, at: int, size: int) -> bytes:
        fd = self._descriptors.open(path, os.O_RDONLY, must=False)
        try:
            os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
            data = os.pread(fd, size, at)
            while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
                data += more
            os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
            return data
        finally:
            os.close(fd)
