"""The disk is an argument: stores write through it, so a test can lose unsynced bytes, tear writes and fill the disk.

``FileSystem`` is the interface; ``OsFiles`` is the machine's disk. Paths are plain strings.
Written bytes survive the death of this process at once, and a power loss after ``sync()``. The first ``sync()`` of
an open file also syncs its directory, since the file may be new, or left by a process that was killed before its sync.
A full disk raises ``DiskFull`` and never causes a SIGBUS, because files are allocated before they are mapped. When no
descriptor is left, opening raises ``OutOfDescriptors``. Only their owner can read new files and directories: they hold
messages and secrets.
A failed open, unlike a failed fsync, may succeed a moment later. Opens that are needed to write, to sync or to roll to
the next file may use a reserve of descriptors (`Descriptors`); reads may not.
Clients on macOS and Windows use this module, too, for small files: only what a store needs may need Linux.
Neighbours: descriptors.py (opens files); mapped_file.py (the maps of a store); direct_reads.py; file_lock.py; atomic.py
(replaces whole small files).
"""

import contextlib
import errno
import mmap
import os
import shutil
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from skylark.mqcommon.disk.descriptors import Descriptors, raising_disk_full
from skylark.mqcommon.disk.file_lock import OsFileLock
from skylark.mqcommon.errors import DiskFull

if TYPE_CHECKING:
    from skylark.mqcommon.disk.direct_reads import DirectReads
    from skylark.mqcommon.disk.mapped_file import OsMappedFile


class DiskUsage(NamedTuple):
    """Bytes of the file system; ``used`` and ``free`` need not add up to ``total`` (root's reserve)."""

    total: int
    used: int
    free: int


class AppendFile(Protocol):
    """A file that grows at its end."""

    path: str

    def write(self, data: bytes) -> None:
        """Append all of ``data``, or none of it and raise DiskFull."""

    def sync(self) -> None:
        """Make all written bytes survive a power loss. Blocks: call it in a thread."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class MappedFile(Protocol):
    """A file of fixed size, mapped into memory for reading and writing."""

    path: str
    size: int
    view: mmap.mmap

    def allocate(self, end: int) -> None:
        """Allocate disk blocks for the bytes before ``end``, so that writing them cannot fail. Raises DiskFull."""

    def sync(self) -> None:
        """Make all written bytes survive a power loss. Blocks: use a thread. Raises FileClosed after ``close``."""

    def resident(self, at: int, size: int) -> bool:
        """Whether ``size`` bytes from ``at`` on are in memory, so that reading them from ``view`` waits for no disk."""

    def pread(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` on, read from disk if necessary.

        Blocks; unlike ``view`` it lets other threads run meanwhile. For any thread, even while another closes or
        removes the file. Raises FileClosed when it was closed before.
        """

    def pwrite(self, at: int, data: memoryview) -> None:
        """Write ``data`` at ``at``; for many bytes cheaper than ``view``, as pages are not zeroed first.

        As ``pread``.
        """

    def drop(self, at: int, size: int) -> None:
        """Drop these bytes from memory, so that the next read has the disk's. Bytes that are not synced yet stay.

        As ``pread``. Another process that maps the file keeps the bytes in memory.
        """

    def no_read_ahead(self) -> None:
        """From now on reads bring only the bytes into memory that they ask for. As ``pread``."""

    def send(self, socket_fd: int, at: int, size: int) -> int:
        """Send ``size`` bytes from ``at`` on to a non-blocking socket; returns how many it took.

        Blocks as ``pread``.
        """

    def populate(self, at: int, size: int) -> None:
        """Map the pages of these bytes in advance, so that writing is cheap. For any thread, as ``pread``."""

    def close(self) -> None:
        """Close the file and the map; a memoryview that is still held keeps its bytes readable."""


class FileLock(Protocol):
    """A lock that is held until ``close()``, or until the process ends, however it ends."""

    def close(self) -> None: ...


class ReadableMap(Protocol):
    """A file, mapped into memory for reading at least; ``pread`` as in `MappedFile`."""

    path: str
    size: int
    view: mmap.mmap

    def pread(self, at: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class ReadableFiles(Protocol):
    """The operations of a disk that a reader of a store needs; `FileSystem` has them, too, and describes them."""

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes: ...

    def boot_id(self) -> str: ...

    def open_map(self, path: str, size: int = 0, *, create: bool) -> ReadableMap: ...


class FileSystem(Protocol):
    """The operations of a disk that a store needs."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""

    def mkdirs(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_empty_dir(self, path: str) -> bool:
        """Remove a directory if nothing is in it; returns whether it was removed."""

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old`` in one step."""

    def link(self, path: str, new: str) -> None:
        """Give the file ``path`` a second name, on the same file system. Raises DiskFull, FileExistsError, OSError."""

    def link_count(self, path: str) -> int:
        """How many names the file has."""

    def take_mode(self, path: str, like: str) -> None:
        """Give ``path`` the permissions of ``like``, and its owner and group if this process may do that."""

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was written last, by the clock as it was then."""

    def read(self, path: str) -> bytes: ...

    def read_part(self, path: str, at: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``at`` on, without mapping the file; fewer at its end."""

    def read_direct(self, path: str, at: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``at`` on as the medium has them, not the page cache; fewer at the file's end.

        Bytes that were written but not synced are written to the medium first. Blocks; for any thread. A sector that
        cannot be read raises OSError (EIO). A file system without direct reads may answer from the page cache.
        """

    def boot_id(self) -> str:
        """The id of this boot, "" when unknown. Bytes written since the same boot are in the page cache."""

    def open_append(self, path: str) -> AppendFile:
        """Open a file for appending; it is created when missing."""

    def open_map(self, path: str, size: int = 0, *, create: bool, allocated: int | None = None) -> MappedFile:
        """Map the first ``size`` bytes of a file; 0 means all of it.

        ``create`` creates a missing file, lengthens a short one with zeros, and allocates its blocks, so that no later
        write can find the disk full. It allocates all bytes, or the first ``allocated`` (see MappedFile.allocate).
        Without ``create`` the file is mapped as it is; a short one raises StoreCorrupt.
        """

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory survive a power loss."""

    def sync_all(self, path: str) -> None:
        """Make all bytes written to the file system of ``path`` survive a power loss. Blocks: call it in a thread."""

    def disk_usage(self, path: str) -> DiskUsage: ...

    def on_shortage(self, make_room: Callable[[], bool]) -> None:
        """Call ``make_room`` when no descriptor is left, in any thread; it returns whether it may have freed some."""

    def free_ratio(self, path: str) -> float:
        """The free share of the file system, 0.0 to 1.0."""

    def lock(self, path: str) -> FileLock:
        """Take the lock file ``path``, or raise StoreLocked at once. Only its holder may remove the file."""


class OsFiles:
    """The machine's own disk. ``spare_descriptors`` is the reserve for files that must be opened; stores have one."""

    def __init__(self, spare_descriptors: int = 0) -> None:
        self._descriptors = Descriptors(spare_descriptors)
        self._direct_reads: DirectReads | None = None

    def close(self) -> None:
        """Give the reserve back at the end of the store's use. Files can still be opened."""
        self._descriptors.close()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def mkdirs(self, path: str) -> None:
        if not path or os.path.isdir(path):
            return
        self.mkdirs(os.path.dirname(path))
        with raising_disk_full(path):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:  # created by someone else meanwhile, or not a directory
                if not os.path.isdir(path):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_empty_dir(self, path: str) -> bool:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, path: str, new: str) -> None:
        with raising_disk_full(new):
            os.link(path, new)

    def link_count(self, path: str) -> int:
        return os.stat(path).st_nlink

    def take_mode(self, path: str, like: str) -> None:
        wanted = os.stat(like)
        with contextlib.suppress(PermissionError, AttributeError):  # only root may give files away; Windows cannot
            os.chown(path, wanted.st_uid, wanted.st_gid)
        os.chmod(path, stat.S_IMODE(wanted.st_mode))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def read(self, path: str) -> bytes:
        with open(self._descriptors.open(path, os.O_RDONLY), "rb") as file:
            try:
                return file.read()
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from error  # Python does not name the file here

    def read_part(self, path: str, at: int, size: int) -> bytes:
        fd = self._descriptors.open(path, os.O_RDONLY, must=False)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead for a few bytes
            return os.pread(fd, size, at)
        finally:
            os.close(fd)

    def read_direct(self, path: str, at: int, size: int) -> bytes:
        if self._direct_reads is None:
            from skylark.mqcommon.disk.direct_reads import DirectReads

            self._direct_reads = DirectReads(self._descriptors)
        return self._direct_reads.read(path, at, size)

    def boot_id(self) -> str:
        try:
            return self.read("/proc/sys/kernel/random/boot_id").decode().strip()
        except FileNotFoundError:  # not Linux: every crash counts as a power loss
            return ""

    def open_append(self, path: str) -> "OsAppendFile":
        return OsAppendFile(path, self._descriptors)

    def open_map(self, path: str, size: int = 0, *, create: bool, allocated: int | None = None) -> "OsMappedFile":
        from skylark.mqcommon.disk.mapped_file import OsMappedFile

        return OsMappedFile(path, self._descriptors, size, create=create, allocated=allocated)

    def fsync_dir(self, path: str) -> None:
        self._descriptors.fsync_dir(path)

    def sync_all(self, path: str) -> None:
        from skylark.mqcommon.disk.libc import syncfs

        # syncfs reports write errors since Linux 5.8.
        fd = self._descriptors.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            syncfs(fd)
        finally:
            os.close(fd)

    def disk_usage(self, path: str) -> DiskUsage:
        return DiskUsage(*shutil.disk_usage(path))

    def on_shortage(self, make_room: Callable[[], bool]) -> None:
        self._descriptors.make_room = make_room

    def free_ratio(self, path: str) -> float:
        # as df shows it, used / (used + free): root's reserve is not free for this process
        usage = self.disk_usage(path)
        return usage.free / ((usage.used + usage.free) or 1)

    def lock(self, path: str) -> "OsFileLock":
        return OsFileLock(path)


class OsAppendFile:
    """An unbuffered file: bytes that ``write`` has accepted are in the kernel's page cache."""

    def __init__(self, path: str, descriptors: Descriptors) -> None:
        self.path = path
        self._descriptors = descriptors
        with raising_disk_full(path):
            self._fd = descriptors.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._fd).st_size
        self._directory_synced = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            with raising_disk_full(self.path, len(data)):
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
        except (OSError, DiskFull):
            # All or nothing: a caller that tries again must not find half of its record before the new one.
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        # macOS and Windows have no fdatasync.
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(self._fd)
        # Bytes of a file without a name in its directory are lost: the name is synced once, with the first bytes.
        if not self._directory_synced:
            self._descriptors.fsync_dir(os.path.dirname(self.path))
            self._directory_synced = True

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
