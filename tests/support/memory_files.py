"""A FileSystem in memory that forgets as real disks do: what was not synced is lost in part, torn, or kept.

``crash(random)`` gives the file system as it is after power loss; ``killed()`` after the death of the process (all
is kept). ``capacity`` fills up, ``failures`` makes the next calls of an operation fail, ``before_call`` sees each
operation before it is done. Handles of before a crash or kill stay usable and change nothing afterwards.
"""

import contextlib
import errno
import mmap
import posixpath
from collections import Counter
from collections.abc import Callable
from random import Random

from common.errors import DiskFull, StoreCorrupt, StoreLocked
from common.files import AppendFile, DiskUsage, FileLock, MappedFile

# What a disk writes as one: a sector is there or it is not.
SECTOR_BYTES = 512


class _Node:
    """The content of a file: as the kernel has it, and as the disk has it."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.map: mmap.mmap | None = None

    def content(self) -> bytes:
        if self.map is not None and len(self.map) >= len(self.data):
            return self.map[:]
        if self.map is not None:
            return self.map[:] + bytes(self.data[len(self.map) :])
        return bytes(self.data)

    def sync(self) -> None:
        self.durable = self.content()


class MemoryFiles:
    """See FileSystem."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.boots = 1
        #: operation name ("write", "sync", "rename", ...) -> how many of its next calls fail
        self.failures: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.before_call: Callable[[str, str], None] | None = None
        self._directories: set[str] = {"", "/"}
        self._names: dict[str, _Node] = {}
        #: per directory: its names as the disk has them, and the changes since, in order
        self._durable_names: dict[str, dict[str, _Node]] = {}
        self._changes: dict[str, list[tuple[str, _Node | None]]] = {}
        self._locks: set[str] = set()

    # --- FileSystem

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def is_dir(self, path: str) -> bool:
        return path in self._directories

    def listdir(self, path: str) -> list[str]:
        entries = [*self._names, *self._directories]
        return sorted({posixpath.basename(e) for e in entries if e and posixpath.dirname(e) == path and e != path})

    def mkdirs(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = posixpath.dirname(path)

    def remove(self, path: str) -> None:
        self._count("remove", path)
        self._node(path)
        del self._names[path]
        self._note(path, None)

    def rmdir(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self._directories.discard(path)

    def rename(self, old: str, new: str) -> None:
        self._count("rename", new)
        node = self._node(old)
        if posixpath.dirname(new) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", new)
        del self._names[old]
        self._names[new] = node
        if posixpath.dirname(old) == posixpath.dirname(new):
            self._changes.setdefault(posixpath.dirname(new), []).append((f"{old}\0{new}", node))
        else:
            self._note(new, node)
            self._note(old, None)

    def size(self, path: str) -> int:
        return len(self._node(path).content())

    def read(self, path: str) -> bytes:
        self._count("read", path)
        return self._node(path).content()

    def read_part(self, path: str, at: int, size: int) -> bytes:
        self._count("read", path)
        return self._node(path).content()[at : at + size]

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def open_append(self, path: str) -> AppendFile:
        return MemoryAppendFile(self, path, self._open(path))

    def open_map(self, path: str, size: int = 0, *, create: bool) -> MappedFile:
        if not create and path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        length = len(self._names[path].content()) if path in self._names else 0
        size = size or length
        if size == 0:
            raise StoreCorrupt(path, 0, "the file is empty")
        if not create and length < size:
            raise StoreCorrupt(path, length, f"the file has {length} bytes where {size} are expected")
        self.take_room(path, max(0, size - length))
        node = self._open(path)
        content = node.content()
        node.map = mmap.mmap(-1, size)
        node.map[: min(size, len(content))] = content[:size]
        node.data = bytearray(content)
        return MemoryMappedFile(self, path, node, size)

    def fsync_dir(self, path: str) -> None:
        self._count("fsync_dir", path)
        self._durable_names[path] = _apply(self._durable_names.get(path, {}), self._changes.pop(path, []))

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
        after = MemoryFiles(self.capacity)
        after.boots = self.boots + 1
        after._directories = set(self._directories)
        for directory in sorted({*self._durable_names, *self._changes}):
            changes = self._changes.get(directory, [])
            survived = changes[: random.randint(0, len(changes))]
            if random.random() < 0.5:  # POSIX promises no order between names
                survived = [change for change in changes if random.random() < 0.5]
            names = _apply(self._durable_names.get(directory, {}), survived)
            for path in sorted(names):
                after._put(path, _survivor(names[path], random))
        return after

    def killed(self) -> "MemoryFiles":
        """After kill -9: the kernel keeps all; what was not synced is still not."""
        after = MemoryFiles(self.capacity)
        after.boots = self.boots
        after._directories = set(self._directories)
        nodes: dict[int, _Node] = {}

        def copy(node: _Node) -> _Node:
            if id(node) not in nodes:
                nodes[id(node)] = twin = _Node(node.content())
                twin.durable = node.durable
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
        return sorted(self._names)

    def overwrite(self, path: str, data: bytes) -> None:
        """Rot, or a file from elsewhere: ``data`` is on disk now."""
        self.mkdirs(posixpath.dirname(path))
        self._put(path, data)

    def used(self) -> int:
        return sum(len(node.content()) for node in self._names.values())

    def take_room(self, path: str, needed: int) -> None:
        if needed:
            self._count("allocate", path)
        if needed and self.used() + needed > self.capacity:
            free = max(0, self.capacity - self.used())
            raise DiskFull(f"{path}: no room for {needed:,} bytes, {free:,} are free: make room or move the store")

    # --- inside

    def _count(self, operation: str, path: str) -> None:
        self.calls[operation] += 1
        if self.before_call is not None:
            self.before_call(operation, path)
        if self.failures[operation] > 0:
            self.failures[operation] -= 1
            raise OSError(errno.EIO, f"injected failure of {operation}", path)

    def _node(self, path: str) -> _Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def _open(self, path: str) -> _Node:
        if posixpath.dirname(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if path not in self._names:
            self._count("create", path)
            self._names[path] = _Node()
            self._note(path, self._names[path])
        return self._names[path]

    def _note(self, path: str, node: _Node | None) -> None:
        self._changes.setdefault(posixpath.dirname(path), []).append((path, node))

    def _put(self, path: str, data: bytes) -> None:
        directory = posixpath.dirname(path)
        node = self._names[path] = _Node(data)
        self._durable_names.setdefault(directory, {})[path] = node
        self._changes[directory] = [change for change in self._changes.get(directory, []) if change[0] != path]


class MemoryAppendFile:
    """See AppendFile."""

    def __init__(self, fs: MemoryFiles, path: str, node: _Node) -> None:
        self.path = path
        self._fs = fs
        self._node = node

    def write(self, data: bytes) -> None:
        self._fs._count("write", self.path)
        self._fs.take_room(self.path, len(data))
        self._node.data += data

    def sync(self) -> None:
        self._fs._count("sync", self.path)
        self._node.sync()
        # common/files.py: the first sync of a file made here syncs its directory too
        if self._fs._durable_names.get(posixpath.dirname(self.path), {}).get(self.path) is not self._node:
            self._fs.fsync_dir(posixpath.dirname(self.path))

    def size(self) -> int:
        return len(self._node.data)

    def truncate(self, size: int) -> None:
        self._fs._count("truncate", self.path)
        del self._node.data[size:]

    def close(self) -> None:
        pass


class MemoryMappedFile:
    """See MappedFile."""

    def __init__(self, fs: MemoryFiles, path: str, node: _Node, size: int) -> None:
        assert node.map is not None
        self.path = path
        self.size = size
        self.view = node.map
        self._fs = fs
        self._node = node

    def sync(self) -> None:
        self._fs._count("sync", self.path)
        self._node.sync()
        if self._fs._durable_names.get(posixpath.dirname(self.path), {}).get(self.path) is not self._node:
            self._fs.fsync_dir(posixpath.dirname(self.path))

    def close(self) -> None:
        if self._node.map is self.view:
            self._node.data = bytearray(self._node.content())
            self._node.map = None
        with contextlib.suppress(BufferError):
            self.view.close()


class MemoryLock:
    """See FileLock."""

    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def close(self) -> None:
        self._locks.discard(self._path)


def _apply(names: dict[str, _Node], changes: list[tuple[str, _Node | None]]) -> dict[str, _Node]:
    names = dict(names)
    for change, node in changes:
        old, _, new = change.partition("\0")
        if new and node is not None:
            names.pop(old, None)
            names[new] = node
        elif node is None:
            names.pop(old, None)
        else:
            names[old] = node
    return names


def _survivor(node: _Node, random: Random) -> bytes:
    """The bytes of a file after power loss: each unsynced sector is there or not, the length is old, new or between."""
    current, durable = node.content(), node.durable
    mode = random.choice(("nothing", "everything", "prefix", "sectors"))
    if mode == "nothing" or current == durable:
        return durable
    if mode == "everything":
        return current
    low, high = sorted((len(durable), len(current)))
    length = random.randint(low, high)
    if mode == "prefix":
        return current[:length] if len(current) >= len(durable) else durable[:length]
    data = bytearray(durable[:length].ljust(length, b"\0"))
    for start in range(0, length, SECTOR_BYTES):
        end = min(start + SECTOR_BYTES, length)
        if random.random() < 0.5:
            data[start:end] = current[start:end].ljust(end - start, b"\0")
    return bytes(data)
