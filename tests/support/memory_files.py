"""A FileSystem in memory that forgets as real disks do: what was not synced is lost in part, torn, or kept.

``crash(random)`` gives the file system as it is after power loss; ``killed()`` after the death of the process (all
is kept). ``capacity`` fills up, ``faults`` makes calls fail (faults.py), ``flip`` and ``damage`` are rot,
``make_unstable`` and ``make_unreadable`` a failing disk (bad_medium.py), ``before_call`` sees each operation before it
is done. Handles of before a crash or kill stay usable and change nothing afterwards.
Threads may use one at once. ``crash`` and ``killed`` see each change of theirs as a whole or not at all: a lock is held
for each, but not for ``before_call``, which may block.
Operations: mkdirs create open read read_direct allocate write sync truncate rename link remove fsync_dir.
Neighbour: memory_disk.py.
"""

import contextlib
import errno
import mmap
import os
import posixpath
import threading
from collections import Counter
from collections.abc import Callable
from random import Random

from skylark.mqcommon.disk.files import AppendFile, DiskUsage, FileLock, MappedFile
from skylark.mqcommon.errors import DiskFull, FileClosed, OutOfDescriptors, StoreCorrupt, StoreLocked
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.cold_bytes import ColdBytes
from tests.support.faults import Faults
from tests.support.memory_disk import Change, Node, apply_changes

# Later than any clock of a test.
_NOW = 1 << 62


class MemoryFiles:
    """See FileSystem."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.boots = 1
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self.before_call: Callable[[str, str], None] | None = None
        self._directories: set[str] = {"", "/"}
        self._names: dict[str, Node] = {}
        #: per directory: its names as the disk has them, and the changes since, in order
        self._durable_names: dict[str, dict[str, Node]] = {}
        self._changes: dict[str, list[Change]] = {}
        #: removed, and their parents not synced since: a power loss may bring them back with their files
        self._removed_directories: set[str] = set()
        #: when files were written last, for a test to set; others were written just now
        self.modified: dict[str, int] = {}
        #: what is said not to be in the page cache
        self.cold = ColdBytes()
        self._locks: set[str] = set()
        self._mutex = threading.RLock()

    # --- FileSystem

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def listdir(self, path: str) -> list[str]:
        start = f"{path.rstrip('/')}/" if path else ""
        with self._mutex:
            entries = (*self._names, *self._directories)
        names = {entry.removeprefix(start) for entry in entries if entry.startswith(start)}
        return sorted(name for name in names if name and "/" not in name)

    def mkdirs(self, path: str) -> None:
        if path not in self._directories:
            self._count("mkdirs", path)
        with self._mutex:
            while path not in self._directories:
                self._directories.add(path)
                self._removed_directories.discard(path)
                path = posixpath.dirname(path)

    def remove(self, path: str) -> None:
        self._count("remove", path)
        with self._mutex:
            self._node(path)
            del self._names[path]
            self._note(path, None)

    def remove_empty_dir(self, path: str) -> bool:
        self._count("remove_dir", path)
        with self._mutex:
            if path not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            if self.listdir(path):
                return False
            self._directories.discard(path)
            self._removed_directories.add(path)
            return True

    def rename(self, old: str, new: str) -> None:
        self._count("rename", new)
        with self._mutex:
            if old in self._directories:
                self._rename_directory(old, new)
                return
            node = self._node(old)
            if posixpath.dirname(new) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", new)
            if self._names.get(new) is node:
                return  # two names of one file: POSIX does nothing
            del self._names[old]
            self._names[new] = node
            if posixpath.dirname(old) == posixpath.dirname(new):
                self._changes.setdefault(posixpath.dirname(new), []).append((f"{old}\0{new}", node))
            else:
                self._note(new, node)
                self._note(old, None)

    def link(self, path: str, new: str) -> None:
        self._count("link", new)
        with self._mutex:
            node = self._node(path)
            if posixpath.dirname(new) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", new)
            if self.exists(new):
                raise FileExistsError(errno.EEXIST, "there is one already", new)
            self._names[new] = node
            self._note(new, node)

    def link_count(self, path: str) -> int:
        with self._mutex:
            node = self._node(path)
            return sum(each is node for each in self._names.values())

    def take_mode(self, path: str, like: str) -> None:
        self._node(path)
        self._node(like)

    def size(self, path: str) -> int:
        with self._mutex:
            return self._node(path).size()

    def on_shortage(self, make_room: Callable[[], bool]) -> None:
        pass

    def modified_ms(self, path: str) -> int:
        return self.modified.get(path, _NOW)

    def read(self, path: str) -> bytes:
        self._count("read", path)
        with self._mutex:
            return self._node(path).content()

    def read_part(self, path: str, at: int, size: int) -> bytes:
        self._count("read", path)
        with self._mutex:
            return self._node(path).part(at, size)

    def read_direct(self, path: str, at: int, size: int) -> bytes:
        self._count("read_direct", path)
        with self._mutex:
            return self._node(path).read_direct(path, at, size)

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def open_append(self, path: str) -> AppendFile:
        self._count("open", path)
        return MemoryAppendFile(self, path, self._open(path))

    def open_map(self, path: str, size: int = 0, *, create: bool, allocated: int | None = None) -> MappedFile:
        self._count("open", path)
        if not create and path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        length = self._names[path].size() if path in self._names else 0
        size = size or length
        if size == 0:
            raise StoreCorrupt(path, 0, "the file is empty")
        if not create and length < size:
            raise StoreCorrupt(path, length, f"the file has {length} bytes where {size} are expected")
        hole = 0 if allocated is None else max(0, size - max(length, allocated))
        self.take_room(path, max(0, size - length - hole))
        node = self._open(path)
        with self._mutex:
            node.hole += hole
            return MemoryMappedFile(self, path, node, node.open_map(size))

    def fsync_dir(self, path: str) -> None:
        self._count("fsync_dir", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        with self._mutex:
            self._durable_names[path] = apply_changes(self._durable_names.get(path, {}), self._changes.pop(path, []))
            gone = [each for each in self._removed_directories if posixpath.dirname(each) == path]
            for removed in [*self._removed_directories]:
                if any(f"{removed}/".startswith(f"{each}/") for each in gone):
                    self._removed_directories.discard(removed)
                    self._durable_names.pop(removed, None)
                    self._changes.pop(removed, None)

    def sync_all(self, path: str) -> None:
        self._count("sync", path)
        with self._mutex:
            for node in self._names.values():
                node.sync()
            directories = list(self._changes)
        for directory in directories:
            self.fsync_dir(directory)

    def disk_usage(self, path: str) -> DiskUsage:
        used = min(self.capacity, self.used())
        return DiskUsage(self.capacity, used, self.capacity - used)

    def free_ratio(self, path: str) -> float:
        return self.disk_usage(path).free / self.capacity

    def lock(self, path: str) -> FileLock:
        if path in self._locks:
            raise StoreLocked(f"{path} is held by another process")
        self._open(path)
        self._locks.add(path)
        return MemoryLock(self._locks, path)

    # --- what a test does to it

    def crash(self, random: Random) -> "MemoryFiles":
        """After power loss: per directory some of its unsynced changes, per file a part of its unsynced bytes."""
        with self._mutex:
            after = MemoryFiles(self.capacity)
            after.boots = self.boots + 1
            after._directories = set(self._directories)
            for directory in sorted({*self._durable_names, *self._changes}):
                changes = self._changes.get(directory, [])
                survived = changes[: random.randint(0, len(changes))]
                if random.random() < 0.5:  # POSIX promises no order between names
                    survived = [change for change in changes if random.random() < 0.5]
                names = apply_changes(self._durable_names.get(directory, {}), survived)
                for path in sorted(names):
                    after._directories |= {directory, posixpath.dirname(directory)}
                    after._put(path, names[path].survivor(random))
                    after._names[path].medium = names[path].medium.after_power_loss()
            return after

    def killed(self) -> "MemoryFiles":
        """After kill -9: the kernel keeps all; what was not synced is still not."""
        with self._mutex:
            after = MemoryFiles(self.capacity)
            after.boots = self.boots
            after._directories = set(self._directories)
            after._removed_directories = set(self._removed_directories)
            nodes: dict[int, Node] = {}

            def copy(node: Node) -> Node:
                if id(node) not in nodes:
                    nodes[id(node)] = node.twin()
                return nodes[id(node)]

            after._names = {path: copy(node) for path, node in self._names.items()}
            after._durable_names = {
                directory: {path: copy(node) for path, node in names.items()}
                for directory, names in self._durable_names.items()
            }
            after._changes = {
                directory: [(change, None if node is None else copy(node)) for change, node in changes]
                for directory, changes in self._changes.items()
            }
            return after

    def paths(self) -> list[str]:
        """All files, sorted."""
        with self._mutex:
            return sorted(self._names)

    def overwrite(self, path: str, data: bytes) -> None:
        """Rot, or a file from elsewhere: ``data`` is on disk now."""
        self.mkdirs(posixpath.dirname(path))
        self._put(path, data)

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Rot: one bit of the file is another now."""
        self._node(path).flip(offset, bit)

    def damage(self, path: str, at: int, data: bytes, *, in_memory: bool = True, on_disk: bool = True) -> None:
        """Rot: the bytes from ``at`` on are ``data`` now; on one side only `read_direct` and the map differ."""
        with self._mutex:
            self._node(path).damage(at, data, in_memory=in_memory, on_disk=on_disk)

    def make_unstable(self, path: str, at: int, size: int) -> None:
        """Let each direct read of these bytes give others, until they are written again."""
        self._node(path).medium.unstable.append(range(at, at + size))

    def make_unreadable(self, path: str, at: int, size: int, *, stuck: bool = False) -> None:
        """Let reads from disk of these sectors fail (EIO) until they are written again; ``stuck``: that fails, too."""
        starts = range(at // SECTOR_BYTES * SECTOR_BYTES, at + size, SECTOR_BYTES)
        medium = self._node(path).medium
        medium.unreadable.update(starts)
        if stuck:
            medium.stuck.update(starts)

    def used(self) -> int:
        with self._mutex:
            return sum(node.size() - node.hole for node in {id(node): node for node in self._names.values()}.values())

    def take_room(self, path: str, needed: int) -> None:
        if needed:
            self._count("allocate", path)
        if needed and self.used() + needed > self.capacity:
            free = max(0, self.capacity - self.used())
            raise DiskFull(f"{path}: no room for {needed:,} bytes, {free:,} are free: make room or move the store")

    # --- inside

    def _count(self, operation: str, path: str) -> None:
        with self._mutex:
            self.calls[operation] += 1
        if self.before_call is not None:
            self.before_call(operation, path)
        with self._mutex:
            self.faults.check(operation, path)

    def _sync(self, path: str, node: Node) -> None:
        try:
            self._count("sync", path)
        except OutOfDescriptors:
            raise
        except OSError:
            with self._mutex:
                node.sync_failed()
            raise
        with self._mutex:
            node.sync()
            has_durable_name = self._durable_names.get(posixpath.dirname(path), {}).get(path) is node
        # mqcommon/disk/files.py: the first sync of a file made here syncs its directory too
        if not has_durable_name:
            self.fsync_dir(posixpath.dirname(path))

    def _node(self, path: str) -> Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def _open(self, path: str) -> Node:
        if posixpath.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if path not in self._names:
            self._count("create", path)
        with self._mutex:
            if path not in self._names:
                self._names[path] = Node()
                self._note(path, self._names[path])
            return self._names[path]

    def _rename_directory(self, old: str, new: str) -> None:
        """Rename a directory.

        Its new name is on disk at once: a power loss that brings the old name back is not simulated.
        """

        def moved(path: str) -> str:
            return new + path[len(old) :] if f"{path}/".startswith(f"{old}/") else path

        self._directories = {*map(moved, self._directories)}
        self._names = {moved(path): node for path, node in self._names.items()}
        self._durable_names = {
            moved(directory): {moved(path): node for path, node in names.items()}
            for directory, names in self._durable_names.items()
        }
        self._changes = {
            moved(directory): [("\0".join(map(moved, change.split("\0"))), node) for change, node in changes]
            for directory, changes in self._changes.items()
        }

    def _note(self, path: str, node: Node | None) -> None:
        self._changes.setdefault(posixpath.dirname(path), []).append((path, node))

    def _put(self, path: str, data: bytes) -> None:
        directory = posixpath.dirname(path)
        with self._mutex:
            node = self._names[path] = Node(data)
            self._durable_names.setdefault(directory, {})[path] = node
            self._changes[directory] = [change for change in self._changes.get(directory, []) if change[0] != path]


class MemoryAppendFile:
    """See AppendFile."""

    def __init__(self, fs: MemoryFiles, path: str, node: Node) -> None:
        self.path = path
        self._fs = fs
        self._node = node

    def write(self, data: bytes) -> None:
        self._fs._count("write", self.path)
        self._fs.take_room(self.path, len(data))
        with self._fs._mutex:
            self._node.data += data

    def sync(self) -> None:
        self._fs._sync(self.path, self._node)

    def size(self) -> int:
        return len(self._node.data)

    def truncate(self, size: int) -> None:
        self._fs._count("truncate", self.path)
        with self._fs._mutex:
            del self._node.data[size:]
            self._node.data += bytes(size - len(self._node.data))

    def close(self) -> None:
        pass


class MemoryMappedFile:
    """See MappedFile."""

    def __init__(self, fs: MemoryFiles, path: str, node: Node, view: mmap.mmap) -> None:
        self.path = path
        self.size = len(view)
        self.view = view
        self._fs = fs
        self._node = node
        self._closed = False

    def allocate(self, end: int) -> None:
        # Blocks are given from the front: what is left of the hole lies behind ``end``.
        needed = min(self._node.hole, max(0, self._node.hole - (self.size - end)))
        self._fs.take_room(self.path, needed)
        self._node.hole -= needed

    def sync(self) -> None:
        self._fs._sync(self.path, self._node)

    def resident(self, at: int, size: int) -> bool:
        return not self._closed and self._fs.cold.resident(self.path, at, size)

    def pread(self, at: int, size: int) -> bytes:
        self._check_open()
        if not self._fs.cold.resident(self.path, at, size):
            self._node.medium.check_readable(self.path, at, size)
            self._node.drop(at, size)
        self._fs.cold.read(self.path, at, size)
        with self._fs._mutex:
            return self._node.part(at, size)

    def pwrite(self, at: int, data: memoryview) -> None:
        self._check_open()
        with self._fs._mutex:
            self._node.medium.check_writable(self.path, at, len(data))
            self.view[at : at + len(data)] = data
            self._node.written(at, len(data))

    def drop(self, at: int, size: int) -> None:
        self._check_open()
        with self._fs._mutex:
            self._node.drop(at, size)

    def no_read_ahead(self) -> None:
        self._check_open()

    def send(self, socket_fd: int, at: int, size: int) -> int:
        try:
            return os.write(socket_fd, self.pread(at, size))
        except BlockingIOError:
            return 0

    def populate(self, at: int, size: int) -> None:
        self._check_open()
        self._fs.cold.populated.append((self.path, at, size))

    def _check_open(self) -> None:
        if self._closed:
            raise FileClosed(f"{self.path} was closed, and perhaps removed")

    def close(self) -> None:
        with self._fs._mutex:
            if self._closed:
                return
            self._closed = True
            if self._node.map is self.view and not self._node.close_map():
                return
            with contextlib.suppress(BufferError):
                self.view.close()


class MemoryLock:
    """See FileLock."""

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def close(self) -> None:
        self._locks.discard(self._path)
