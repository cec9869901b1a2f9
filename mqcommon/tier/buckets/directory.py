"""A bucket in a directory of the machine, or of NFS: an object is a file.

Every object is written under a temporary name, synced, and then gets its own name in one step: by link(2), which fails
if the name is taken, or by rename(2). The directory is synced before a call returns. So a reader sees a whole object
or none, also after a power loss, and of several creators one succeeds, also on several NFS clients.
A call cannot end before the file system answers: the mount options of NFS bound that time.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from skylark.mqcommon.disk.descriptors import BINARY, Descriptors
from skylark.mqcommon.tier.bucket import (
    BucketAway,
    BucketRefused,
    NoSuchObject,
    ObjectExists,
    ObjectInfo,
    check_name,
)

# Files that are still written. `check_name` refuses names that begin with a dot.
_TEMPORARY: Final = ".temporary"
# A temporary file that nobody has written to for this long is a leftover of a crash.
_LEFTOVER_AFTER_S: Final = 48 * 3600.0
# Readers in the group of the files' owner, as a Spark job, may read. The umask may forbid that.
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
# The disk is not asked to begin with fewer bytes.
_LARGE_BYTES: Final = 1024 * 1024
# A deletion in another process may remove an empty folder between the two steps of a write.
_ATTEMPTS: Final = 10

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
_REFUSED = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)


class DirectoryBucket:
    """A `Bucket` below the directory ``root``. For any thread and any number of processes.

    While ``root`` is not there, each call raises BucketAway.
    """

    def __init__(self, root: str) -> None:
        self.url = f"file://{root}"
        self._root = root
        self._descriptors = Descriptors()
        self._lock = threading.Lock()
        self._can_write = False
        # The file system on which the directory was first seen.
        self._device: int | None = None

    def get(self, name: str) -> bytes:
        with self._errors(name), open(self._path(name), "rb") as file:
            return file.read()

    def get_range(self, name: str, start: int, size: int) -> bytes:
        with self._errors(name), open(self._path(name), "rb", buffering=0) as file:
            file.seek(start)
            pieces: list[bytes] = []
            left = size
            while left:
                piece = file.read(left)
                if not piece:
                    raise NoSuchObject(f"{name} ends before byte {start + size}")
                pieces.append(piece)
                left -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def head(self, name: str) -> ObjectInfo:
        path = self._path(name)
        with self._errors(name):
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                raise NoSuchObject(name)
        return ObjectInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def create(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._temporary_file(name, (data,)) as (temporary, _), self._errors(name, writes=True):
            try:
                self._place(path, lambda: os.link(temporary, path))
            except FileExistsError:
                # NFS: when the answer to a link is lost, the client asks again, and then finds its own link.
                if os.stat(temporary).st_nlink < 2:
                    raise ObjectExists(name) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise BucketRefused(
                    f"{self._root}: its file system makes no hard links ({error.strerror}): use another one, or the URL"
                    " of the object store that is mounted there"
                ) from error
            self._sync_place(path)

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        path = self._path(name)
        with self._temporary_file(name, pieces) as (temporary, size), self._errors(name, writes=True):
            self._place(path, lambda: os.rename(temporary, path))
            self._sync_place(path)
            return size

    def delete(self, names: Sequence[str]) -> None:
        # Not synced: a file that a power loss brings back is removed as other leftovers are.
        for name in names:
            path = self._path(name)
            with self._errors(name):
                try:
                    os.unlink(path)
                except OSError as error:
                    if error.errno not in _MISSING:
                        raise
                    self._check_root()
                    continue
                self._remove_empty_folders(os.path.dirname(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, beginning = prefix.rpartition("/")
        if folder:
            check_name(folder)
        yield from self._walk(folder, beginning)

    def folders(self, prefix: str) -> Sequence[str]:
        if prefix:
            check_name(prefix)
        return sorted(name for name, is_folder in self._entries(prefix) if is_folder)

    def close(self) -> None:
        """A directory needs no connections."""

    def _path(self, name: str) -> str:
        check_name(name)
        return os.path.join(self._root, name)

    def _walk(self, folder: str, beginning: str = "") -> Iterator[ObjectInfo]:
        for last, is_folder in self._entries(folder):
            if not last.startswith(beginning):
                continue
            name = f"{folder}/{last}" if folder else last
            if is_folder:
                yield from self._walk(name)
                continue
            with contextlib.suppress(NoSuchObject):  # deleted meanwhile
                yield self.head(name)

    def _entries(self, folder: str) -> Sequence[tuple[str, bool]]:
        """Names in a folder, and whether each is a folder; none if the folder is not there."""
        try:
            with self._errors(folder), os.scandir(os.path.join(self._root, folder)) as entries:
                return [(each.name, each.is_dir()) for each in entries if not each.name.startswith(".")]
        except NoSuchObject:
            return []

    @contextlib.contextmanager
    def _temporary_file(self, name: str, pieces: Iterable[bytes | memoryview]) -> Iterator[tuple[str, int]]:
        """The path of a synced file with ``pieces``, and its bytes. Its temporary name is removed at the end."""
        path = os.path.join(self._root, _TEMPORARY, secrets.token_hex(16))
        with self._errors(name, writes=True):
            self._begin_to_write()
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, _FILE_MODE)
            except FileNotFoundError:
                self._can_write = False  # somebody has removed the folder: the next write makes it again
                raise
        try:
            try:
                size = 0
                # An error of the iterable itself passes as it is.
                for piece in pieces:
                    with self._errors(name, writes=True):
                        size += _write(file, size, memoryview(piece))
                with self._errors(name, writes=True):
                    os.fsync(file)
            finally:
                os.close(file)
            yield path, size
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _place(self, path: str, give_name: Callable[[], None]) -> None:
        """Call ``give_name`` once the folder of ``path`` exists."""
        for attempt in range(_ATTEMPTS):
            try:
                return give_name()
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
            self._check_root()
            self._make_folder(os.path.dirname(path))

    def _make_folder(self, path: str) -> None:
        """Make a folder with its parents, each of them synced in its parent."""
        if path == self._root:
            return
        try:
            os.mkdir(path, _DIRECTORY_MODE)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_folder(os.path.dirname(path))
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, _DIRECTORY_MODE)
        self._descriptors.fsync_dir(os.path.dirname(path))

    def _sync_place(self, path: str) -> None:
        """Make the name of ``path`` survive a power loss. The object is there already, so a failure leaves a doubt."""
        try:
            self._descriptors.fsync_dir(os.path.dirname(path))
        except OSError as error:
            raise BucketAway(f"{path}: its folder cannot be synced: {error.strerror}") from error

    def _remove_empty_folders(self, path: str) -> None:
        with contextlib.suppress(OSError):
            while path != self._root:
                os.rmdir(path)
                path = os.path.dirname(path)

    def _begin_to_write(self) -> None:
        """Before each write: is the directory there? Before the first: remove what crashes have left."""
        self._check_root()
        with self._lock:
            if self._can_write:
                return
            folder = os.path.join(self._root, _TEMPORARY)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, _DIRECTORY_MODE)
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > _LEFTOVER_AFTER_S:
                        os.unlink(entry.path)
            self._can_write = True

    def _check_root(self) -> None:
        """Raise BucketAway if the directory is not there, or its file system is not mounted any more.

        Otherwise all objects would seem to be missing.
        """
        try:
            status = os.stat(self._root)
        except OSError as error:
            raise BucketAway(
                f"{self._root}: {error.strerror}: create the directory, or mount its file system"
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise BucketAway(f"{self._root} is no directory")
        if self._device is None:
            self._device = status.st_dev
        elif self._device != status.st_dev:
            raise BucketAway(f"{self._root} is on another file system than before: is it mounted?")

    @contextlib.contextmanager
    def _errors(self, name: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"{self._root}: {name}: {error.strerror}"
            if error.errno in _MISSING and not writes:
                self._check_root()
                raise NoSuchObject(name) from None
            if error.errno in _REFUSED:
                raise BucketRefused(text) from error
            raise BucketAway(text) from error


def _write(file: int, at: int, data: memoryview) -> int:
    """Write ``data`` to ``file``, which has ``at`` bytes so far; returns the bytes of ``data``."""
    size = len(data)
    while data:
        data = data[os.write(file, data) :]
    if sys.platform == "linux" and size >= _LARGE_BYTES:
        # The kernel begins to write to the disk while the next piece is made: else the sync at the end waits for a
        # gigabyte. Bytes that are not on the disk yet stay in memory. A file system need not know this advice; an error
        # of the disk is told by the sync.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, at, size, os.POSIX_FADV_DONTNEED)
    return size
