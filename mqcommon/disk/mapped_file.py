"""`OsMappedFile`: a file of a store, mapped into memory. Linux only."""

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterator

from skylark.mqcommon.disk.descriptors import Descriptors, raising_disk_full
from skylark.mqcommon.disk.libc import address_of, populate, resident
from skylark.mqcommon.errors import DiskFull, FileClosed, StoreCorrupt


class OsMappedFile:
    """A shared map; the descriptor stays open too, for ``sync`` and ``pread``."""

    def __init__(
        self, path: str, descriptors: Descriptors, size: int = 0, *, create: bool, allocated: int | None = None
    ) -> None:
        self.path = path
        self._descriptors = descriptors
        self._allocated = 0
        # The number of a closed descriptor is soon reused for another file, so the last reader closes the descriptor.
        self._lock = threading.Lock()
        self._readers = 0
        self._closed = False
        created = create and not os.path.exists(path)
        with raising_disk_full(path):
            self._fd = descriptors.open(path, os.O_RDWR | (os.O_CREAT if create else 0), must=create)
        self._directory_synced = False
        try:
            self.size = self._prepare(size, create, allocated)
            # A map duplicates the descriptor.
            self.view = descriptors.open_by(path, lambda: mmap.mmap(self._fd, self.size), must=create)
            self._address = address_of(self.view)
        except BaseException:
            self.close()
            # A new file that is short or not allocated would be taken for a file that a crash left.
            if created:
                os.remove(path)
            raise

    def _prepare(self, size: int, create: bool, allocated: int | None) -> int:
        """Make sure that the file has ``size`` bytes, allocated when it is written to; returns how many to map."""
        length = os.fstat(self._fd).st_size
        size = size or length
        if size == 0:
            raise StoreCorrupt(self.path, 0, "the file is empty")
        if create:
            try:
                self.allocate(size if allocated is None else allocated)
            except DiskFull:
                if length < size:  # give back what was allocated before the disk was full
                    os.ftruncate(self._fd, length)
                raise
            if allocated is not None and length < size:
                os.ftruncate(self._fd, size)
        elif length < size:
            raise StoreCorrupt(self.path, length, f"the file has {length} bytes where {size} are expected")
        return size

    def allocate(self, end: int) -> None:
        # A hole in a mapped file gets its block when its page is first written; on a full disk that causes a SIGBUS.
        if end <= self._allocated:
            return
        missing, room = end - os.fstat(self._fd).st_blocks * 512, os.fstatvfs(self._fd)
        with raising_disk_full(self.path, end - self._allocated):
            if missing > room.f_bavail * room.f_frsize:  # trying takes milliseconds, for each refused send
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(self._fd, self._allocated, end - self._allocated)
        self._allocated = end

    def sync(self) -> None:
        # On Linux a shared map is the page cache itself, so fdatasync writes the bytes stored through the map, as
        # msync (mmap.flush) does. But os.fdatasync lets other threads run, and mmap.flush of Python 3.11 does not.
        with self._reading() as fd:
            os.fdatasync(fd)
        if not self._directory_synced:
            self._descriptors.fsync_dir(os.path.dirname(self.path))
            self._directory_synced = True

    def resident(self, at: int, size: int) -> bool:
        return not self._closed and resident(self._address + at, size)

    def pread(self, at: int, size: int) -> bytes:
        with self._reading() as fd:
            data = os.pread(fd, size, at)
            while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
                data += more
        return data

    def pwrite(self, at: int, data: memoryview) -> None:
        with self._reading() as fd:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], at + done)

    def drop(self, at: int, size: int) -> None:
        start = at // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(-(-(at + size) // mmap.PAGESIZE) * mmap.PAGESIZE, self.size)
        with self._reading() as fd:
            # The kernel keeps pages that a map still refers to.
            self.view.madvise(mmap.MADV_DONTNEED, start, end - start)
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def no_read_ahead(self) -> None:
        with self._reading() as fd:
            self.view.madvise(mmap.MADV_RANDOM)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def send(self, socket_fd: int, at: int, size: int) -> int:
        with self._reading() as fd:
            try:
                return os.sendfile(socket_fd, fd, at, size)
            except BlockingIOError:
                return 0

    def populate(self, at: int, size: int) -> None:
        with self._reading():
            populate(self._address + at, size)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close_when_unused()

    def __del__(self) -> None:
        # A file that its owner has closed is really closed when its last reader is done.
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[int]:
        # Counted, so that `close` leaves the descriptor open for callers that use it now; see `__init__`.
        with self._lock:
            if self._closed:
                raise FileClosed(f"{self.path} was closed, and perhaps removed")
            self._readers += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._readers -= 1
                self._close_when_unused()

    def _close_when_unused(self) -> None:
        if not self._closed or self._readers:
            return
        view: mmap.mmap | None = getattr(self, "view", None)
        if view is not None:
            with contextlib.suppress(BufferError):  # still read: the map is freed with the last memoryview
                view.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
